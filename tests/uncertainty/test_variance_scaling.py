"""The variance of a label: what it is of a mixture, which factor, and what never changes it."""

from __future__ import annotations

import dataclasses
import itertools
import math
import pickle
from pathlib import Path

import numpy as np
import pytest

import dmondrian
from dmondrian import AMFClassifier, AMFRegressor
from dmondrian.ensemble.ensemble import Ensemble
from dmondrian.errors import CorruptError, ParameterError
from dmondrian.forest.forest import Forest
from dmondrian.prequential.stream_sample import Sampled, forecast_and_learn, sum_samples
from dmondrian.uncertainty.variance_scaling import VarianceFactor
from tests.estimators.test_amf import same_forest
from tests.reference.amf import Node
from tests.reference.cases import Case, random_case
from tests.reference.kernel import kernel_forest, reference_tree
from tests.reference.prunings import number_of_prunings, posterior_mean

FIXED = {"feature_scales": None, "random_state": 3}


def rows(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Labels whose noise is four times as large on the right, far from zero."""
    rng = np.random.default_rng(0)
    X = rng.random((n, 3), dtype=np.float32)
    noise = np.where(X[:, 0] > 0.5, 2.0, 0.5) * rng.normal(size=n)
    return X, 1000.0 + 3.0 * X[:, 1] + noise


def shortened(case: Case, n: int = 7) -> Case:
    w = None if case.w is None else case.w[:n]
    return dataclasses.replace(case, X=case.X[:n], y=case.y[:n], w=w)


def test_moments_of_a_label_are_means_over_all_prunings() -> None:
    sizes = set()
    for number in range(40):
        case = shortened(random_case(number, True))
        tree = reference_tree(case, True)
        assert tree.root is not None
        if not 1 < number_of_prunings(tree.root) <= 2000:
            continue
        sizes.add(number_of_prunings(tree.root))
        weights = np.ones(len(case.y)) if case.w is None else case.w

        def moments(node: Node, case: Case = case, w: np.ndarray = weights) -> tuple[float, float]:
            """Mean of the labels in a box, and of their squares with the variance above."""
            mean, variance = plain(node, case, w)
            if node.parent is not None:
                above = plain(node.parent, case, w)[1]
                variance = (variance * node.n_rows + above) / max(node.n_rows, 1.0)
            return mean, variance + (mean - case.y[np.argmax(w > 0)]) ** 2

        forest = kernel_forest(case, True)
        sums = forest.predict_sums(case.X[:5], labels=True)
        for i, x in enumerate(case.X[:5]):
            path = tree.path_to_root(tree.leaf_of(list(x)))
            mean, square = posterior_mean(tree.root, path, moments)
            assert sums.total[i, 0] == pytest.approx(mean, rel=1e-9)
            assert sums.square[i, 0] == pytest.approx(square, rel=1e-8, abs=1e-9)
    assert len(sizes) > 4


def plain(node: Node, case: Case, w: np.ndarray) -> tuple[float, float]:
    """Mean and variance of the labels of a node's rows, which lie in its box and nowhere else."""
    lower, upper = np.array(node.lower), np.array(node.upper)
    inside = ((lower <= case.X) & (upper >= case.X)).all(axis=1) & (w > 0)
    assert w[inside].sum() == pytest.approx(node.n_rows)
    mean = float(np.average(case.y[inside], weights=w[inside]))
    return mean, float(np.average((case.y[inside] - mean) ** 2, weights=w[inside]))


def test_the_mean_beside_a_deviation_is_the_prediction() -> None:
    X, y = rows(3000)
    forest = AMFRegressor(4, **FIXED).fit(X, y)
    mean, std = forest.predict(X, return_std=True)
    assert (mean == forest.predict(X)).all()
    assert std[X[:, 0] > 0.5].mean() > 2.0 * std[X[:, 0] < 0.5].mean()
    few = [forest.predict(X[i : i + 1], return_std=True) for i in range(20)]  # not frozen
    assert [(m[0], s[0]) for m, s in few] == list(zip(mean[:20], std[:20], strict=True))
    parts = [Forest(forest.forest_.parameters, numbers) for numbers in ([0, 1], [2, 3])]
    sums = None
    for part in parts:
        part.update(X, y)
        sums = part.predict_sums(X, spread=True, labels=True, onto=sums)
    assert sums is not None
    assert (np.sqrt(sums.variance[:, 0]) == std).all()


@pytest.mark.parametrize("farther", [1.0, 1e6])
def test_the_factor_is_that_of_forecasts_made_by_hand(
    farther: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where some cells vary a millionth as much as others."""
    monkeypatch.setattr("dmondrian.prequential.stream_sample.DENSITY", 64.0)
    n = 400
    X, y = rows(n)
    y = np.where(X[:, 0] > 0.95, farther * (y - 1000.0), y)
    plain_one = AMFRegressor(3, **FIXED).partial_fit(X[:1], y[:1])
    weight = squares = 0.0
    octave = 0
    for t in range(1, n):
        now = t.bit_length() - 1
        if t % max(1, 2**now // 64) == 0:
            mean, std = plain_one.predict(X[t : t + 1], return_std=True)
            fading = 0.25 ** (now - octave)
            octave = now
            error = abs(y[t] - mean[0])
            reported = 100.0 if error >= 10.0 * std[0] else (error / std[0]) ** 2
            weight, squares = fading * weight + 1.0, fading * squares + reported
        plain_one.partial_fit(X[t : t + 1], y[t : t + 1])
    forest = AMFRegressor(3, calibrate=True, **FIXED).fit(X, y)
    found = forest.forest_.calibration
    assert isinstance(found, VarianceFactor)
    assert (found.octave, found.weight) == (octave, weight)
    assert found.squares == pytest.approx(squares, rel=1e-6)
    assert forest.variance_factor_ == pytest.approx((squares + 8.0) / (weight + 8.0), rel=1e-6)
    std = plain_one.predict(X, return_std=True)[1] * math.sqrt(forest.variance_factor_)
    np.testing.assert_allclose(forest.predict(X, return_std=True)[1], std, rtol=1e-12)
    assert plain_one.variance_factor_ == 1.0


def test_it_makes_deviations_right_and_costs_no_byte_of_the_trees() -> None:
    X, noise = rows(6000)
    y = 0.1 * noise + 10.0 * np.sin(3.0 * X[:, 0] * X[:, 1])
    forest = AMFRegressor(30, calibrate=True, **FIXED).fit(X[:4000], y[:4000])
    bare = AMFRegressor(30, **FIXED).fit(X[:4000], y[:4000])
    factor, forest.forest_.calibration = forest.forest_.calibration, None
    assert same_forest(forest, bare)
    forest.forest_.calibration = factor
    off = []
    for one in (forest, bare):
        mean, std = one.predict(X[4000:], return_std=True)
        off.append(float((((y[4000:] - mean) / std) ** 2).mean()))
    assert abs(math.log(off[0])) < 0.1
    assert abs(math.log(off[1])) > 0.2


def grown(cuts: list[int], n_threads: int | None = None, **given: object) -> AMFRegressor:
    X, y = rows(1500)
    y = 0.1 * y + 20.0 * np.sin(6.0 * X[:, 1])  # one column tells nearly all: scales are chosen
    w = np.random.default_rng(1).choice([0.0, 0.5, 1.0, 3.0], 1500)
    forest = AMFRegressor(3, calibrate=True, n_jobs=n_threads, **{**FIXED, **given})
    for start, stop in itertools.pairwise([0, *cuts, 1500]):
        forest.partial_fit(X[start:stop], y[start:stop], sample_weight=w[start:stop])
    return forest


@pytest.mark.parametrize("scales", [None, "learned"])
@pytest.mark.thorough(but="None")
def test_batches_threads_and_files_keep_it_to_the_last_bit(
    scales: str | None, tmp_path: Path
) -> None:
    given = {"feature_scales": scales, "warmup_rows": 400}
    whole = grown([], **given)
    assert whole.variance_factor_ != 1.0
    assert (whole.feature_scales_ == 1.0).all() == (scales is None)
    cuts = [[1, 2, 399, 401, 900], list(range(50, 1500, 50))]
    others = [grown(cut, **given) for cut in cuts]
    for other in (*others, grown([700], n_threads=2, **given)):
        assert other.forest_.calibration == whole.forest_.calibration
        assert same_forest(other, whole)
    whole.save(tmp_path / "model")
    X = rows(50)[0]
    for copy in (dmondrian.load(tmp_path / "model"), pickle.loads(pickle.dumps(whole))):
        assert copy.forest_.calibration == whole.forest_.calibration
        for one, other in zip(copy.predict(X, True), whole.predict(X, True), strict=True):
            assert (one == other).all()


@pytest.mark.parametrize("kind", [AMFClassifier, AMFRegressor])
@pytest.mark.thorough(but="AMFClassifier")  # whose kernels other tests compile
def test_rows_begun_anew_for_lack_of_memory_are_forecast_once(kind: type) -> None:
    X, y = rows(300)
    if kind is AMFClassifier:
        y = np.arange(300) % 2
    more = {"classes": [0, 1]} if kind is AMFClassifier else {}
    whole = kind(2, domain="cube", calibrate=True, **FIXED).fit(X, y)
    parts = kind(2, domain="cube", calibrate=True, **FIXED)
    for start in range(0, 300, 10):
        parts.partial_fit(X[start : start + 10], y[start : start + 10], **more)
        parts = pickle.loads(pickle.dumps(parts))  # without the capacity that the trees had
    assert parts.forest_.calibration == whole.forest_.calibration
    assert same_forest(parts, whole)


@pytest.mark.parametrize("w", [[0.6, 0.6], [1e-100, 2.0, 1.0], [0.25, 0.25, 3.5]])
def test_first_rows_may_be_light(w: list[float], tmp_path: Path) -> None:
    X, y = rows(len(w))
    for kind in (AMFRegressor, AMFClassifier):
        labels = y if kind is AMFRegressor else np.arange(len(w)) % 2
        forest = kind(2, calibrate=True, **FIXED).fit(X, labels, sample_weight=w)
        found = forest.forest_.calibration
        assert found is not None
        assert found != type(found)()
        assert found.octave == int(w == [1e-100, 2.0, 1.0])  # of the last row asked about
        forest.save(tmp_path / kind.__name__)
        assert dmondrian.load(tmp_path / kind.__name__).forest_.calibration == found


def test_light_rows_are_not_taken_for_spread() -> None:
    X, y = rows(500)
    forest = AMFRegressor(2, **FIXED).fit(X, y, sample_weight=np.full(500, 1e-4))
    assert (forest.predict(X, return_std=True)[1] < math.sqrt(2.0) * y.std()).all()


def test_sums_of_shards_are_those_of_all_trees() -> None:
    X, y = rows(900)
    parameters = AMFRegressor(5, **FIXED).fit(X[:2], y[:2]).forest_.parameters
    reported: list[Sampled] = []
    for numbers in (range(5), [0, 3], [1], [2, 4]):
        reported.append(forecast_and_learn(Ensemble(parameters, numbers), X, y))
    joined = sum_samples(reported[1:])
    for name in Sampled._fields:
        assert (getattr(joined, name) == getattr(reported[0], name)).all(), name
    for part in reported[1:]:
        assert (part.units == reported[0].units).all()
    factor = VarianceFactor()
    assert factor.after(joined, y, 5) == factor.after(reported[0], y, 5)


@pytest.mark.parametrize("label", [0.0, 7.0])
def test_labels_without_spread_leave_it_at_one(label: float) -> None:
    X = rows(100)[0]
    forest = AMFRegressor(2, calibrate=True, **FIXED).fit(X, np.full(100, label))
    assert forest.variance_factor_ == 1.0
    mean, std = forest.predict(X, return_std=True)
    assert (mean == label).all()
    assert (std == 0.0).all()


@pytest.mark.parametrize("y", [np.array([0.0] * 50 + [1e130] * 50), 1e130 * np.arange(100.0)])
def test_the_largest_labels_leave_it_a_number(y: np.ndarray) -> None:
    forest = AMFRegressor(2, calibrate=True, **FIXED).fit(rows(100)[0], y)
    assert 0.0 < forest.variance_factor_ <= 100.0
    assert np.isfinite(forest.predict(rows(100)[0], return_std=True)[1]).all()


def test_what_no_forest_can_answer_is_refused() -> None:
    forest = AMFRegressor(2, **FIXED).fit(*rows(20))
    with pytest.raises(ParameterError, match="default lifetime only"):
        forest.forest_.predict_sums(rows(20)[0], labels=True, lifetimes=np.array([1.0]))
    empty = AMFRegressor(2, **FIXED).partial_fit(*rows(5), sample_weight=np.zeros(5))
    with pytest.raises(ParameterError, match="fit it first"):
        empty.predict(rows(5)[0], return_std=True)


@pytest.mark.parametrize(
    "reported",
    [
        None,
        {"octave": 1, "weight": 1.0},
        {"octave": -1, "weight": 1.0, "squares": 1.0},
        {"octave": 1, "weight": -1.0, "squares": 1.0},
        {"octave": 1, "weight": 1, "squares": 1.0},
        {"octave": 1, "weight": 1.0, "squares": 101.0},
        {"octave": 1, "weight": 1.0, "squares": math.inf},
        {"octave": 0, "slopes": [0.0] * 25},
    ],
)
def test_what_no_forest_has_is_refused(reported: object) -> None:
    with pytest.raises(CorruptError, match="variance factor"):
        VarianceFactor.from_json(reported)
