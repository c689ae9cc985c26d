"""Calibration by default: its forecasts, its bound whatever comes, and what it leaves as it was."""

from __future__ import annotations

import math
import pickle
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dmondrian
from dmondrian import AMFClassifier, MondrianForestClassifier
from dmondrian.ensemble.sums.exact_sums import ONE
from dmondrian.errors import CorruptError, ParameterError
from dmondrian.forest.forest import Forest
from dmondrian.forest.merge import merge
from dmondrian.prequential.stream_sample import DENSITY, Sampled, rows_until_sampled
from dmondrian.prequential.stream_sample_kernels import write_hits
from dmondrian.uncertainty.temperature_scaling import EXPONENTS, Calibration, new_calibration

FIXED: dict[str, Any] = {"feature_scales": None, "alpha": 0.1, "charge_opening": False}
TREES, CLASSES = 4, 3
LABELS = ("first", "least likely", "by turns", "late", "drifting", "drawn")


def labels(kind: str, proba: np.ndarray, draw: np.random.Generator) -> np.ndarray:
    """Labels [n] of forecasts [n, K], as an adversary or a stream could have them."""
    n, k = proba.shape
    if kind == "first":
        return np.zeros(n, np.int64)
    if kind == "least likely":
        return proba.argmin(axis=1)
    if kind == "by turns":  # the power is right, then wrong, each for as long as it was before
        is_right = (np.frexp(np.arange(n) + 1.0)[1] % 2).astype(bool)
        return np.where(is_right, proba.argmax(axis=1), proba.argmin(axis=1))
    if kind == "late":  # the power becomes sure, and then is wrong once
        return np.where(np.arange(n) < n - 1, proba.argmax(axis=1), proba.argmin(axis=1))
    if kind == "drifting":
        return np.where(np.arange(n) < n // 2, proba.argmax(axis=1), draw.integers(k, size=n))
    return np.array([draw.choice(k, p=row / row.sum()) for row in proba])


def sample_of(sums: np.ndarray, hits: np.ndarray) -> Sampled:
    """Sums [n, K] of the rows of a stream of which each is in the sample, `hits` times."""
    before = 1.0 + np.concatenate([[0.0], np.cumsum(hits)[:-1]])
    n = len(sums)
    return Sampled(np.arange(n), before, hits, sums, np.empty((n, 0)))


def mixed_by_hand(proba: np.ndarray, y: np.ndarray, powers: list[float]) -> np.ndarray:
    """Forecasts of a mixture of two, by the product of what each gave to the labels before."""
    log_products = np.zeros(2)
    found = np.empty_like(proba)
    for r, (row, b) in enumerate(zip(proba, powers, strict=True)):
        both = np.stack([row**b / (row**b).sum(), row])
        shares = np.exp(log_products - np.logaddexp.reduce(log_products))
        found[r] = shares @ both
        log_products += np.log(both[:, y[r]])
    return found


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(LABELS), st.integers(1, 150), st.integers(0, 2**32 - 1),
    st.sampled_from([0.05, 1.0, 20.0]), st.booleans(),
)  # fmt: skip
def test_it_loses_at_most_log_2_more_than_either_whatever_comes(
    kind: str, n: int, seed: int, spread: float, are_weighted: bool
) -> None:
    draw = np.random.default_rng(seed)
    drawn = np.maximum(draw.dirichlet(np.full(CLASSES, spread), n), 1e-6)
    sums = (drawn / drawn.sum(axis=1, keepdims=True) * TREES * ONE).astype(np.int64)
    proba = sums / (TREES * ONE)
    y = labels(kind, proba, draw)
    hits = draw.choice([1.0, 2.0, 7.0, 300.0], n) if are_weighted else np.ones(n)
    sampled = sample_of(sums, hits)
    calibration, powers, forecasts = Calibration(excess=0.0), [], np.empty_like(proba)
    for r in range(n):
        powers.append(calibration.exponent)
        forecasts[r] = calibration.apply(proba[[r]])[0]
        one = Sampled(*(column[r : r + 1] for column in sampled))
        calibration = calibration.after(one, y.astype(float), TREES)
    np.testing.assert_allclose(forecasts, mixed_by_hand(proba, y, powers), rtol=1e-6, atol=1e-9)
    own, at = np.arange(n), np.array(powers)[:, None]
    losses = {
        "mixture": -np.log(forecasts[own, y]).sum(),
        "as they are": -np.log(proba[own, y]).sum(),
        "powers": -np.log((proba**at / (proba**at).sum(axis=1, keepdims=True))[own, y]).sum(),
    }
    for other in ("as they are", "powers"):
        assert losses["mixture"] <= losses[other] + math.log(2.0) + 1e-7
    assert calibration.excess == pytest.approx(
        losses["powers"] - losses["as they are"], rel=1e-6, abs=1e-6
    )
    cuts = sorted({0, n, *draw.integers(n + 1, size=3).tolist()})
    whole = Calibration(excess=0.0)
    for start, stop in pairwise(cuts):
        part = Sampled(*(column[start:stop] for column in sampled))
        whole = whole.after(part, y.astype(float), TREES)
    assert whole == calibration


@pytest.mark.parametrize("kind", ["shuffled", "turning", "one class", "weighted"])
def test_a_default_forest_loses_at_most_log_2_more_than_an_uncalibrated_one(kind: str) -> None:
    draw = np.random.default_rng(0)
    n = 250
    X = draw.random((n, 3), dtype=np.float32)
    y = (X[:, 0] + 0.3 * draw.normal(size=n) > 0.5).astype(int)
    if kind == "turning":
        y[n // 2 :] = 1 - y[n // 2 :]
    y = np.zeros(n, int) if kind == "one class" else y
    w = draw.choice([0.0, 0.5, 1.0, 9.0], n) if kind == "weighted" else np.ones(n)
    before, hits = np.empty(n), np.empty(n)
    write_hits(0.0, w, DENSITY, before, hits)
    default = AMFClassifier(5, random_state=0, **FIXED)
    plain = AMFClassifier(5, calibrate=False, random_state=0, **FIXED)
    losses = np.zeros(2)
    for r in range(n):
        for i, forest in enumerate((default, plain)):
            if hits[r]:
                losses[i] -= np.log(forest.predict_proba(X[[r]])[0, y[r]])
            given: dict[str, Any] = {} if kind != "weighted" else {"sample_weight": w[[r]]}
            forest.partial_fit(X[[r]], y[[r]], classes=[0, 1], **given)
    assert losses[0] <= losses[1] + math.log(2.0) + 1e-9
    assert default.calibration_weight_ != 0.5 or kind == "one class"
    assert plain.calibration_weight_ == 1.0
    whole = AMFClassifier(5, random_state=0, **FIXED)
    whole.partial_fit(X, y, classes=[0, 1], sample_weight=w if kind == "weighted" else None)
    assert whole.forest_.calibration == default.forest_.calibration


def test_rows_that_pass_by_the_sample_are_those_that_it_has_not() -> None:
    for before in (0.0, 1.0, 900.0, 1024.0, 1025.0, 2048.5, 4097.0, 70_000.25, 2.0**40 + 3.0):
        hits, places = np.empty(2**12), np.empty(2**12)
        write_hits(before, np.empty(0), DENSITY, places, hits)
        is_first = before == 0.0
        free = int(np.argmax(hits > 0.0)) if hits.any() else len(hits)
        assert min(rows_until_sampled(before), len(hits)) == (0 if is_first else free)


@pytest.mark.parametrize(
    ("first", "weight", "n"), [(4000, 1.0, 500), (1, 1.0, 1200), (3, 0.3, 60), (40, 25.1, 200)]
)
def test_single_rows_are_learned_past_validation_in_the_sample_or_not(
    first: int, weight: float, n: int
) -> None:
    draw = np.random.default_rng(1)
    X = draw.random((first + n, 2))
    y = (X[:, 0] > X[:, 1]).astype(int)
    w = np.where(np.arange(len(X)) < first, weight, 1.0)
    begun = {"classes": [0, 1], "sample_weight": None if weight == 1.0 else w[:first]}
    fixed: dict[str, Any] = {**FIXED, "feature_units": None, "random_state": 0}
    single = AMFClassifier(2, **fixed).partial_fit(X[:first], y[:first], **begun)
    whole = AMFClassifier(2, **fixed).partial_fit(X, y, classes=[0, 1], sample_weight=w)
    is_first = False  # of a copy, whose boxes have no encoding yet
    for r in range(first, len(X)):
        before, is_early = single.forest_.n_calls, single.forest_.total_weight < 1.0
        single.partial_fit(X[[r]], y[[r]])
        assert (single.forest_.n_calls > before) == (is_early or is_first)
        is_first = r % 401 == 0
        if r % 97 == 0:  # in between
            single.predict_proba(X[:1]), single.predict_proba(X[:3])
        if is_first:
            single = pickle.loads(pickle.dumps(single))
    assert single.forest_.calibration == whole.forest_.calibration
    assert (single.predict_proba(X) == whole.predict_proba(X)).all()
    assert pickle.dumps(single.forest_.state()) == pickle.dumps(whole.forest_.state())


def test_what_earlier_versions_stored_stays_as_it_was(tmp_path: Any) -> None:
    X = np.random.default_rng(0).random((200, 2))
    y = (X[:, 0] > 0.5).astype(int)
    earlier = AMFClassifier(2, calibrate=True, random_state=0, **FIXED).fit(X, y)
    reported = earlier.forest_.calibration.to_json()
    assert set(reported) == {"octave", "slopes"}  # as before there was a mixture
    assert Calibration.from_json(reported).weights == (1.0, 0.0)
    default = AMFClassifier(2, random_state=0, **FIXED).fit(X, y)
    found = default.forest_.calibration.to_json()
    assert Calibration.from_json(found) == default.forest_.calibration
    for damage in (math.nan, "1", 1, None):
        with pytest.raises(CorruptError, match="calibration"):
            Calibration.from_json({**found, "excess": damage})
    with pytest.raises(CorruptError, match="calibration"):  # whose exponent is no number
        Calibration.from_json({**found, "slopes": [-1.7e308] * 24 + [1.7e308]})
    state = earlier.__getstate__()
    del state["calibrate"]  # of a version that had no such parameter
    again = AMFClassifier.__new__(AMFClassifier)
    again.__setstate__(state)
    assert again.calibrate is False
    default.save(tmp_path / "model")
    for same in (dmondrian.load(tmp_path / "model"), pickle.loads(pickle.dumps(default))):
        assert same.calibrate == "auto"
        assert (same.predict_proba(X) == default.predict_proba(X)).all()
    assert new_calibration("auto", False, True) is None
    assert AMFClassifier(2, drift="follow").fit(X, y).calibration_exponent_ == 1.0


def test_weights_keep_their_digits_however_sure_they_are() -> None:
    assert Calibration(excess=0.0).weights == (0.5, 0.5)
    assert Calibration(excess=-1e9).weights == (1.0, 0.0)
    assert Calibration(excess=1e9).weights == (0.0, 1.0)
    for excess in (-300.0, -40.0, 1.0, 60.0):
        weight, rest = Calibration(excess=excess).weights
        assert weight == pytest.approx(1.0 / (1.0 + math.exp(excess)), rel=1e-14)
        assert rest == pytest.approx(1.0 / (1.0 + math.exp(-excess)), rel=1e-14)
    # Sure of a power, then wrong by far: the loss is what the bound leaves, and not that power's.
    sure = Calibration(slopes=(-1e6,) * len(EXPONENTS), excess=-50.0)
    found = sure.apply(np.array([[0.999, 0.001]]))
    assert -np.log(found[0, 1]) == pytest.approx(50.0 - np.log(0.001), rel=1e-9)


def test_merged_forests_begin_to_calibrate_anew() -> None:
    X = np.random.default_rng(0).random((300, 2), dtype=np.float32)
    y = (X[:, 0] > 0.5).astype(int)
    asked: dict[str, Any] = {"domain": "cube", "random_state": 0, "feature_units": None}
    parts = [
        MondrianForestClassifier(2, calibrate="auto", **asked).fit(X[at], y[at]).forest_
        for at in (slice(150), slice(150, 300))
    ]
    merged = merge(parts)
    assert merged.calibration == Calibration(excess=0.0)
    whole = MondrianForestClassifier(2, **asked).fit(X, y).forest_
    assert (merged.predict_sums(X).mean == whole.predict_sums(X).mean).all()
    power = MondrianForestClassifier(2, calibrate=True, **asked).fit(X, y).forest_
    with pytest.raises(ParameterError, match='calibrate=False or "auto"'):
        merge([parts[0], power])


@pytest.mark.parametrize("at", ["after", "forecast"])
def test_an_interrupt_between_trees_and_calibration_tears_the_forest(
    at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    X = np.random.default_rng(0).random((300, 2))
    y = (X[:, 0] > 0.5).astype(int)
    forest = AMFClassifier(2, random_state=0, feature_units=None, **FIXED).fit(X, y)
    before, proba = forest.forest_.calibration, forest.predict_proba(X)

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    where = (Calibration, "after") if at == "after" else (Forest, "prepare")
    with monkeypatch.context() as patch:
        patch.setattr(*where, interrupt)
        with pytest.raises(KeyboardInterrupt):
            forest.partial_fit(X, y)
    if at == "after":  # the trees have learned rows
        for call in (lambda: forest.predict_proba(X), lambda: forest.partial_fit(X, y)):
            with pytest.raises(ParameterError, match="interrupted"):
                call()
    else:
        assert forest.forest_.calibration == before
        assert (forest.predict_proba(X) == proba).all()
