"""Settings chosen from the first rows: which, when, and what that never changes."""

from __future__ import annotations

import base64
import copy
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import make_classification

import dmondrian
from dmondrian import AMFClassifier
from dmondrian.errors import CorruptError
from dmondrian.forest.forest import Forest
from dmondrian.tuning import auto_settings
from dmondrian.tuning.auto_settings import CANDIDATES, START_ALPHA, Warmup
from tests.estimators.test_amf import same_forest

FIRST, LAST = 64, 512
"""Rows of the two stages in tests of what no number of rows changes: choosing takes time."""


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto_settings, "FIRST", FIRST)


def quick(n_estimators: int, **given: Any) -> AMFClassifier:
    return AMFClassifier(
        n_estimators, feature_scales=None, warmup_rows=LAST, calibrate=False, **given
    )


def mixture(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Clean rows, then rows of pure noise: the two stages choose differently."""
    rng = np.random.default_rng(seed)
    X = rng.random((n, 3)).astype(np.float32)
    y = (X[:, 0] > 0.5).astype(int)
    return X, np.where(np.arange(n) < FIRST, y, rng.integers(0, 2, n))


def settings(forest: AMFClassifier) -> tuple[float, bool]:
    return forest.alpha_, forest.charge_opening_


def log_loss(forest: AMFClassifier, X: np.ndarray, y: np.ndarray) -> float:
    return float(-np.log(forest.predict_proba(X)[np.arange(len(y)), y]).mean())


def by_hand(X: np.ndarray, y: np.ndarray, among: list[tuple[float, bool]], n: int) -> list:
    """Settings ordered by log loss over rows n / 2 to n, each chunk forecast, then learned."""
    losses = []
    for alpha, charge in among:
        forest = AMFClassifier(
            10,
            alpha=alpha,
            charge_opening=charge,
            feature_scales=None,
            calibrate=False,
            random_state=4,
        )
        forest.partial_fit(X[: n // 2], y[: n // 2], classes=np.arange(y.max() + 1))
        lost = 0.0
        for start in range(n // 2, n, n // 32):  # sixteen chunks
            rows = slice(start, start + n // 32)
            lost += log_loss(forest, X[rows], y[rows]) * (n // 32)
            forest.partial_fit(X[rows], y[rows])
        losses.append(lost)
    return [among[i] for i in np.argsort(losses, kind="stable")]


def test_the_choice_is_the_least_progressive_loss() -> None:
    chosen = set()
    for seed, noise in ((0, 0.0), (1, 0.3), (2, 0.5)):
        X, y = make_classification(auto_settings.LAST + 50, 8, flip_y=noise, random_state=seed)
        X = X.astype(np.float32)
        among = [(share / 2, charge) for share, charge in CANDIDATES]
        first = by_hand(X, y, among, auto_settings.FIRST)
        few = AMFClassifier(2, feature_scales=None, random_state=4)
        few.fit(X[: auto_settings.FIRST + 1], y[: auto_settings.FIRST + 1])
        assert settings(few) == first[0]
        last = by_hand(X, y, among, auto_settings.LAST)
        many = AMFClassifier(2, feature_scales=None, random_state=4).fit(X, y)
        assert settings(many) == last[0]
        chosen |= {first[0], last[0]}
    assert len(chosen) > 1  # else the data do not tell settings apart


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("n", [FIRST, FIRST + 1, LAST, LAST + 1, LAST + 300])
def test_the_forest_is_the_one_of_the_settings_chosen(n: int) -> None:
    X, y = mixture(n)
    auto = quick(3, random_state=1).fit(X, y)
    fixed = quick(3, alpha=auto.alpha_, charge_opening=auto.charge_opening_, random_state=1)
    assert same_forest(auto, fixed.fit(X, y))
    assert (auto.forest_.warmup is None) == (n > LAST)


@pytest.mark.usefixtures("short")
def test_chunks_threads_and_weights_change_no_byte() -> None:
    X, y = mixture(LAST + 100)
    whole = quick(2, random_state=1).fit(X, y)
    early = quick(2, random_state=1).fit(X[: FIRST + 1], y[: FIRST + 1])
    assert settings(early) != settings(whole)
    for size in (1, 70, LAST):
        parts = quick(2, random_state=1, n_jobs=2)
        for start in range(0, len(X), size):
            rows = slice(start, start + size)
            parts.partial_fit(X[rows], y[rows], classes=[0, 1])
        assert same_forest(whole, parts)


@pytest.mark.usefixtures("short")
def test_whole_weights_equal_repeats_and_zeros_no_rows() -> None:
    X, y = mixture(LAST + 100)
    w = np.random.default_rng(0).integers(0, 5, len(X))
    w[30] = 200
    weighted = quick(2, random_state=1).fit(X, y, sample_weight=w)
    repeated = quick(2, random_state=1)
    X, y = np.repeat(X, w, 0), np.repeat(y, w)
    for start in range(0, len(X), 47):  # cuts fall between repeats of one row
        repeated.partial_fit(X[start : start + 47], y[start : start + 47], classes=[0, 1])
    assert settings(weighted) == settings(repeated)
    assert same_forest(weighted, repeated)


@pytest.mark.usefixtures("short")
def test_large_weights_do_not_choose_from_few_rows() -> None:
    X, y = mixture(LAST + 1)
    plain = quick(1, random_state=1).fit(X, y)
    heavy = quick(1, random_state=1).fit(X, y, sample_weight=np.full(len(X), 5000.0))
    assert plain.forest_.warmup is None
    assert heavy.forest_.warmup is None
    light = quick(1, random_state=1).fit(X, y, sample_weight=np.full(len(X), 0.25))
    assert light.forest_.warmup is None
    few = quick(1, random_state=1).fit(X[:FIRST], y[:FIRST], np.full(FIRST, 5000.0))
    assert settings(few) == (START_ALPHA / 2, False)
    same = quick(1, random_state=1).fit(X[[0] * 2 * LAST], [0, 1] * LAST)
    assert same.forest_.warmup is None  # y alone differs from row to row
    n = 16 * LAST - 1
    flat = quick(1, random_state=1).partial_fit(X[[0] * n], [0] * n, classes=[0, 1])
    assert flat.forest_.warmup is not None
    assert flat.forest_.warmup.n_distinct == 1
    assert flat.partial_fit(X[:1], [0]).forest_.warmup is None  # no more are kept


@pytest.mark.usefixtures("short")
def test_an_interrupted_choice_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = mixture(LAST + 100)
    whole = quick(2, random_state=1).fit(X, y)
    begun = quick(2, random_state=1).partial_fit(X[:100], y[:100], classes=[0, 1])

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("dmondrian.tuning.auto_settings.choose", interrupt)
        with pytest.raises(KeyboardInterrupt):
            begun.partial_fit(X[100:], y[100:])
    assert same_forest(whole, begun.partial_fit(X[100:], y[100:]))


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("n", [20, FIRST + 10, LAST])
def test_a_stored_warmup_goes_on(n: int, tmp_path: Path) -> None:
    X, y = mixture(LAST + 100)
    whole = quick(2, random_state=1).fit(X, y)
    begun = quick(2, random_state=1).partial_fit(X[:n], y[:n], classes=[0, 1])
    begun.save(tmp_path / "model")
    for again in (
        dmondrian.load(tmp_path / "model"),
        pickle.loads(pickle.dumps(begun)),
        copy.deepcopy(begun),
    ):
        assert same_forest(whole, again.partial_fit(X[n:], y[n:]))
    begun.partial_fit(X[n:], y[n:]).save(tmp_path / "model")  # the settings have changed
    assert same_forest(whole, dmondrian.load(tmp_path / "model"))


@pytest.mark.parametrize("rows", [100, FIRST, 700])
def test_a_warmup_is_as_long_as_asked(rows: int, tmp_path: Path) -> None:
    X, y = mixture(rows + 300)
    given = {"warmup_rows": rows, "feature_scales": None, "random_state": 4}
    whole = AMFClassifier(2, **given).fit(X, y)
    assert whole.forest_.warmup is None
    short = AMFClassifier(2, **given).fit(X[:rows], y[:rows])
    assert short.forest_.warmup is not None
    assert short.forest_.warmup.n_rows == rows
    expected = by_hand(X, y, [(share / 2, charge) for share, charge in CANDIDATES], rows)[0]
    assert settings(whole) == expected
    for size in (1, 90, rows):
        parts = AMFClassifier(2, **given)
        for start in range(0, len(X), size):
            at = slice(start, start + size)
            parts.partial_fit(X[at], y[at], classes=[0, 1])
        assert same_forest(whole, parts)
    begun = AMFClassifier(2, **given).partial_fit(X[:60], y[:60], classes=[0, 1])
    begun.save(tmp_path / "model")
    for again in (dmondrian.load(tmp_path / "model"), pickle.loads(pickle.dumps(begun))):
        assert same_forest(whole, again.partial_fit(X[60:], y[60:]))


@pytest.mark.parametrize("n_values", [1, 2, 3, 400])
def test_a_row_that_comes_alone_is_kept_as_others_are(n_values: int) -> None:
    rng = np.random.default_rng(n_values)
    n, last = 700, 40
    X = (rng.integers(0, n_values, (n, 1)) / 2).astype(np.float64)
    X[::5] = -0.0
    y = rng.integers(0, min(n_values, 2), n).astype(np.float64)
    begun = Warmup.without_rows(("alpha",), 1, last)
    one_by_one, together = begun, begun.after(X.astype(np.float32), y, None)
    for r in range(n):
        before = one_by_one
        if before.is_done:
            break
        row, kept = X[r : r + 1].astype(np.float32), before.to_json()
        one_by_one = before.after_row(row, y[r])
        after = before.after(row, y[r : r + 1], None)
        other = before.after_row(row + np.float32(1.0), 1.0 - y[r])
        assert before.to_json() == kept
        assert one_by_one.n_distinct == after.n_distinct
        assert one_by_one.to_json() == after.to_json() != other.to_json()
        may = [each.is_done or each.n_distinct > last for each in (after, other)]
        assert before.may_choose or not any(may)
    with pytest.raises(ValueError, match="read-only"):
        one_by_one.rows[0][0] = 1.0
    assert together.is_done == one_by_one.is_done
    assert [a.tobytes() for a in together.rows] == [a.tobytes() for a in one_by_one.rows]


@pytest.mark.usefixtures("short")
def test_rows_alone_are_looked_at_closely_only_where_a_choice_is_near(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    X, y = mixture(LAST + 20)
    whole = quick(2, random_state=1).fit(X, y)
    parts = quick(2, random_state=1).partial_fit(X[:1], y[:1], classes=[0, 1])
    looked_at = []

    def update(self: Forest, *rows: Any, **more: Any) -> None:
        looked_at.append(int(self.total_weight))
        general(self, *rows, **more)

    general = Forest.update
    monkeypatch.setattr(Forest, "update", update)
    for r in range(1, len(X)):
        parts.partial_fit(X[r : r + 1], y[r : r + 1])
    assert {FIRST, LAST} <= set(looked_at)
    assert len(looked_at) < 15  # columns that were of two values are of more
    assert same_forest(whole, parts)
    assert whole.forest_.state()[0] == parts.forest_.state()[0]
    given: dict[str, Any] = {"feature_scales": None, "warmup_rows": 32, "calibrate": False}
    flat = AMFClassifier(1, **given, random_state=1)
    flat.partial_fit(X[:1], y[:1], classes=[0, 1])
    looked_at.clear()
    for _ in range(32 * 16 - 1):
        assert flat.forest_.warmup is not None
        flat.partial_fit(X[:1], y[:1])
    assert flat.forest_.warmup is None  # no more are kept
    assert looked_at == [32 * 16 - 1]


@pytest.mark.parametrize("rows", [0, 31, 2**16 + 1, 100.0, None])
def test_a_warmup_of_impossible_length_is_refused(rows: object) -> None:
    X, y = mixture(50)
    with pytest.raises(ValueError, match="'warmup_rows' parameter"):
        AMFClassifier(1, warmup_rows=rows).fit(X, y)
    header, trees = AMFClassifier(1).fit(X, y).forest_.state()
    header["warmup"]["warmup_rows"] = rows
    with pytest.raises(CorruptError, match="warm-up cannot be of"):
        Forest.from_state(header, trees)


def test_a_stored_warmup_of_the_default_length_does_not_hold_it() -> None:
    X, y = mixture(50)
    for rows, reported in ((auto_settings.LAST, False), (auto_settings.LAST - 1, True)):
        forest = AMFClassifier(1, warmup_rows=rows).fit(X, y).forest_
        assert ("warmup_rows" in forest.state()[0]["warmup"]) == reported


@pytest.mark.usefixtures("short")
def test_settings_fixed_by_hand_are_kept() -> None:
    X, y = mixture(LAST + 1)
    assert quick(1, alpha=0.3).fit(X, y).alpha_ == 0.3
    for charge in (False, True):
        assert quick(1, charge_opening=charge).fit(X, y).charge_opening_ is charge
    fixed = quick(1, alpha=0.3, charge_opening=True, feature_units=None).fit(X[:5], y[:5])
    assert fixed.forest_.warmup is None
    with pytest.raises(AttributeError, match="not fitted"):
        AMFClassifier().alpha_  # noqa: B018


@pytest.mark.parametrize(
    "shape",
    [
        # alpha = 0.01 does worse than the uniform forecast here,
        pytest.param(
            {"n_samples": 14_000, "n_features": 100, "n_informative": 10, "n_classes": 5},
            marks=pytest.mark.thorough,
        ),
        # alpha = 0.5 doubles the loss here.
        {"n_samples": 14_000, "n_features": 16, "n_informative": 12, "n_classes": 26},
    ],
)
def test_the_settings_chosen_are_safe_with_noise_and_with_many_classes(
    shape: dict[str, int],
) -> None:
    X, y = make_classification(**shape, n_redundant=0, n_clusters_per_class=1, random_state=0)
    X = ((X - X.min(0)) / np.ptp(X, axis=0)).astype(np.float32)
    n, k = 10_000, shape["n_classes"]
    given = {"n_estimators": 10, "feature_scales": None, "random_state": 0, "calibrate": False}
    chosen = AMFClassifier(**given).fit(X[:n], y[:n])
    risky = 0.01 if k == 5 else 0.5
    fixed = AMFClassifier(**given, alpha=risky, charge_opening=False).fit(X[:n], y[:n])
    assert log_loss(chosen, X[n:], y[n:]) < np.log(k)
    assert log_loss(chosen, X[n:], y[n:]) < log_loss(fixed, X[n:], y[n:])


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("auto", ["seed"]),
        ("auto", []),
        ("auto", "alpha"),
        ("y", "!"),
        ("y", 3),
        ("y", base64.b64encode(np.array([0.0, 2.0])).decode()),
        ("y", base64.b64encode(np.array([0.0, np.nan])).decode()),
        ("y", base64.b64encode(np.array([0.0])).decode()),
        ("w", base64.b64encode(np.array([0.0, 1.0])).decode()),
        ("w", base64.b64encode(np.array([np.inf, 1.0])).decode()),
        ("X", base64.b64encode(np.full((2, 3), np.inf, np.float32)).decode()),
        ("X", base64.b64encode(np.zeros((2, 2), np.float32)).decode()),
        ("Z", ""),
    ],
)
def test_a_damaged_warmup_is_refused(key: str, value: object) -> None:
    X, _ = mixture(2)
    header, trees = AMFClassifier(1).fit(X, [0, 1]).forest_.state()
    Forest.from_state(header, trees)
    header["warmup"][key] = value
    with pytest.raises(CorruptError, match="warm-up"):
        Forest.from_state(header, trees)
