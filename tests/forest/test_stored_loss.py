"""What a stored forest may have of its loss, and that other forests' bytes do not mention it."""

from __future__ import annotations

from typing import Any

import pytest

from dmondrian.ensemble.settings.loss_settings import Cost
from dmondrian.ensemble.settings.parameters import ForestParameters
from dmondrian.errors import CorruptError

SOUND = Cost("quantile", levels=(0.1, 0.9), bound=2.0, selection="penalized", penalty=0.5)
REGRESSOR = "generalized-mondrian-forest-regressor"


def test_a_cost_goes_through_json() -> None:
    assert Cost.from_json(SOUND.to_json()) == SOUND
    parameters = ForestParameters(
        REGRESSOR, 3, 0, 1, aggregation="mean", horizon=4.0, cost=SOUND, split_pure=True
    )
    assert ForestParameters.from_json(parameters.to_json()) == parameters
    assert parameters.realised_lifetime == 4.0
    assert parameters.n_outputs == 2


def test_the_values_of_a_density_s_cells_are_stored_where_they_are_not_the_first_ones() -> None:
    assert "cell_value" not in Cost("density").to_json()
    least = Cost("density", cell_value="minimizer")
    assert Cost.from_json(least.to_json()) == least


def test_forests_without_a_cost_say_nothing_of_it() -> None:
    reported = ForestParameters("amf-regressor", 3, 0, 1).to_json()
    assert not {"cost", "horizon"} & set(reported)
    assert not ForestParameters.from_json(reported).minimises_loss


@pytest.mark.parametrize(
    "wrong",
    [
        {"loss": "cubic"},
        {"levels": [0.9, 0.1]},
        {"levels": []},
        {"levels": [0.5, 1.0]},
        {"levels": ["much"]},
        {"loss": "poisson"},  # which has no levels
        {"delta": 0.0},
        {"delta": "much"},
        {"bound": 0.0},
        {"bound": float("nan")},
        {"bound": True},
        {"size": 3},
        {"size": 64.0},
        {"size": 2**40},
        {"selection": "guessed"},
        {"penalty": -1.0},
        {"rate": float("inf")},
        {"lifetime": 2.0},  # chosen twice
        {"cell_value": "minimizer"},  # of densities
        {"loss": "density", "levels": [], "cell_value": "guessed"},
        {"more": 1},
    ],
)
def test_impossible_costs_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(CorruptError, match="cost"):
        Cost.from_json({**SOUND.to_json(), **wrong})


@pytest.mark.parametrize(
    ("algorithm", "n_classes", "cost"),
    [
        (REGRESSOR, 0, None),
        (REGRESSOR, 0, Cost("logistic")),
        (REGRESSOR, 0, Cost("density")),
        ("generalized-mondrian-forest-classifier", 3, Cost("logistic")),
        ("generalized-mondrian-forest-classifier", 2, Cost("squared")),
        ("mondrian-forest-regressor", 0, Cost("squared")),
        ("mondrian-density", 0, Cost("squared")),
        ("mondrian-density", 0, Cost("density")),  # on the range
        ("mondrian-density", 0, None),
    ],
)
def test_a_cost_fits_its_algorithm(algorithm: str, n_classes: int, cost: Cost | None) -> None:
    reported = ForestParameters("amf-regressor", 3, n_classes, 1).to_json()
    reported |= {"algorithm": algorithm, "aggregation": "mean"}
    reported |= {} if cost is None else {"cost": cost.to_json()}
    with pytest.raises(CorruptError, match=r"out of range|should have cost|have no cost"):
        ForestParameters.from_json(reported)
