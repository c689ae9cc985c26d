"""What came of forecasts, against sums over all rows at once."""

from __future__ import annotations

import json

import numpy as np
import pytest
from sklearn.metrics import confusion_matrix

from dmondrian import CorruptError
from dmondrian.distributed.metrics.error_histogram import MOST_CLASSES, Outcomes
from dmondrian.distributed.metrics.progressive import Progressive


def of(task, mean, y, weight, cuts=(100, 350)) -> Outcomes:
    """Outcomes added in parts, through JSON between them."""
    found = Outcomes(task)
    for part in zip(*(np.split(each, cuts) for each in (mean, y, weight)), strict=True):
        found.add(*part)
        found = Outcomes.from_json(task, json.loads(json.dumps(found.to_json())))
    return found


@pytest.fixture(scope="module")
def classes() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    draw = np.random.default_rng(0)
    return draw.dirichlet(np.ones(4), 500), draw.integers(0, 4, 500) * 1.0, draw.random(500)


@pytest.fixture(scope="module")
def numbers() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    draw = np.random.default_rng(1)
    y = draw.normal(size=500) * 10.0 ** draw.integers(-8, 8, 500)
    mean = np.where(draw.random(500) < 0.1, y, y + draw.normal(size=500))[:, None]
    return mean, y, draw.random(500)


def test_confusion_is_that_of_all_rows(classes) -> None:
    mean, y, weight = classes
    found = of("classification", *classes)
    wanted = confusion_matrix(y, mean.argmax(axis=1), sample_weight=weight)
    np.testing.assert_allclose(found.confusion, wanted)
    assert found.rows == 500
    reported = found.reliability.report()["reliability"]
    hit = mean.argmax(axis=1) == y
    sure = mean.max(axis=1)
    for one in reported:
        inside = (sure > one["above"]) & (sure <= one["up_to"])
        assert np.isclose(one["accuracy"], np.average(hit[inside], weights=weight[inside]))


@pytest.mark.parametrize(("k", "first"), [(2, 0.5), (3, 0.3), (4, 0.2), (5, 0.2), (10, 0.1)])
def test_the_first_bin_of_sureness_has_the_least_that_is_possible(k: int, first: float) -> None:
    even, sure = np.full((300, k), 1.0 / k), np.eye(k)[np.zeros(100, int)]
    found = of("classification", np.vstack([even, sure]), np.zeros(400), np.ones(400))
    for outcomes in (found, Outcomes.from_json("classification", found.to_json())):
        reported = outcomes.reliability.report()
        assert [(one["above"], one["share"]) for one in reported["reliability"]] == [
            (first, 0.75), (0.9, 0.25)
        ]  # fmt: skip
        assert reported["reliability"][0]["confidence"] == pytest.approx(1.0 / k)
        assert reported["ece"] == pytest.approx(0.75 * (1.0 - 1.0 / k))
    assert found.to_json() == Outcomes.from_json("classification", found.to_json()).to_json()


def test_too_many_classes_have_no_confusion() -> None:
    k = MOST_CLASSES + 1
    found = of("classification", np.full((500, k), 1.0 / k), np.zeros(500), np.ones(500))
    assert found.confusion is None
    assert found.reliability.report()["reliability"][0]["share"] == 1.0


def test_shares_of_errors_are_those_of_all_rows(numbers) -> None:
    mean, y, weight = numbers
    found = of("regression", *numbers)
    error = mean[:, 0] - y
    for size, share in found.shares():
        assert np.isclose(share, weight[np.abs(error) < size].sum() / weight.sum())
    assert found.shares()[-1][1] == pytest.approx(1.0)
    assert found.bias[1] / found.bias[0] == pytest.approx(np.average(error, weights=weight))
    below = sum(pair[0] for pair in found.sizes.values())
    assert below == pytest.approx(weight[error < 0.0].sum())


def test_a_run_of_an_older_version_goes_on_without_what_it_did_not_keep(classes) -> None:
    total = Progressive("classification")
    total.add(*classes)
    stored = total.to_json()
    del stored["outcomes"]
    resumed = Progressive.from_json(stored)
    resumed.add(*classes)
    assert (resumed.rows, resumed.outcomes.rows) == (1000, 500)


@pytest.mark.parametrize("task", ["classification", "regression"])
@pytest.mark.parametrize(
    "change",
    [
        {"rows": "many"},
        {"reliability": [[1.0]], "sizes": [[1, 2]]},
        {"confusion": [[1.0, 2.0]], "sizes": [[10**6, 1.0, 1.0]]},
        {"confusion": "x", "bias": [1.0]},
    ],
)
def test_damaged_sums_are_refused(classes, numbers, task, change) -> None:
    found = of(task, *(classes if task == "classification" else numbers)).to_json()
    with pytest.raises(CorruptError, match="stored outcomes cannot be read"):
        Outcomes.from_json(task, {**found, **change})
