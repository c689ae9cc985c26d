"""Features of whole multiples are written as steps, which shows in the memory alone."""

from __future__ import annotations

import numpy as np
import pytest

from dmondrian.estimators.single_row import SingleRow
from dmondrian.forest.forest import Forest
from dmondrian.tree import box_encoding_choice
from dmondrian.tree.box_encoding import read_only
from tests.tree.test_box_encoding import CASES, ROWS, bytes_of, grown


def draw_in_steps(number: int) -> tuple[np.ndarray, np.ndarray]:
    """Return rows of whole multiples, of units and ranges of all kinds, some of which end late."""
    rng = np.random.default_rng(number)
    X = rng.integers(0, 5000, (ROWS, 24)) * np.exp2(rng.integers(-20, 20, 24))
    X[:, 0] = rng.integers(-16383, 16384, ROWS)  # as far apart as they are allowed to be
    X[:, 1] = 1e6 + rng.integers(0, 7, ROWS)  # far from 0
    X[:, 2] = 3.0  # constant
    X[:, 3:6] = rng.integers(0, 2, (ROWS, 3))  # binary
    X[:, 6] = np.where(np.arange(ROWS) < 500, X[:, 6], rng.random(ROWS))  # finer, late
    X[:, 7] = np.where(np.arange(ROWS) < 600, X[:, 7], 100.0 * X[:, 7])  # wider, late
    X[:, 8] = np.where(np.arange(ROWS) < 700, X[:, 8], -X[:, 8])  # -0 among them, late
    X[:, 9] = rng.random(ROWS)
    X = X[:, rng.permutation(24)].astype(np.float32)
    return X, (X[:, 3] > np.median(X[:, 3])).astype(np.float64)


def without_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have no feature written as steps: none has values near enough."""
    monkeypatch.setattr(box_encoding_choice, "_WIDEST", -1.0)


@pytest.mark.parametrize("changes", CASES, ids=["classes", "labels", "expected", "cube"])
def test_how_boxes_are_written_in_steps_changes_no_byte(
    changes: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    X, y = draw_in_steps(1)
    if changes.get("domain"):
        X = np.abs(X)
        X = (X / np.exp2(np.ceil(np.log2(X.max(axis=0))))).astype(np.float32)
    pieces, whole = grown(X, y, 37, **changes), grown(X, y, ROWS, **changes)
    early = grown(X[:400], y[:400], 37, **changes)
    read = Forest.from_state(*pieces.state())
    assert len(early.trees[0].columns.stepped) >= 18
    assert len(pieces.trees[0].columns.stepped) >= 14
    asked = X[::3] * np.float32(0.9)  # values that no box has
    asked[::2] = X[::3][::2]
    predicted = [one.predict_sums(asked, spread=True, distance=True)[:3] for one in (pieces, read)]
    without_steps(monkeypatch)
    plain = grown(X, y, 37, **changes)
    assert len(plain.trees[0].columns.stepped) == 0
    assert bytes_of(pieces) == bytes_of(whole) == bytes_of(read) == bytes_of(plain)
    assert bytes_of(early) == bytes_of(grown(X[:400], y[:400], 400, **changes))
    expected = plain.predict_sums(asked, spread=True, distance=True)[:3]
    for ours in predicted:
        for one, other in zip(ours, expected, strict=True):
            assert one.tobytes() == other.tobytes()


def test_single_rows_are_learned_in_steps_as_together(monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = draw_in_steps(2)
    forest, n_alone = grown(X[:300], y[:300], 300), 0
    alone = SingleRow(forest)
    for r in range(300, ROWS):
        if alone.learn(X[r : r + 1], y[r]):
            n_alone += 1
        else:
            forest.update(X[r : r + 1], y[r : r + 1])
    assert ROWS - 310 < n_alone < ROWS - 300  # one at least was of no multiple
    without_steps(monkeypatch)
    assert bytes_of(forest) == bytes_of(grown(X, y, ROWS))


def test_a_feature_is_written_in_steps_where_16_bits_hold_them() -> None:
    cases = {
        "whole": (np.arange(200.0), True),
        "all that fit": (np.array([0.0, 1.0, 32_767.0]), True),
        "one too many": (np.array([0.0, 1.0, 32_768.0]), False),
        "seven eighths": (np.arange(0.0, 4_095.0, 0.875), True),
        "too many eighths": (np.arange(0.0, 4_098.0, 0.875), False),
        "even multiples": (np.array([0.0, 2.0, 65_534.0]), True),
        "parts of a unit": (np.array([0.0, 0.5, 40_000.0]), False),
        "any": (np.random.default_rng(0).random(100), False),
        "0 and -0": (np.array([1.0, -0.0, 2.0]), False),
        "subnormal": (np.array([0.0, 1e-40]), False),
        "tiny beside large": (np.array([1.0, 1e-30]), False),
        "too tiny": (np.array([0.0, 2.0**-101, 2.0**-102]), False),
        "far from 0": (2.0**23 + np.arange(10.0), True),
        "farther": (2.0**60 + 2.0**37 * np.arange(3.0), True),
        "as large as units": (2.0**113 * np.arange(3.0), True),
        "larger": (2.0**114 * np.arange(3.0), False),
        "as small": (2.0**-100 * np.arange(3.0), True),
    }
    for name, (values, is_stepped) in cases.items():
        X = read_only(np.asarray(values, np.float32)[:, None])
        columns = box_encoding_choice.find_columns(1, [], X)
        assert (len(columns.stepped) == 1) == is_stepped, name
        written = box_encoding_choice.rows_of(X, columns)
        assert written.fit_steps, name
        if is_stepped:
            steps = written.rows.steps[:, 0].astype(float)
            reported = (steps + columns.origins[0]) * columns.units[0]
            assert reported.astype(np.float32).tobytes() == X.tobytes(), name


def test_steps_allow_wider_rows_where_values_do() -> None:
    X = np.arange(100.0, dtype=np.float32)[:, None]
    columns = box_encoding_choice.find_columns(1, [], X)
    for values, fits in (
        ([-100.0, 250.0], True),
        ([1e5], False),
        ([0.001], False),
        ([-0.0], False),
    ):
        reported = read_only(np.array(values, np.float32)[:, None])
        assert box_encoding_choice.rows_of(reported, columns).fit_steps == fits


def test_distances_are_added_up_in_one_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each lane of a sum has floats and steps, of sizes far apart, which learning adds in turn."""
    rng, is_whole = np.random.default_rng(0), np.arange(48) // 8 % 2 == 0
    parts = rng.random((600, 48)) * 10.0 ** rng.integers(-9, 6, 48)
    X = np.where(is_whole, rng.integers(0, 5000, (600, 48)), parts).astype(np.float32)
    asked = X[:300] * np.float32(1.37)
    asked = np.where(is_whole, np.rint(asked), asked)
    y = (X[:, 0] > np.median(X[:, 0])).astype(np.float64)

    def reported() -> tuple[Forest, np.ndarray, np.ndarray]:
        forest = grown(X, y, 600)
        forest.freeze()
        together = forest.predict_sums(asked, distance=True).distance
        alone = [forest.predict_sums(row[None], distance=True).distance for row in asked]
        return forest, together, np.concatenate(alone)

    forest, together, alone = reported()
    columns = forest.trees[0].columns
    assert len(columns.stepped) == len(columns.numeric) == 24
    without_steps(monkeypatch)
    assert together.tobytes() == alone.tobytes() == reported()[1].tobytes()


@pytest.mark.parametrize("changes", CASES, ids=["classes", "labels", "expected", "cube"])
def test_rows_that_do_not_fit_are_asked_about_as_they_are(
    changes: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    X, y = draw_in_steps(4)
    X[:, X.max(axis=0) > 4e4] = 1.0
    if changes.get("domain"):
        X = np.abs(X)
        X = (X / np.exp2(np.ceil(np.log2(X.max(axis=0))))).astype(np.float32)
    forest = grown(X[:400], y[:400], 400, **changes)
    columns = forest.trees[0].columns
    assert min(len(columns.stepped), len(columns.binary)) >= 3
    asked = X[400:] * np.float32(0.9)
    if not changes.get("domain"):
        asked[::7] *= np.float32(-1e6)
    trees = list(forest.trees)
    predicted = forest.predict_sums(asked, spread=True, distance=True)[:3]
    alone = [forest.predict_sums(row[None], spread=True, distance=True)[:3] for row in asked]
    assert all(mine is other for mine, other in zip(forest.trees, trees, strict=True))
    without_steps(monkeypatch)
    monkeypatch.setattr(box_encoding_choice, "_LEAST", 10_000)
    plain = grown(X[:400], y[:400], 400, **changes)
    assert not len(plain.trees[0].columns.stepped) + len(plain.trees[0].columns.binary)
    expected = plain.predict_sums(asked, spread=True, distance=True)[:3]
    for k in range(3):
        assert predicted[k].tobytes() == expected[k].tobytes()
        assert predicted[k].tobytes() == np.concatenate([one[k] for one in alone]).tobytes()


def test_features_that_grow_wider_are_written_anew_a_few_times(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng, n_fitted = np.random.default_rng(0), []
    X = np.rint(rng.random((2500, 6)) * 100.0 + 30.0 * np.arange(2500.0)[:, None])
    X, y = X.astype(np.float32), np.arange(2500.0) % 2.0
    forest, fitted = grown(X[:500], y[:500], 500), box_encoding_choice.fitted
    monkeypatch.setattr(
        box_encoding_choice, "fitted", lambda *given: n_fitted.append(1) or fitted(*given)
    )
    for r in range(500, 2500):
        forest.update(X[r : r + 1], y[r : r + 1])
    assert 1 <= len(n_fitted) <= 4
    assert len(forest.trees[0].columns.stepped) == 0


def test_few_features_in_steps_are_written_as_the_others() -> None:
    X = np.random.default_rng(0).random((50, 9), np.float32)
    X[:, :4] = np.rint(100.0 * X[:, :4])
    assert len(box_encoding_choice.find_columns(9, [], X).stepped) == 0
    assert box_encoding_choice.find_columns(9, [], X[:, 1:]).stepped.tolist() == []
    assert box_encoding_choice.find_columns(8, [], X[:, :8]).stepped.tolist() == [0, 1, 2, 3]
