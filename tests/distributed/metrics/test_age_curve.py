"""A curve of ages is bounded, thinned by number alone, and survives JSON exactly."""

from __future__ import annotations

import json

import numpy as np
import pytest

from dmondrian import CorruptError
from dmondrian.distributed.metrics.age_curve import (
    AGE_POINTS,
    AgeCurve,
    age_names,
    others_of,
    share_in_words,
)
from dmondrian.distributed.metrics.progressive import Progressive
from dmondrian.drift.member import Ages


def test_it_is_thinned_by_number_alone_and_goes_on_from_json() -> None:
    draw, whole, resumed = np.random.default_rng(0), AgeCurve(), AgeCurve()
    for number in range(1, 1001):
        shares = draw.dirichlet(np.ones(4)).tolist()
        whole.add(32 * number, shares)
        resumed.add(32 * number, shares)
        stored, resumed = json.loads(json.dumps(resumed.to_json())), AgeCurve()
        resumed.load_json(stored)
    assert resumed.to_json() == whole.to_json()
    rows = [point[0] for point in whole.points]
    assert AGE_POINTS // 2 <= len(rows) <= AGE_POINTS
    assert set(np.diff(rows)) == {32 * 8}


def test_ages_are_named_as_members_cover_them() -> None:
    ages = Ages()
    names = age_names(ages.n_octaves, (), ages.first)
    assert names[:2] == ["all rows", "32 to 64 rows"]
    assert names[-1] == "32,768 to 65,536 rows"
    assert names == age_names(ages.n_octaves)
    for drift, others in (
        ({}, []),
        ({"boosted": True}, ["boosted sets"]),
        ({"boosted": True, "scaled": True}, ["scaled trees", "boosted sets"]),
    ):
        assert others_of({"drift": drift}) == others
        assert age_names(ages.n_octaves, others) == [*names, *others]
    assert others_of({"drift": None}) == others_of({}) == []


def test_a_share_is_given_at_a_few_rows() -> None:
    points = [{"rows": 2**k, "shares": [1.0 - k / 20, k / 20]} for k in range(11)]
    assert share_in_words(points, -1) == (
        "20% at row 16, 30% at row 64, 40% at row 256, 50% at row 1,024"
    )
    assert share_in_words(points[:1], -1) == "0% at row 1"
    assert share_in_words(points[:1], 0) == "100% at row 1"


def test_metrics_report_them_and_refuse_damaged_ones() -> None:
    total = Progressive("classification")
    total.add(np.full((64, 2), 0.5), np.zeros(64), None)
    assert "ages" not in total.report()
    total.ages.add(64, [0.25, 0.75])
    assert total.report()["ages"] == [{"rows": 64, "shares": [0.25, 0.75]}]
    stored = total.to_json()
    again = Progressive.from_json(json.loads(json.dumps(stored)))
    assert again.ages.points == total.ages.points
    for change in ({"stride": 0}, {"points": [[1, 0.5], [2]]}, {"number": "x"}, {"points": 3}):
        damaged = {**stored, "ages": {**stored["ages"], **change}}
        with pytest.raises(CorruptError, match="stored metrics"):
            Progressive.from_json(damaged)
