"""What is stored of a forest that follows a stream goes on to the byte, or is refused."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dmondrian
from dmondrian import AMFClassifier
from dmondrian.boosting.boosted_set import BoostedSet
from dmondrian.boosting.boosted_stream import AS_THEY_CAME, settings_of
from dmondrian.checkpoint import decode_forest, encode_forest
from dmondrian.drift import stored_rows
from dmondrian.drift.drift_forest import DriftForest, forest_from_state
from dmondrian.drift.members import Members
from dmondrian.ensemble.settings.drift_settings import DriftSettings
from dmondrian.ensemble.settings.parameters import ForestParameters
from dmondrian.errors import CorruptError, ParameterError
from dmondrian.export.plain_trees import plain_trees
from dmondrian.forest.forest import Forest
from dmondrian.forest.packed_arrays import packed
from tests.drift.streams import numbers, switching
from tests.drift.test_drift_forest import forest_of, learned, parameters


def timed_forest(boosted: bool = False) -> DriftForest:
    settings = parameters(drift=DriftSettings(5, 7, boosted=boosted, period="10"))
    return DriftForest(settings, range(3))


@pytest.mark.parametrize("boosted", [False, True])
@pytest.mark.parametrize("position", [0, 1, 40, 41, 64, 100, 256])
def test_one_whose_labels_come_by_time_goes_on_in_an_open_block(
    position: int, boosted: bool
) -> None:
    X, y = switching(330)
    times = np.cumsum(np.random.default_rng(0).integers(0, 3, 330)) / 4.0
    whole, part = timed_forest(boosted), timed_forest(boosted)
    forecasts = whole.forecast_and_learn(X, y.astype(float), times=times)
    part.update(X[:position], y[:position].astype(float), times=times[:position])
    header, trees, _ = part.stored()
    assert header["drift"]["version"] == (15 if boosted else 7) + bool(len(part.waiting.y))
    again: Any = forest_from_state(*decode_forest(encode_forest(header, trees, None)))
    assert again.blocks.clock == again.guard.blocks.clock == part.blocks.clock
    rest = again.forecast_and_learn(
        X[position:], y[position:].astype(float), times=times[position:]
    )
    np.testing.assert_array_equal(rest, forecasts[position:])
    assert pickle.dumps(again.state()) == pickle.dumps(whole.state())


def test_a_state_with_blocks_of_another_time_is_refused() -> None:
    X, y = switching(100)
    forest = timed_forest()
    forest.update(X, y.astype(float), times=np.arange(100) / 4.0)
    header, trees = forest.state()
    assert header["drift"]["clock"] == [0.0, 2, 20, 40, 0]
    by_rows, _ = forest_of(3, delay=40).state()

    def changed(clock: Any, of_guard: Any) -> dict[str, Any]:
        found = copy.deepcopy(header)
        found["drift"]["clock"], found["drift"]["guard"]["clock"] = clock, of_guard
        return found

    other = [0.0, 2, 19, 40, 0]
    for clock, of_guard, why in (
        (other, other, "20 rows wait"),
        (header["drift"]["clock"], other, "the block of time that members are in"),
        ([0.0, 2, 20, 90, 0], header["drift"]["clock"], "blocks of time after 100 rows"),
    ):
        with pytest.raises(CorruptError, match=why):
            forest_from_state(changed(clock, of_guard), trees)
    without = copy.deepcopy(header)
    without["parameters"]["drift"] = by_rows["parameters"]["drift"]
    with pytest.raises(CorruptError, match="blocks of time after 100 rows"):
        forest_from_state(without, trees)
    plain = {name: value for name, value in header["drift"].items() if name != "clock"}
    with pytest.raises(CorruptError, match="versions 1 to 20"):
        forest_from_state({**header, "drift": plain}, trees)
    with pytest.raises(CorruptError, match="blocks of time after 100 rows"):
        forest_from_state({**header, "drift": {**plain, "version": 3}}, trees)


@pytest.mark.parametrize(
    ("position", "boosted"),
    [*((n, False) for n in (0, 1, 31, 32, 33, 63, 64, 100, 256)),
     *((n, True) for n in (0, 63, 64, 65, 79, 100))],
)  # fmt: skip
def test_a_stored_forest_goes_on_from_any_position(position: int, boosted: bool) -> None:
    X, y = switching(330)
    whole, forecasts = learned(X, y, boosted=boosted)
    part = forest_of(boosted=boosted)
    part.update(X[:position], y[:position].astype(float))
    again = forest_from_state(*decode_forest(encode_forest(*part.stored())))
    assert isinstance(again, DriftForest)
    rest = again.forecast_and_learn(X[position:], y[position:].astype(float))
    np.testing.assert_array_equal(rest, forecasts[position:])
    assert pickle.dumps(again.state()) == pickle.dumps(whole.state())


@pytest.mark.parametrize("delay", [1, 50])
def test_pickles_and_checkpoints_of_the_estimator(tmp_path: Path, delay: int) -> None:
    X, y = switching(330, n_classes=3)
    names = np.array(["a", "b", "c"])
    model = AMFClassifier(3, drift="follow", delay=delay, random_state=0)
    model.partial_fit(X[:220], names[y[:220]], classes=names)
    model.save(tmp_path / "model")
    others = [pickle.loads(pickle.dumps(model)), dmondrian.load(tmp_path / "model")]
    others.append(copy.deepcopy(model))
    model.partial_fit(X[220:], names[y[220:]])
    for other in others:
        assert (other.drift, other.delay) == ("follow", delay)
        other.partial_fit(X[220:], names[y[220:]])
        np.testing.assert_array_equal(other.predict_proba(X), model.predict_proba(X))
        assert other.predict(X[:5]).tolist() == model.predict(X[:5]).tolist()


def waiting_forest(n: int = 190) -> DriftForest:
    X, y = switching(n)
    w = np.random.default_rng(2).choice([0.5, 1.0, 3.0], n)
    forest = forest_of(3, delay=100)
    forest.update(X, y.astype(float), w)
    return forest


@pytest.mark.parametrize("n", [40, 190])
def test_rows_that_wait_are_stored_as_arrays_beside_a_short_header(n: int) -> None:
    forest = waiting_forest(n)
    header, trees, _ = forest.stored()
    plain, own = forest.state()
    n_waiting = len(forest.waiting.y)
    assert n_waiting in (40, 90)
    assert header["drift"]["waiting"] == n_waiting
    assert len(list(trees)) == len(own) + 1
    for again in (encode_forest(*forest.stored()), encode_forest(plain, own)):  # so, and as before
        read = forest_from_state(*decode_forest(again))
        assert pickle.dumps(read.state()) == pickle.dumps(forest.state())
    rest = switching(n + 50)
    for one in (forest, read):
        one.update(rest[0][n:], rest[1][n:].astype(float))
    assert pickle.dumps(read.state()) == pickle.dumps(forest.state())


def test_rows_of_many_numbers_take_several_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_rows, "_MOST_ITEMS", 64)
    forest = waiting_forest()
    read = forest_from_state(*decode_forest(encode_forest(*forest.stored())))
    assert pickle.dumps(read.state()) == pickle.dumps(forest.state())


@pytest.mark.parametrize(
    "damage",
    [
        lambda entry, last: entry.update(waiting=89),
        lambda entry, last: entry.update(waiting=0),
        lambda entry, last: entry.update(waiting=True),
        lambda entry, last: entry.update(waiting=["", "", ""]),
        lambda entry, last: last.pop("memory"),
        lambda entry, last: last.update(memory=last["memory"][:-1]),
        lambda entry, last: last.update(memory=np.full(len(last["memory"]), np.nan)),
        lambda entry, last: last["memory"].__setitem__(-1, 0.0),  # a weight
        lambda entry, last: last["memory"].__setitem__(-91, 0.5),  # a class
    ],
)
def test_damaged_rows_that_wait_are_refused(damage: Callable[[Any, Any], Any]) -> None:
    header, trees, _ = waiting_forest().stored()
    entry, (*others, last) = dict(header["drift"]), trees
    damage(entry, last)
    with pytest.raises(CorruptError):
        forest_from_state({**header, "drift": entry}, [*others, last])


def changed(path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(header: dict[str, Any]) -> None:
        at: Any = header["drift"]
        *way, last = [int(part) if part.isdigit() else part for part in path.split(".")]
        for part in way:
            at = at[part]
        at[last] = value

    return change


@pytest.mark.parametrize(
    "change",
    [
        changed("version", 4),
        changed("version", 5),
        changed("version", [3]),
        changed("version", {}),
        changed("version", 3.0),
        lambda header: header.update(parameters=[3]),
        lambda header: header.update(format=float(header["format"])),
        changed("position", 161),
        changed("position", -1),
        changed("position", 0),
        changed("guard", {}),
        changed("guard.outer", [1.0]),
        changed("members.0.mixer.weights", [[np.inf] * 4] * 4),
        changed("members.0.scales", []),
        changed("members.0.scales", packed(np.zeros((4, 4), np.float32))),
        changed("members.1.buckets", packed(-np.ones((4, 2, 4)))),
        changed("members.1.levels", None),
        changed("members.1.trees", []),
        changed("members.1.trees.0.root", 10**6),
        changed("waiting", [[], [1.0], []]),
        changed("waiting", ["", packed(np.ones(1)), packed(np.ones(1))]),
        changed("guard.position", 7),
        changed("members", []),
    ],
)
def test_a_damaged_header_is_refused(change: Callable[[dict[str, Any]], None]) -> None:
    forest, _ = learned(*switching(200), n_members=2)
    header, trees = forest.state()
    change(header)
    with pytest.raises(CorruptError):
        forest_from_state(header, trees)


def test_a_state_of_version_1_goes_on() -> None:
    """Of 170 rows of two members, in blocks of 50: 20 wait, which that version had not forecast."""
    folder = Path(__file__).parent
    again = forest_from_state(*decode_forest((folder / "version_1.arrow").read_bytes()))
    assert isinstance(again, DriftForest)
    assert (again.position, len(again.waiting.y), again.guard.position) == (150, 20, 170)
    X, y = switching(330, n_classes=3)
    forecasts = np.load(folder / "version_1.npy")
    np.testing.assert_allclose(again.predict_proba(X[:20]), forecasts[0], rtol=1e-9)
    copied = forest_from_state(*again.state())
    for forest in (again, copied):
        forest.update(X[170:], y[170:].astype(float))
    assert pickle.dumps(copied.state()) == pickle.dumps(again.state())
    np.testing.assert_allclose(again.predict_proba(X[:20]), forecasts[1], rtol=1e-9)


def far_off() -> tuple[np.ndarray, np.ndarray]:
    X, y = numbers(330)
    y[[100, 110]] = 1e6, -50.0
    return X, y


def test_boosted_sets_of_a_state_of_version_5_are_fitted_to_labels_as_they_are() -> None:
    """Of 120 rows of one member, of which one is far off: today's sets would clip its label."""
    folder = Path(__file__).parent
    state = decode_forest((folder / "version_5.arrow").read_bytes())
    again = forest_from_state(*state)
    assert isinstance(again, DriftForest)
    X, y = far_off()
    copied = pickle.loads(pickle.dumps(again))
    assert copied.state()[0]["drift"]["version"] == 5
    header, trees, _ = again.stored()
    read = forest_from_state(*decode_forest(encode_forest(header, trees, None)))
    forecasts = np.load(folder / "version_5.npy")
    for forest in (again, copied, read):
        found = forest.forecast_and_learn(X[120:], y[120:])[:, 0]
        np.testing.assert_allclose(found, forecasts, rtol=1e-9)
    for finds_rounds, version in ((False, 9), (True, 13)):
        its = replace(again.parameters.following, finds_rounds=finds_rounds)
        new = DriftForest(again.parameters.replace(drift=its), range(1))
        new.update(X[:120], y[:120])
        assert new.state()[0]["drift"]["version"] == version
    found = new.forecast_and_learn(X[120:], y[120:])[:, 0]
    assert np.abs(found - forecasts).max() > 1e3
    shards = [Members(again.parameters, range(i, i + 1)) for i in range(2)]
    for shard in shards:
        shard.update(X[:120], y[:120])
    assert shards[0].boosted is not None
    shards[0].boosted.fitting = AS_THEY_CAME
    with pytest.raises(ParameterError, match="learned other rows"):
        Members.join(shards)


@pytest.mark.parametrize("period", [None, "10"])
@pytest.mark.parametrize("position", [40, 64, 120])
def test_numbers_with_one_far_off_go_on_from_any_position(
    position: int, period: str | None
) -> None:
    X, y = far_off()
    its = DriftSettings(5, 5, boosted=True, period=period)
    settings = ForestParameters(
        "amf-regressor", 4, 0, 11, learning_rate=8.0, charge_opening=False, drift=its
    )
    times = None if period is None else np.arange(330.0)

    def part_of(first: int, stop: int | None) -> dict[str, Any]:
        return {"times": None if times is None else times[first:stop]}

    whole, part = DriftForest(settings, range(1)), DriftForest(settings, range(1))
    forecasts = whole.forecast_and_learn(X, y, **part_of(0, None))
    part.update(X[:position], y[:position], **part_of(0, position))
    header, trees, _ = part.stored()
    assert header["drift"]["version"] == (13 if period is None else 15) + bool(len(part.waiting.y))
    again: Any = forest_from_state(*decode_forest(encode_forest(header, trees, None)))
    rest = again.forecast_and_learn(X[position:], y[position:], **part_of(position, None))
    np.testing.assert_array_equal(rest, forecasts[position:])
    assert pickle.dumps(again.state()) == pickle.dumps(whole.state())
    plain, arrays = whole.state()
    for version in (5, 7, 9, 11, 13, 15):
        its = {**plain["parameters"]["drift"]}
        if version < 13:
            del its["finds_rounds"]
        earlier = {"parameters": {**plain["parameters"], "drift": its}}
        entry = {**plain["drift"], "version": version}
        if version in range(5 if period is None else 7, 16, 4):
            again = forest_from_state({**plain, **earlier, "drift": entry}, arrays)
            assert isinstance(again, DriftForest)
            assert again.boosted is not None
            assert again.boosted.fitting == (version - 1) // 4
        else:
            with pytest.raises(CorruptError):
                forest_from_state({**plain, "drift": entry}, arrays)


def test_classes_are_never_clipped() -> None:
    forest = forest_of(2, boosted=True)
    header, trees = forest.state()
    assert header["drift"]["version"] == 13
    with pytest.raises(CorruptError, match="clip none"):
        forest_from_state({**header, "drift": {**header["drift"], "version": 9}}, trees)


def test_sets_of_classes_of_a_state_of_version_5_go_on_with_fixed_rounds() -> None:
    X, _ = switching(330)
    y = (X[:, 0] > 0.5).astype(np.int64)  # a rule of which more rounds know more
    first, _ = learned(X[:120], y[:120], n_members=1, boosted=True)
    header, trees = first.state()
    sets = {**header["drift"]["boosted"], "set": packed_set(X[:112], y[:112])}
    earlier = copy.deepcopy({**header, "drift": {**header["drift"], "version": 5}})
    earlier["drift"]["boosted"] = sets
    with pytest.raises(CorruptError, match="otherwise than its parameters"):
        forest_from_state(copy.deepcopy(earlier), trees)
    del earlier["parameters"]["drift"]["finds_rounds"]
    rounds = []
    for state in (earlier, header):
        again = forest_from_state(copy.deepcopy(state), trees)
        assert isinstance(again, DriftForest)
        again.update(X[120:], y[120:].astype(float))
        assert again.state()[0]["drift"]["version"] == state["drift"]["version"]
        assert again.boosted is not None
        assert again.boosted.newest is not None
        rounds.append(again.boosted.newest.n_rounds)
    assert rounds[0] == 60 != rounds[1]
    grown = DriftForest(ForestParameters.from_json(earlier["parameters"]), range(1, 2))
    grown.update(X[:120], y[:120].astype(float))
    assert grown.state()[0]["drift"]["version"] == 5


def packed_set(X: np.ndarray, y: np.ndarray) -> dict[str, Any]:
    """Return a set as earlier versions fitted and stored it."""
    return BoostedSet.fit(X, y.astype(float), np.ones(len(y)), 2, settings_of(2)).to_json()


@pytest.mark.parametrize("value", [np.nan, -1.0, 1e9])
def test_a_damaged_memory_is_refused(value: float) -> None:
    forest, _ = learned(*switching(200), n_members=2)
    header, trees = forest.state()
    trees[-1]["memory"][-1] = value
    with pytest.raises(CorruptError):
        forest_from_state(header, trees)


def test_earlier_readers_refuse_the_format() -> None:
    forest, _ = learned(*switching(100), n_members=2)
    with pytest.raises(CorruptError, match="formats"):
        Forest.from_state(*forest.state())


@pytest.mark.parametrize(
    "settings",
    [
        {"learning_rate": 0.5},
        {"charge_opening": True},
        {"use_aggregation": False},
        {"predict_extension": "expected"},
        {"domain": "cube"},
        {"calibrate": True},
        {"feature_scales": "learned"},
    ],
)
def test_settings_that_do_not_go_together_are_refused(settings: dict[str, Any]) -> None:
    X, y = switching(50)
    with pytest.raises(ParameterError, match=f"{next(iter(settings))}=.*drift"):
        AMFClassifier(2, drift="follow", random_state=0, **settings).fit(X, y)


def test_a_delay_without_drift_and_values_out_of_range_are_refused() -> None:
    X, y = switching(50)
    with pytest.raises(ParameterError, match="delay=3"):
        AMFClassifier(2, delay=3).fit(X, y)
    for wrong in ({"delay": 0}, {"delay": 2**15 + 1}, {"drift": "adwin"}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            AMFClassifier(2, **{"drift": "follow", **wrong}).fit(X, y)  # type: ignore[arg-type]


def test_what_needs_sums_over_trees_is_refused_with_the_reason() -> None:
    X, y = switching(80)
    model = AMFClassifier(2, drift="follow", random_state=0).fit(X, y)
    with pytest.raises(ParameterError, match="ONNX"):
        plain_trees(model)
    with pytest.raises(ParameterError, match="no sums over trees"):
        model.forest_.predict_sums(X)
    with pytest.raises(ParameterError, match="cannot be joined"):
        DriftForest.join([])


def test_parameters_that_were_set_since_do_not_change_the_forest() -> None:
    X, y = switching(80)
    for before, since in (("follow", None), (None, "follow")):
        model = AMFClassifier(2, drift=before, random_state=0).fit(X, y)
        forecasts = model.predict_proba(X)
        model.set_params(drift=since)
        np.testing.assert_array_equal(model.predict_proba(X), forecasts)
        with pytest.raises(ParameterError, match="parameters changed"):
            model.partial_fit(X, y)


@pytest.mark.parametrize("weight", [300.0, 1000.0, 1e30])
def test_heavy_rows_leave_no_memory_without_a_number(weight: float) -> None:
    X, y = switching(300)
    model = AMFClassifier(2, drift="follow", random_state=0)
    model.fit(X, np.random.default_rng(0).permutation(y), sample_weight=np.full(300, weight))
    again = copy.deepcopy(model)
    assert np.isfinite(model.predict_proba(X)).all()
    np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))


def test_values_that_scales_of_young_trees_take_beyond_float32_are_kept_at_its_end() -> None:
    X, y = switching(700)
    large = np.concatenate([X * np.float32(3e38), np.full((1, 4), 3.4e38, np.float32)])
    model = AMFClassifier(4, drift="follow", random_state=0).fit(large, [*y, 0])
    again = copy.deepcopy(model)
    np.testing.assert_array_equal(again.predict_proba(large), model.predict_proba(large))


def test_a_weight_that_is_refused_leaves_rows_that_wait_as_they_were() -> None:
    X, y = switching(20)
    model = AMFClassifier(2, drift="follow", delay=4, random_state=0).fit(X[:9], y[:9])
    model.partial_fit(X[9:10], y[9:10], sample_weight=[6e99])
    with pytest.raises(ValueError, match="sum to at most"):
        model.partial_fit(X[10:11], y[10:11], sample_weight=[6e99])
    model.partial_fit(X[10:12], y[10:12])
    assert model.forest_.position == 12


def test_rows_that_all_wait_are_named_when_a_forecast_is_asked_for() -> None:
    X, y = switching(20)
    model = AMFClassifier(2, drift="follow", delay=64, random_state=0)
    model.partial_fit(X, y, classes=[0, 1])
    with pytest.raises(ParameterError, match=r"all 20 rows that came wait .* \(delay = 64\)"):
        model.predict(X)
