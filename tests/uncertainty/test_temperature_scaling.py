"""Calibration: which exponent, from which rows, and what never changes it."""

from __future__ import annotations

import dataclasses
import math
import pickle
from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from sklearn.datasets import make_classification

import dmondrian
from dmondrian import AMFClassifier, MondrianForestClassifier
from dmondrian.ensemble.ensemble import Ensemble
from dmondrian.ensemble.sums.exact_sums import ONE
from dmondrian.errors import CorruptError, ParameterError
from dmondrian.forest.forest import Forest
from dmondrian.forest.merge import merge
from dmondrian.prequential.stream_sample import DENSITY, Sampled, forecast_and_learn
from dmondrian.prequential.stream_sample_kernels import write_hits
from dmondrian.uncertainty.temperature_scaling import EXPONENTS, Calibration
from dmondrian.uncertainty.temperature_scaling_kernels import FLOOR
from tests.estimators.test_amf import same_forest

FIXED = {"feature_scales": None, "alpha": 0.1, "charge_opening": False, "random_state": 3}


def rows(n: int, n_classes: int = 3) -> tuple[np.ndarray, np.ndarray]:
    X, y = make_classification(
        n, 8, n_informative=6, n_redundant=0, n_classes=n_classes, flip_y=0.0, class_sep=2.0,
        random_state=0,
    )  # fmt: skip
    return X.astype(np.float32), y


def power_loss(proba: np.ndarray, y: np.ndarray, b: float, w: np.ndarray) -> float:
    """Summed log loss of p^b over its sum."""
    powers = np.maximum(proba, FLOOR) ** b
    shares = powers[np.arange(len(y)), y.astype(int)] / powers.sum(axis=1)
    return float((-np.log(shares) * w).sum())


def marks(end: int, density: int) -> set[int]:
    """Whole numbers 1, 2, ... up to density, then density of each doubling."""
    return {t for t in range(1, end) if t % max(1, 2 ** (t.bit_length() - 1) // density) == 0}


def test_marks_are_where_they_belong() -> None:
    before, hits = np.empty(10_000), np.empty(10_000)
    write_hits(0.0, np.empty(0), 64.0, before, hits)
    assert (before == np.arange(10_000)).all()
    assert set(np.flatnonzero(hits).tolist()) == marks(10_000, 64)
    assert set(np.unique(hits)) == {0.0, 1.0}
    w = np.random.default_rng(0).choice([0.0, 0.3, 1.0, 2.5, 7.0, 3000.0], 2000)
    before, hits = before[:2000], hits[:2000]
    write_hits(0.0, w, 64.0, before, hits)
    total = np.concatenate([[0.0], np.cumsum(w)])
    known = sorted(marks(int(total[-1]) + 1, 64))
    np.testing.assert_allclose(before, total[:-1], rtol=1e-12)
    expected = np.diff(np.searchsorted(known, [*before.tolist(), total[-1]]))
    assert (hits == np.where(before > 0.0, expected, 0)).all()
    assert (hits[w == 0.0] == 0.0).all()


@pytest.mark.parametrize("first", [[0.0, 3.0], [2.0], [2.5], [3000.0]])
def test_the_first_row_is_not_asked_about_whatever_it_weighs(first: list[float]) -> None:
    w = np.array([*first, 1.0, 2.0, 1.0])
    before, hits = np.empty(len(w)), np.empty(len(w))
    write_hits(0.0, w, 64.0, before, hits)
    assert not hits[before == 0.0].any()
    X, y = rows(len(w), n_classes=2)
    parts = AMFClassifier(3, calibrate=True, **FIXED)
    for r in range(len(w)):
        parts.partial_fit(X[[r]], y[[r]], classes=[0, 1], sample_weight=w[[r]])
    whole = AMFClassifier(3, calibrate=True, **FIXED)
    whole.partial_fit(X, y, classes=[0, 1], sample_weight=w)
    assert same_forest(parts, whole)
    assert parts.calibration_exponent_ == whole.calibration_exponent_


def by_hand(n: int, density: int) -> tuple[list[np.ndarray], list[int], AMFClassifier]:
    """Forecasts of marked rows by a forest that has learned the rows before."""
    X, y = rows(n)
    forest = AMFClassifier(3, calibrate=False, **FIXED)
    forest.partial_fit(X[:1], y[:1], classes=[0, 1, 2])
    asked = sorted(marks(n, density))
    reported = []
    for t, end in zip(asked, [*asked[1:], n], strict=True):
        reported.append(forest.predict_proba(X[t : t + 1])[0])
        forest.partial_fit(X[t:end], y[t:end])
    return reported, asked, forest


def test_slopes_are_those_of_forecasts_made_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dmondrian.prequential.stream_sample.DENSITY", 64.0)
    n = 500
    X, y = rows(n)
    reported, asked, plain = by_hand(n, 64)
    forest = AMFClassifier(3, calibrate=True, **FIXED).fit(X, y)
    assert same_forest(bare(forest), plain)
    slopes = [0.0] * len(EXPONENTS)
    octave = 0
    for t, proba in zip(asked, reported, strict=True):
        now = t.bit_length() - 1
        slopes = [slope * 0.25 ** (now - octave) for slope in slopes]
        octave = now
        logs = [math.log(p) for p in proba]
        for i, b in enumerate(EXPONENTS):
            powers = [math.exp(b * z) for z in logs]
            mean = sum(p * z for p, z in zip(powers, logs, strict=True)) / sum(powers)
            slopes[i] += mean - logs[y[t]]
    found = forest.forest_.calibration
    assert found is not None
    assert found.octave == octave
    np.testing.assert_allclose(found.slopes, slopes, rtol=1e-7, atol=1e-7)


def bare(forest: AMFClassifier) -> AMFClassifier:
    """Return a copy without its calibration, which is no part of the trees."""
    copied = pickle.loads(pickle.dumps(forest))
    copied.forest_.calibration = None
    return copied


def sampled_by(forest: AMFClassifier, n: int) -> tuple[Sampled, np.ndarray]:
    X, y = rows(n)
    anew = Ensemble(forest.forest_.parameters, range(forest.n_estimators))
    sampled = forecast_and_learn(anew, X, y.astype(np.float64))
    return sampled, sampled.sums / (forest.n_estimators * ONE)


@pytest.mark.parametrize("n", [40, 700, 6000])
def test_the_exponent_is_the_optimum_of_the_fading_loss_and_the_prior(n: int) -> None:
    X, y = rows(n)
    forest = AMFClassifier(5, calibrate=True, **FIXED).fit(X, y)
    sampled, proba = sampled_by(forest, n)
    octave = np.floor(np.log2(sampled.before))
    w = sampled.hits * 0.25 ** (octave[-1] - octave)

    def objective(b: float) -> float:
        return power_loss(proba, y[sampled.rows], b, w) + 8.0 * (b - 1.0 - math.log(b))

    best = minimize_scalar(objective, bounds=(0.25, 16.0), method="bounded").x
    assert forest.calibration_exponent_ == pytest.approx(best, rel=0.01)
    assert abs(best - 1.0) > 0.05  # else there is nothing to calibrate


@pytest.mark.parametrize("n", [5000, 9000])
def test_the_exponent_is_near_the_batch_optimum_of_the_last_octave(n: int) -> None:
    X, y = rows(n)
    forest = AMFClassifier(5, calibrate=True, **FIXED).fit(X, y)
    start = n // 2
    anew = AMFClassifier(5, calibrate=False, **FIXED)
    anew.partial_fit(X[:start], y[:start], classes=[0, 1, 2])
    reported = []  # of all rows, in small steps, by another way than the sample's
    for at in range(start, n, 50):
        reported.append(anew.predict_proba(X[at : at + 50]))
        anew.partial_fit(X[at : at + 50], y[at : at + 50])
    proba, labels = np.concatenate(reported), y[start:]
    ones = np.ones(len(labels))
    best = minimize_scalar(
        lambda b: power_loss(proba, labels, b, ones), bounds=(0.25, 16.0), method="bounded"
    )
    found = power_loss(proba, labels, forest.calibration_exponent_, ones)
    plain = power_loss(proba, labels, 1.0, ones)
    assert found - best.fun < 0.05 * (plain - best.fun)
    assert (plain - best.fun) / len(labels) > 0.01


@pytest.mark.parametrize("calibrate", [True, "auto"])
@pytest.mark.thorough(but="auto")
def test_chunks_threads_and_storing_change_no_byte(tmp_path: Path, calibrate: bool | str) -> None:
    X, y = rows(1500)
    w = np.random.default_rng(0).choice([0.0, 1.0, 2.0, 0.5], len(X))
    given = {"calibrate": calibrate, "feature_scales": None, "warmup_rows": 700, "random_state": 1}
    whole = AMFClassifier(3, **given).fit(X, y, w)
    calibration = whole.forest_.calibration
    assert calibration is not None
    for size in (1, 37, 600):
        parts = AMFClassifier(3, n_jobs=2, **given)
        for start in range(0, len(X), size):
            at = slice(start, start + size)
            parts.partial_fit(X[at], y[at], classes=[0, 1, 2], sample_weight=w[at])
        assert parts.forest_.calibration == calibration
        assert same_forest(whole, parts)
    for n in (300, 1200):  # before and after the settings are chosen
        begun = AMFClassifier(3, **given)
        begun.partial_fit(X[:n], y[:n], classes=[0, 1, 2], sample_weight=w[:n])
        begun.save(tmp_path / str(n))
        for again in (dmondrian.load(tmp_path / str(n)), pickle.loads(pickle.dumps(begun))):
            assert (again.predict_proba(X) == begun.predict_proba(X)).all()
            again.partial_fit(X[n:], y[n:], sample_weight=w[n:])
            assert again.forest_.calibration == calibration
            assert same_forest(whole, again)
    fixed = AMFClassifier(
        3,
        calibrate=calibrate,
        alpha=whole.alpha_,
        charge_opening=whole.charge_opening_,
        random_state=1,
        feature_scales=None,
    ).fit(X, y, w)
    assert fixed.forest_.calibration == calibration  # as if the settings had been known


def test_sums_do_not_depend_on_how_trees_are_cut() -> None:
    X, y = rows(900)
    drawn = AMFClassifier(7, **FIXED)._forest_parameters(8, 3)
    cuts: list[list[range]] = [[range(7)], [range(2), range(2, 7)], [range(6), range(6, 7)]]
    sums = []
    for cut in cuts:
        sampled = [forecast_and_learn(Ensemble(drawn, part), X, y.astype(float)) for part in cut]
        assert all((one.rows == sampled[0].rows).all() for one in sampled)
        sums.append(sum(one.sums for one in sampled[1:]) + sampled[0].sums)
    assert sums[0].tobytes() == sums[1].tobytes() == sums[2].tobytes()


def test_probabilities_are_raised_to_the_exponent() -> None:
    X, y = rows(800)
    forest = AMFClassifier(3, calibrate=True, **FIXED).fit(X, y)
    raw = bare(forest)
    assert raw.calibration_exponent_ == 1.0
    b, proba = forest.calibration_exponent_, raw.predict_proba(X)
    assert b > 1.05
    expected = proba**b / (proba**b).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(forest.predict_proba(X), expected, rtol=1e-12)
    assert (forest.predict(X) == raw.predict(X)).all()
    zeros = Calibration().apply(np.array([[0.0, 0.25, 0.75], [0.0, 0.0, 1.0]]))
    np.testing.assert_allclose(zeros, [[0.0, 0.25, 0.75], [0.0, 0.0, 1.0]], atol=1e-11)
    assert (zeros > 0.0).all()


def test_few_rows_leave_the_probabilities_nearly_as_they_are() -> None:
    X, y = rows(12)
    one = AMFClassifier(3, calibrate=True, **FIXED).partial_fit(X[:1], y[:1], classes=[0, 1, 2])
    assert one.calibration_exponent_ == pytest.approx(1.0, rel=1e-15)
    assert abs(math.log(AMFClassifier(3, calibrate=True).fit(X, y).calibration_exponent_)) < 0.5
    assert Calibration(5, (-100.0,) * len(EXPONENTS)).exponent == EXPONENTS[-1]
    assert Calibration(5, (100.0,) * len(EXPONENTS)).exponent == EXPONENTS[0]


@pytest.mark.thorough(but="mean")
@pytest.mark.parametrize("aggregation", ["mean", "vote", "hierarchy"])
def test_a_lifetime_of_its_own_is_not_calibrated(aggregation: str) -> None:
    X, y = rows(800)
    given = {"aggregation": aggregation, "calibrate": True, "random_state": 0}
    forest = MondrianForestClassifier(3, **given).fit(X, y)
    assert forest.calibration_exponent_ != 1.0
    at = forest.predict_proba(X, lifetime=forest.lifetime_)
    calibration = forest.forest_.calibration
    assert calibration is not None
    assert (forest.predict_proba(X) == calibration.apply(at)).all()


def test_what_cannot_be_calibrated_is_refused() -> None:
    X, y = rows(60)
    X = (X - X.min(0)) / np.ptp(X, axis=0)
    given = {"domain": "cube", "clip": True, "calibrate": True}
    part = MondrianForestClassifier(2, random_state=0, **given).fit(X, y).forest_
    with pytest.raises(ParameterError, match="calibrate=False"):
        merge([part, part])
    header, trees = part.state()
    reported = header["calibration"]
    for damage in (
        3,
        {},
        {**reported, "octave": -1},
        {**reported, "octave": 1.5},
        {**reported, "slopes": reported["slopes"][1:]},
        {**reported, "slopes": [math.nan, *reported["slopes"][1:]]},
        {**reported, "slopes": ["0", *reported["slopes"][1:]]},
    ):
        with pytest.raises(CorruptError, match="calibration"):
            Forest.from_state({**header, "calibration": damage}, trees)
    with pytest.raises(ValueError, match="'calibrate' parameter"):
        AMFClassifier(calibrate="yes").fit(X, y)
    assert dataclasses.replace(Calibration.from_json(reported)) == part.calibration
    assert 2.0 ** round(math.log2(DENSITY)) == DENSITY  # marks are whole numbers only then
