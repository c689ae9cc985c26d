"""Curves from histograms of scores, against scikit-learn's from the rows."""

from __future__ import annotations

import json

import numpy as np
import pytest
from sklearn.metrics import (
    average_precision_score,
    precision_recall_curve,
    roc_auc_score,
    roc_curve,
)

from dmondrian import CorruptError
from dmondrian.distributed.metrics.error_histogram import Outcomes
from dmondrian.distributed.metrics.octave_bins import bins_of_sizes, edges_of_shares, lower_bound
from dmondrian.distributed.metrics.score_histogram import MOST_CLASSES, ScoreHistogram


def forecasts(k: int, n: int = 3000, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Probabilities that say something of the labels, and are near 0 and 1 too; labels; weights."""
    draw = np.random.default_rng(seed)
    proba = draw.dirichlet(np.full(k, 0.2), n)
    y = np.array([draw.choice(k, p=0.5 * row + 0.5 / k) for row in proba]) * 1.0
    return proba, y, draw.integers(0, 3, n) * 0.7


def counted(proba: np.ndarray, y: np.ndarray, weight: np.ndarray) -> ScoreHistogram:
    found = ScoreHistogram()
    found.add(proba, y, weight)
    return found


@pytest.mark.parametrize("k", [2, 3, 7])
def test_curves_of_scores_on_bounds_of_bins_are_those_of_scikit_learn(k: int) -> None:
    proba, y, weight = forecasts(k)
    proba = np.floor(proba * 16.0) / 16.0  # bounds of bins, many rows on each
    found = counted(proba, y, weight).curves()
    assert sorted(found) == list(range(k))
    for c, curve in found.items():
        is_own, score = y == c, proba[:, c]
        if (k, c) == (2, 0):
            score = 1.0 - proba[:, 1]
        false, true, _ = roc_curve(is_own, score, sample_weight=weight, drop_intermediate=False)
        np.testing.assert_allclose(curve.false_positives, false)
        np.testing.assert_allclose(curve.true_positives, true)
        precision, recall, _ = precision_recall_curve(is_own, score, sample_weight=weight)
        np.testing.assert_allclose(curve.precision[1:], precision[-2::-1])
        np.testing.assert_allclose(curve.true_positives, recall[::-1])
        assert curve.auc == pytest.approx(roc_auc_score(is_own, score, sample_weight=weight))
        wanted = average_precision_score(is_own, score, sample_weight=weight)
        assert curve.average_precision == pytest.approx(wanted)
        assert curve.share == pytest.approx(np.average(is_own, weights=weight))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("k", [2, 5])
def test_the_area_is_as_near_to_that_of_the_rows_as_it_claims(k: int, seed: int) -> None:
    proba, y, weight = forecasts(k, 500, seed)
    for c, curve in counted(proba, y, weight).curves().items():
        wanted = roc_auc_score(y == c, proba[:, c], sample_weight=weight)
        assert abs(curve.auc - wanted) <= curve.auc_error + 1e-12
        assert 0.0 < curve.auc_error < (0.01 if k == 2 else 0.04)
        precise = average_precision_score(y == c, proba[:, c], sample_weight=weight)
        assert abs(curve.average_precision - precise) < 0.02


def test_rare_classes_are_ranked_among_small_probabilities() -> None:
    """All probabilities below 1 %: bins of one width would see one bin."""
    draw = np.random.default_rng(0)
    share = 0.01 * draw.random(20_000) ** 3
    y = (draw.random(20_000) < share) * 1.0
    (curve,) = [counted(np.stack([1.0 - share, share], 1), y, np.ones(20_000)).curves()[1]]
    assert curve.auc == pytest.approx(roc_auc_score(y, share), abs=0.002)
    assert curve.auc > 0.7


def test_neither_cuts_nor_json_between_them_change_a_bit() -> None:
    for k in (2, 4):
        rows = forecasts(k)
        found = ScoreHistogram()
        for part in zip(*(np.split(each, (1, 700, 701)) for each in rows), strict=True):
            found.add(*part)
            stored, found = json.loads(json.dumps(found.to_json())), ScoreHistogram()
            found.load_json(stored)
        assert found.to_json() == counted(*rows).to_json()


def test_where_there_is_nothing_to_rank_there_is_no_curve() -> None:
    proba = np.array([[0.3, 0.7], [0.6, 0.4]])
    assert counted(proba, np.zeros(2), np.ones(2)).curves() == {}
    assert counted(proba, np.array([0.0, 1.0]), np.array([1.0, 0.0])).curves() == {}
    assert ScoreHistogram().curves() == {}
    k = MOST_CLASSES + 1
    many = counted(np.full((4, k), 1.0 / k), np.arange(4.0), np.ones(4))
    assert (many.rows, many.curves()) == (0, {})
    three = np.full((2, 3), 1.0 / 3.0)  # the third class has no rows
    assert sorted(counted(three, np.array([0.0, 1.0]), np.ones(2)).curves()) == [0, 1]


@pytest.mark.parametrize(
    "change",
    [
        {"rows": "many"},
        {"shape": [2, 257]},
        {"shape": [1, 5]},
        {"shape": [MOST_CLASSES + 1, 257]},
        {"sums": [[0, 10**6, 1.0, 1.0]]},
        {"sums": [[0, 1, 1.0]]},
        {"sums": [[0, 1, "x", 1.0]]},
    ],
)
def test_damaged_sums_are_refused(change: dict) -> None:
    found = Outcomes("classification")
    found.add(*forecasts(2, 50))
    stored = found.to_json()
    with pytest.raises(CorruptError, match="stored outcomes cannot be read"):
        Outcomes.from_json("classification", {**stored, "scores": {**stored["scores"], **change}})


def test_bins_are_of_nearly_constant_relative_width() -> None:
    sizes = np.array([3e-308, 1e-300, 0.1, 0.5, 1.0, 1.124, 1.125, 7.0, 1.7e308])
    numbers = bins_of_sizes(sizes)
    low = np.array([lower_bound(n) for n in numbers.tolist()])
    assert (low <= sizes).all()
    above = [lower_bound(n + 1) for n in numbers.tolist()[:-1]]
    assert (sizes[:-1] < above).all()
    edges = edges_of_shares(4, 3)
    assert (np.diff(edges) > 0.0).all()
    np.testing.assert_array_equal(edges, 1.0 - edges[::-1])
    assert edges[[0, 12]].tolist() == [0.0625, 0.5]
