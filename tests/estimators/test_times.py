"""Estimators whose labels come by time: the same forest whatever the cuts, and clear errors."""

from __future__ import annotations

import datetime
import pickle
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import sklearn
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from dmondrian import AMFClassifier, AMFRegressor, load
from dmondrian.ensemble.settings.label_period import period_of
from dmondrian.errors import DataError, ParameterError
from dmondrian.estimators.row_times import checked_times
from tests.drift.streams import CUTS, switching

N = 450
X, LABELS = switching(N)
DAYS = np.datetime64("2024-01-01") + np.sort(np.random.default_rng(0).integers(0, 60, N)).astype(
    "timedelta64[D]"
)
KINDS = [AMFClassifier, AMFRegressor]


def new(kind: Any = AMFClassifier, delay: Any = "7 days", **others: Any) -> Any:
    return kind(3, drift="follow", delay=delay, random_state=0, **others)


def answers(model: Any) -> np.ndarray:
    found = model.predict_proba(X) if isinstance(model, AMFClassifier) else model.predict(X)
    return np.asarray(found)


def fed(model: Any, times: Any, cuts: list[tuple[int, int]] = CUTS, w: Any = None) -> Any:
    named = {"classes": [0, 1]} if isinstance(model, AMFClassifier) else {}
    for a, b in cuts:
        own = None if w is None else w[a:b]
        model.partial_fit(X[a:b], LABELS[a:b], **named, sample_weight=own, times=times[a:b])
    return model


@pytest.mark.parametrize("kind", KINDS)
def test_neither_cuts_nor_threads_nor_pickles_change_a_byte(kind: Any) -> None:
    w = np.random.default_rng(1).choice([0.0, 0.5, 1.0, 3.0], N)
    whole = new(kind).fit(X, LABELS, sample_weight=w, times=DAYS)
    parts = fed(new(kind, n_jobs=2), DAYS, w=w)
    assert pickle.dumps(parts.forest_.state()) == pickle.dumps(whole.forest_.state())
    begun = fed(new(kind), DAYS, CUTS[:4], w=w)
    assert begun.n_waiting_ > 0
    gone_on = fed(pickle.loads(pickle.dumps(begun)), DAYS, CUTS[4:], w=w)
    assert pickle.dumps(gone_on.forest_.state()) == pickle.dumps(whole.forest_.state())
    days = (DAYS[w > 0] - DAYS[w > 0][0]).astype(int)
    assert whole.n_waiting_ == (days // 7 == days[-1] // 7).sum()
    assert "_times" not in vars(parts)


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_the_delay_in_rows_where_as_many_rows_come_within_each(kind: Any) -> None:
    by_rows = new(kind, 30).fit(X, LABELS)
    by_time = new(kind, "30").fit(X, LABELS, times=np.arange(N))
    more = {"classes": [0, 1]} if kind is AMFClassifier else {}
    by_time.partial_fit(X[:1], LABELS[:1], times=[N], **more)  # the labels before have come
    assert (by_rows.n_waiting_, by_time.n_waiting_) == (0, 1)
    np.testing.assert_allclose(answers(by_time), answers(by_rows), rtol=1e-11)


@pytest.mark.parametrize("experts", [("mondrian",), ("mondrian", "boosted")])
def test_forecasts_know_no_label_of_their_own_block(experts: tuple[str, ...]) -> None:
    first, last = (DAYS - DAYS[0]).astype(int) // 7 < 5, (DAYS - DAYS[0]).astype(int) // 7 < 6
    known = new(experts=experts).fit(X[first], LABELS[first], times=DAYS[first])
    more, other = new(experts=experts), new(experts=experts)
    changed = np.where(first, LABELS, 1 - LABELS)
    for model, labels in ((more, LABELS), (other, changed)):
        model.partial_fit(X[last], labels[last], times=DAYS[last], classes=[0, 1])
    np.testing.assert_array_equal(answers(more), answers(other))
    assert known.n_waiting_ < more.n_waiting_ + known.forest_.position
    later = (DAYS - DAYS[0]).astype(int) // 7 == 6
    for model, labels in ((more, LABELS), (other, changed)):
        model.partial_fit(X[later], labels[later], times=DAYS[later])
    assert not np.array_equal(answers(more), answers(other))


def test_units_and_kinds_of_times_change_nothing() -> None:
    expected = new().fit(X, LABELS, times=DAYS).forest_.state()
    stamps = pd.Series(DAYS)
    zoned = stamps.dt.tz_localize("UTC").dt.tz_convert("Asia/Tokyo")
    for times in (
        DAYS.astype("datetime64[s]"), DAYS.astype("datetime64[ns]"), DAYS.tolist(),
        DAYS.astype("datetime64[us]").tolist(), stamps, zoned, pd.DatetimeIndex(zoned),
        zoned.tolist(), stamps.tolist(), pd.DatetimeIndex(zoned).to_pydatetime(),
    ):  # fmt: skip
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            found = new().fit(X, LABELS, times=times).forest_.state()
        assert pickle.dumps(found) == pickle.dumps(expected)
    seconds = DAYS.astype("datetime64[s]").astype(np.int64)
    by_number = new(delay=str(7 * 86400)).fit(X, LABELS, times=seconds)
    np.testing.assert_array_equal(
        by_number.predict_proba(X), new().fit(X, LABELS, times=DAYS).predict_proba(X)
    )


def test_bad_times_are_refused_before_a_row_is_learned() -> None:
    model = fed(new(), DAYS, CUTS[:3])
    before = pickle.dumps(model.forest_.state())
    rows: Any = (X[:3], LABELS[:3])
    nat = np.array(["2024-02-01", "NaT", "2024-02-02"], "datetime64[D]")
    aware, naive = datetime.datetime(2024, 2, 1, tzinfo=datetime.UTC), datetime.datetime(2024, 2, 1)
    for times, kind, why in [
        (None, ParameterError, "needs the time of each row"),
        (DAYS[:2], DataError, r"times.shape == \(2,\), expected \(3,\)"),
        (nat, DataError, r"times\[1\] is NaT"),
        (pd.Series(nat), DataError, r"times\[1\] is NaT"),
        ([naive, None, naive], DataError, r"times\[1\] is missing"),
        ([naive, pd.NA, naive], DataError, r"times\[1\] is missing"),
        ([naive, aware, naive], DataError, "some times have a time zone and others have none"),
        ([1, 2, 3], ParameterError, "is a length of time, and times are numbers"),
        (["2024-02-01"] * 3, ParameterError, "neither dates nor numbers: convert texts"),
        ([naive, "2024-02-01", naive], ParameterError, "neither dates nor numbers"),
        (np.array([1, 2, 3], "timedelta64[D]"), ParameterError, "neither dates nor numbers"),
        (np.array(["9999999"] * 3, "datetime64[Y]"), DataError, "290,000 years from 1970"),
    ]:
        with pytest.raises(kind, match=why):
            model.partial_fit(*rows, times=times)
    with pytest.raises(DataError, match="not among"):
        model.partial_fit(X[:1], [5], times=DAYS[:1])
    for one in (2**62, -(2**62)):
        with pytest.raises(DataError, match=r"beyond 2\^53: subtract the first time"):
            checked_times(np.array([0, one, 1]), 3, period_of("500"))
    assert pickle.dumps(model.forest_.state()) == before
    assert "_times" not in vars(model)
    with pytest.raises(
        ParameterError, match=r'in units of numbers, and times are dates: give .*"7'
    ):
        new(delay="500").fit(X, LABELS, times=DAYS)
    with pytest.raises(DataError, match=r"times\[1\] is nan"):
        new(delay="500").fit(X[:2], LABELS[:2], times=[1.0, np.nan])


def test_delays_and_times_that_do_not_go_together_are_refused() -> None:
    with pytest.raises(ParameterError, match=r"times go with a delay that is a time.*it is 64"):
        new(delay=64).fit(X, LABELS, times=DAYS)
    with pytest.raises(ParameterError, match="times go with a delay that is a time"):
        AMFClassifier().fit(X, LABELS, times=DAYS)
    with pytest.raises(ParameterError, match="delay='7 days' goes with drift=\"follow\" alone"):
        AMFRegressor(delay="7 days").fit(X, LABELS)
    with pytest.raises(ParameterError, match="delay='7 moons' is no length of time"):
        new(delay="7 moons").fit(X, LABELS, times=DAYS)
    with pytest.raises(ValueError, match="'delay' parameter"):
        new(delay=1.5).fit(X, LABELS, times=DAYS)
    model = new().fit(X, LABELS, times=DAYS)
    with pytest.raises(ParameterError, match="parameters changed after the first rows"):
        model.set_params(delay="8 days").partial_fit(X, LABELS, times=DAYS)


def test_one_is_warned_of_rows_that_come_late_or_wait_all() -> None:
    mixed = DAYS.copy()
    mixed[250:300] = DAYS[0]
    with pytest.warns(UserWarning, match="is not sorted by time: .* of 450 rows came when"):
        model = new().fit(X, LABELS, times=mixed)
    assert model.n_late_ == 50
    assert new().fit(X, LABELS, times=DAYS).n_late_ == 0
    assert AMFClassifier(2).fit(X, LABELS).n_late_ == 0
    with pytest.warns(UserWarning, match="no row is learned yet: all 450 .* 200 days"):
        model = new(delay="200 days").fit(X, LABELS, times=DAYS)
    with pytest.raises(ParameterError, match="give it rows of a later time"):
        model.predict(X)


def test_a_saved_model_goes_on_in_an_open_block(tmp_path: Path) -> None:
    whole = fed(new(), DAYS)
    fed(new(), DAYS, CUTS[:4]).save(tmp_path / "m")
    again: Any = load(tmp_path / "m")
    assert again.delay == "7 days"
    fed(again, DAYS, CUTS[4:])
    assert pickle.dumps(again.forest_.state()) == pickle.dumps(whole.forest_.state())


def test_times_are_routed_as_metadata() -> None:
    with sklearn.config_context(enable_metadata_routing=True):
        model = new().set_fit_request(times=True).set_partial_fit_request(times=True)
        routed = make_pipeline(StandardScaler(), model).fit(X, LABELS, times=DAYS)
    scaled = StandardScaler().fit_transform(X)
    alone = new().fit(scaled, LABELS, times=DAYS)
    np.testing.assert_array_equal(routed.predict_proba(X), alone.predict_proba(scaled))
