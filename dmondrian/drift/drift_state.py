"""The state of a forest that follows a stream: a header and arrays, checked when they come back.

The arrays are those of the permanent trees, then those of each member's covering trees by place,
then those of scaled trees, in one bundle: nodes have the fields of other forests, and a list
``memory`` of the statistics that only covering trees keep. The header is that of the permanent
trees, of another format, with an entry ``drift`` of a version of its own; the guard in it is none
in a shard of a run. Births follow from the number of rows learned.

Relies on :mod:`dmondrian.forest.state`. Promises that a forest that is stored and read goes on to
the byte, and that nothing reaches a kernel unchecked.

Shapes: m nodes, d features, K classes, S places, l levels of credit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from dmondrian.boosting.boosted_stream import AS_THEY_CAME, CLIPPED, ROUNDS_FOUND
from dmondrian.drift.label_policies import LabelPolicies
from dmondrian.drift.member import Ages, Member
from dmondrian.drift.scaled_trees import n_trees_of
from dmondrian.drift.stored_rows import apart, kept_taken_in, taken_in
from dmondrian.ensemble.rows.labelled_rows import LabelledRows
from dmondrian.ensemble.settings.drift_settings import LARGEST_DELAY, DriftSettings
from dmondrian.ensemble.settings.numeric_limits import LARGEST_SCALE, LARGEST_TARGET
from dmondrian.ensemble.settings.parameters import ForestParameters
from dmondrian.errors import CorruptError
from dmondrian.forest import state
from dmondrian.forest.packed_arrays import packed, unpacked
from dmondrian.stats.discounted_counts import N_MEMORIES
from dmondrian.tree import nodes
from dmondrian.tree.box_encoding import all_numeric

FOLLOWING = 4  # format of a header that has an entry "drift"
_OF_WEIGHTS = (1, 2)  # versions of that entry that had weights of memories in place of factors
_LARGEST_POSITION = 2**53
_SLACK = 1e-6  # of sums that were rounded


class _Form(NamedTuple):
    """What a state has beside its trees."""

    fitting: int | None  # how boosted sets are fitted; None of a forest without any
    is_timed: bool  # whether labels come by time
    has_scaled: bool = False  # whether the forest has scaled trees

    @property
    def keys(self) -> set[str]:
        """Keys of the entry."""
        has = {"boosted": self.fitting is not None, "clock": self.is_timed}
        has["scaled"] = self.has_scaled
        return _KEYS | {key for key, is_there in has.items() if is_there}


# By version of the entry; where rows that wait are stored apart it is one more (`stored_rows`). 1
# had ages and delay, raw rows that wait, mixers before the block; 2 the keys of 3.
_KEYS = {"version", "position", "guard", "members", "waiting"}
_FIRST_KEYS = _KEYS | {"first", "last", "delay"}  # of version 1
_OF_TIMES = 7  # with or without boosted sets
_FORMS = {
    3: _Form(None, False),
    5: _Form(AS_THEY_CAME, False), _OF_TIMES: _Form(AS_THEY_CAME, True),
    9: _Form(CLIPPED, False), 11: _Form(CLIPPED, True),
    13: _Form(ROUNDS_FOUND, False), 15: _Form(ROUNDS_FOUND, True),
    17: _Form(ROUNDS_FOUND, False, True), 19: _Form(ROUNDS_FOUND, True, True),
}  # fmt: skip
_VERSION_OF = {form: version for version, form in _FORMS.items()} | {_Form(None, True): _OF_TIMES}
_KEYS_OF = {1: _FIRST_KEYS, 2: _KEYS} | {
    version_or_apart: form.keys
    for version, form in _FORMS.items()
    for version_or_apart in (version, apart(version))
}
_MEMBER_KEYS = {"mixer", "scales", "buckets", "levels", "trees"}


class StateParts(NamedTuple):
    """Parts of a state; only the header was checked."""

    position: int
    drift: dict[str, Any]  # entry of the header
    permanent_header: dict[str, Any]
    permanent: list[dict[str, np.ndarray]]
    covering: list[Sequence[dict[str, np.ndarray]]]  # of each member, by place
    scaled: list[dict[str, np.ndarray]]
    unforecast: Any  # rows that wait in a state of version 1, which are to be forecast; else None


def drift_state(
    permanent: tuple[dict[str, Any], list[dict[str, np.ndarray]]], forest: Any
) -> tuple[dict[str, Any], list[dict[str, np.ndarray]]]:
    """Return header and arrays, copies, of a ``forest`` whose ``permanent`` trees have this state.

    The forest are :class:`dmondrian.drift.members.Members`, with or without a guard.
    """
    header, trees = permanent
    bundle = [{**arrays, **_no_memory(len(arrays["left"]))} for arrays in trees]
    for member in forest.members:
        bundle += [_covering_fields(tree, forest.label_policies) for tree in member.trees]
    rows, is_timed = forest.waiting, forest.blocks.is_timed
    fitting = None if forest.boosted is None else forest.boosted.fitting
    drift = {
        "version": _VERSION_OF[_Form(fitting, is_timed, forest.scaled is not None)],
        "position": forest.position,
        "guard": None if forest.guard is None else forest.guard.to_json(),
        "members": [_member_header(member) for member in forest.members],
        "waiting": [packed(rows.X), packed(rows.y), packed(rows.w)],
    }
    if forest.boosted is not None:
        drift |= {"boosted": forest.boosted.to_json()}
    if forest.scaled is not None:
        of_scaled, arrays_of_scaled = forest.scaled.state()
        drift |= {"scaled": of_scaled}
        bundle += [{**arrays, **_no_memory(len(arrays["left"]))} for arrays in arrays_of_scaled]
    drift |= forest.blocks.to_json()
    return {**header, "format": FOLLOWING, "drift": drift}, bundle


def _no_memory(n_nodes: int) -> dict[str, np.ndarray]:
    """Return the fields that other trees have beside theirs."""
    return {"memory": np.empty(0), "memory_size": np.zeros(n_nodes, np.int32)}


def _covering_fields(tree: nodes.Tree, label_policies: LabelPolicies) -> dict[str, np.ndarray]:
    """Return the arrays of a covering tree."""
    arrays = nodes.fields(tree)
    stat = arrays["stat"]
    memory = np.ascontiguousarray(stat[:, label_policies.n_known :])
    known = stat[:, : label_policies.n_known]
    if label_policies.is_regression:  # it keeps no price
        known = np.concatenate([known, np.zeros((len(known), 1))], axis=1)
    arrays["stat"] = np.ascontiguousarray(known)
    sizes = np.full(len(stat), memory.shape[1], np.int32)
    return {**arrays, "memory": memory.reshape(-1), "memory_size": sizes}


def _member_header(member: Member) -> dict[str, Any]:
    """Return what is known of a member beside its trees' nodes."""
    return {
        "mixer": member.mixer.to_json(),
        "scales": packed(member.scales),
        "buckets": packed(member.buckets),
        "levels": packed(member.levels),
        "trees": [
            {
                "number": place,
                "root": int(tree.head_i[nodes.ROOT]),
                "floats": [state.encode_float(value) for value in tree.head_f],
            }
            for place, tree in enumerate(member.trees)
        ],
    }


def read_header(header: dict[str, Any], trees: Sequence[dict[str, np.ndarray]]) -> StateParts:
    """Return the parts of a state of format ``FOLLOWING``.

    Raises
    ------
    CorruptError
        If the header's entry ``drift`` is not that of such a forest.
    """
    header, unforecast = _of_newest_version(header)
    header, trees = kept_taken_in(header, trees)
    for version in _FORMS:
        if header["drift"]["version"] == apart(version):
            header, trees = taken_in(header, trees, version)
    entry = header["drift"]
    ages, n = _checked_header(entry, header, len(trees))
    plain = {k: v for k, v in header.items() if k != "drift"} | {"format": state.FORMAT}
    permanent = [_without_memory(arrays) for arrays in trees[:n]]
    end = n * (1 + ages.n_places)
    starts = range(n, end, ages.n_places)
    covering = [trees[start : start + ages.n_places] for start in starts]
    scaled = [_without_memory(arrays) for arrays in trees[end:]]
    return StateParts(entry["position"], entry, plain, permanent, covering, scaled, unforecast)


def _without_memory(stored: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the arrays of a tree that is none of the covering ones."""
    arrays = dict(stored)
    memory, sizes = arrays.pop("memory", None), arrays.pop("memory_size", None)
    if memory is None or sizes is None or len(memory) or sizes.any():
        raise CorruptError("trees but covering ones should keep no memory beside their counts")
    return arrays


def has_guard(header: dict[str, Any]) -> bool:
    """Return whether the state of a header is that of a whole forest, and no shard's."""
    entry = header.get("drift")
    return not isinstance(entry, dict) or entry.get("guard") is not None


def _of_newest_version(header: dict[str, Any]) -> tuple[dict[str, Any], Any]:
    """Return a header as this version writes it, and the rows that wait in one of version 1.

    That version forecast the rows of a block at its end, and kept them as they came.
    """
    entry = header.get("drift")
    version: Any = entry.get("version") if isinstance(entry, dict) else type(entry).__name__
    may_lack = {"boosted"} if version in (_OF_TIMES, apart(_OF_TIMES)) else set()
    keys = _KEYS_OF.get(version) if type(version) is int else None
    if not isinstance(entry, dict) or set(entry) | may_lack != keys:
        raise CorruptError(
            "this version reads forests that follow a stream in versions 1 to "
            f"{max(_KEYS_OF)}, this one is of {str(version)[:40]!r}: use the version of dmondrian "
            "that wrote it"
        )
    if version != 1:
        return header, None
    settings = {name: entry[name] for name in ("first", "last", "delay")}
    guard, position = entry["guard"], entry["position"]
    later = {
        "version": version,
        "position": position,
        "guard": {"position": position, **(guard if isinstance(guard, dict) else {})},
        "members": entry["members"],
        "waiting": ["", "", ""],
    }
    parameters = header.get("parameters")
    known = {**(parameters if isinstance(parameters, dict) else {}), "drift": settings}
    return {**header, "parameters": known, "drift": later}, entry["waiting"]


def load_state(forest: Any, parts: StateParts) -> None:
    """Give a ``forest``, made of the permanent trees of a state, all else that the state has.

    Raises
    ------
    CorruptError
        If it is not one that such a forest can have.
    """
    parameters = forest.parameters
    if parameters.algorithm not in ("amf-classifier", "amf-regressor") or forest.warmup is not None:
        raise CorruptError(f"forests of {parameters.algorithm} do not follow a stream")
    if (forest.total_weight > 0.0) != (parts.position > 0):
        raise CorruptError(
            f"a forest of {parts.position} rows has total weight {forest.total_weight!r}"
        )
    forest.position = parts.position
    forest.waiting = _waiting(parts.drift["waiting"], parameters)
    forest.blocks.load_json(parts.drift, parts.position + len(forest.waiting.y))
    if len(forest.waiting.y) != forest.blocks.n_waiting(parts.position + len(forest.waiting.y)):
        raise CorruptError(f"{len(forest.waiting.y)} rows wait, and their block has others")
    if (forest.boosted is not None) != ("boosted" in parts.drift):
        raise CorruptError("boosted sets should be stored of a forest that has them, and no other")
    if forest.boosted is not None:
        fitting = _FORMS[parts.drift["version"]].fitting
        if fitting == CLIPPED and parameters.n_classes:
            raise CorruptError("no label of a class is far off, and boosted sets clip none")
        if (fitting == ROUNDS_FOUND) != parameters.drift.finds_rounds:
            raise CorruptError(
                "a state's boosted sets are fitted otherwise than its parameters have it"
            )
        forest.boosted = forest.stream_of_sets(fitting)
        forest.boosted.load_json(parts.drift["boosted"], parts.position)
    if (forest.scaled is not None) != ("scaled" in parts.drift):
        raise CorruptError("scaled trees should be stored of a forest that has them, and no other")
    if forest.scaled is not None:
        forest.scaled.load_state(parts.drift["scaled"], parts.scaled, parts.position)
    if forest.guard is not None:
        forest.guard.load_json(parts.drift["guard"], parts.position + len(forest.waiting.y))
        check_alike(forest)
    has_weights = parts.drift["version"] in _OF_WEIGHTS
    states = zip(forest.members, parts.drift["members"], parts.covering, strict=True)
    for member, entry, arrays in states:
        if forest.blocks.is_timed:
            member.mixer.set_delay(forest.blocks.delay)
        _fill(member, entry, arrays, forest.label_policies, parameters, parts.position, has_weights)
    if parts.unforecast is not None:
        rows = _waiting(parts.unforecast, parameters)
        if len(rows.y):
            forest.update(rows.X, rows.y, rows.w)


def check_alike(forest: Any) -> None:
    """Refuse a forest whose guard is in another block of time than its members."""
    if forest.guard.blocks.clock != forest.blocks.clock:
        raise CorruptError("the guard should be in the block of time that members are in")


def _checked_header(
    entry: dict[str, Any], header: dict[str, Any], n_trees: int
) -> tuple[Ages, int]:
    """Return ages and the number of members."""
    parameters = header.get("parameters")
    settings = DriftSettings.from_json(
        parameters.get("drift") if isinstance(parameters, dict) else None
    )
    entries, members = header.get("trees"), entry["members"]
    if (
        type(entry["position"]) is not int
        or not 0 <= entry["position"] <= _LARGEST_POSITION
        or not isinstance(entries, list)
        or not isinstance(members, list)
        or len(entries) != len(members)
        or not entries
        or any(not isinstance(member, dict) or set(member) != _MEMBER_KEYS for member in members)
    ):
        raise CorruptError("the header of a forest that follows a stream is out of range")
    ages = Ages(settings.first, settings.last)
    if n_trees != len(entries) * (1 + ages.n_places) + n_trees_of(entry.get("scaled")):
        raise CorruptError(
            f"{len(entries)} members should have {ages.n_places} trees each and one, and scaled "
            f"ones as in their header; found {n_trees}"
        )
    return ages, len(entries)


def _waiting(stored: Any, parameters: ForestParameters) -> LabelledRows:
    """Return the rows of a block that is not full."""
    kinds = list, str, np.ndarray
    if not isinstance(stored, list) or len(stored) != 3 or not isinstance(stored[1], kinds):
        raise CorruptError("rows that wait should be three lists of numbers")
    # A double is 8 bytes, 4 letters are 3 bytes.
    labels = stored[1]
    n = len(labels) * 3 // 4 // 8 if isinstance(labels, str) else len(labels)
    drift = parameters.drift
    assert drift is not None  # checked
    if n >= (drift.delay if drift.period is None else LARGEST_DELAY + 1):
        raise CorruptError(f"{n} rows wait for a block of {drift.period or drift.delay}")
    X = unpacked(stored[0], (n, parameters.n_features), np.float32)
    y, w = unpacked(stored[1], (n,), np.float64), unpacked(stored[2], (n,), np.float64)
    is_label = np.abs(y) <= LARGEST_TARGET
    if parameters.n_classes:
        is_label = (y >= 0) & (y < parameters.n_classes) & (y == np.floor(y))
    if not is_label.all() or not (w > 0.0).all() or not np.isfinite(X).all():
        raise CorruptError("rows that wait should have labels of their kind, and weights > 0")
    return LabelledRows(X, y, w)


def _fill(
    member: Member,
    entry: dict[str, Any],
    arrays: Sequence[dict[str, np.ndarray]],
    label_policies: LabelPolicies,
    parameters: ForestParameters,
    position: int,
    has_weights: bool,
) -> None:
    """Give a member its trees, scales, credits and weights, checked."""
    ages, d = member.ages, parameters.n_features
    member.mixer.load_json(entry["mixer"])
    member.scales[:] = unpacked(entry["scales"], member.scales.shape, np.float32)
    member.buckets[:] = unpacked(entry["buckets"], member.buckets.shape, np.float64)
    member.levels[:] = unpacked(entry["levels"], member.levels.shape, np.float64)
    if not ((member.scales > 0.0) & (member.scales <= LARGEST_SCALE)).all():
        raise CorruptError("feature scales of a covering tree should be numbers > 0")
    if (member.buckets[:, 1] < 0.0).any() or (member.levels[:, 1] < 0.0).any():
        raise CorruptError("visits of columns should not be negative")
    member.births[:] = ages.births_before(position)
    header = {"format": state.FORMAT, "parameters": None, "warmup": None, "trees": entry["trees"]}
    entries = state.check_header(header, len(arrays))
    built = []
    for tree_entry, tree_arrays, birth in zip(entries, arrays, member.births.tolist(), strict=True):
        fields = dict(tree_arrays)
        memory = _checked_memory(
            fields, label_policies, parameters, tree_entry["number"], has_weights
        )
        state.check_arrays(tree_entry, fields, state.FORMAT, parameters)
        if (tree_entry["root"] >= 0) != (birth >= 0):
            raise CorruptError(f"the tree in place {tree_entry['number']} has rows of another time")
        if birth >= 0 and len(fields["left"]) >= 2 * (position - birth):
            raise CorruptError(
                f"the tree in place {tree_entry['number']} has more nodes than rows allow"
            )
        fields["stat"] = np.concatenate(
            [fields["stat"][:, : label_policies.n_known], memory], axis=1
        )
        built.append(nodes.from_fields(fields, tree_entry, all_numeric(d))[0])
        if label_policies.is_regression:
            _check_scale(built[-1].head_f, tree_entry["number"])
    member.set_trees(built)


def _check_scale(floats: np.ndarray, place: int) -> None:
    """Refuse a covering tree whose scale of errors is that of no rows."""
    scale, n_forecasts, origin = floats[[nodes.ETA, nodes.NEXT_ETA, nodes.OFFSET]]
    is_sound = 0.0 <= scale < np.inf and 0.0 <= n_forecasts < np.inf
    if not is_sound or not abs(origin) <= LARGEST_TARGET:
        raise CorruptError(f"the tree in place {place} has errors of no rows")


def _checked_memory(
    fields: dict[str, np.ndarray],
    label_policies: LabelPolicies,
    parameters: ForestParameters,
    place: int,
    has_weights: bool,
) -> np.ndarray:
    """Take the memory out of a covering tree's fields, float64 [m, M], checked.

    After two memories, each of the size of what other trees know, come three factors, or weights
    of memories, as those of numbers are.
    """
    none = np.empty(0)
    memory, sizes = fields.pop("memory", none), fields.pop("memory_size", none)
    size = label_policies.n_known
    width = label_policies.n_stats - size
    is_given = "left" in fields and sizes.shape == fields["left"].shape
    if not is_given or memory.dtype != np.float64 or not (sizes == width).all():
        raise CorruptError(f"the tree in place {place} should keep {width} numbers a node")
    if len(memory) != width * len(fields["left"]):
        raise CorruptError(f"the tree in place {place} has a memory of another length")
    rows = memory.reshape(-1, width)
    is_sound = bool(np.isfinite(rows).all()) and bool((rows[:, -N_MEMORIES:] >= 0.0).all())
    for k in range(N_MEMORIES - 1):
        block = rows[:, k * size : (k + 1) * size]
        if label_policies.is_regression:  # weight, sum, sum of squares
            is_sound = is_sound and bool((block[:, 0] > 0.0).all() and (block[:, 2] >= 0.0).all())
            continue
        apart = np.abs(block[:, 1:].sum(axis=1) - block[:, 0])
        is_near = bool((apart <= _SLACK * (1.0 + block[:, 0])).all())
        is_sound = is_sound and is_near and bool((block >= 0.0).all())
    whole = np.ones((len(rows), N_MEMORIES))
    if not label_policies.is_regression:
        n_classes, stat = parameters.n_classes, fields.get("stat", none)
        if stat.shape != (len(rows), size) or stat.dtype != np.float64:
            raise CorruptError(f"the tree in place {place} should count {n_classes} classes a node")
        whole = np.stack([stat[:, 0], rows[:, 0], rows[:, size]], axis=1)
        whole += n_classes * float(parameters.alpha)
    if has_weights:
        rows = rows.copy()
        rows[:, -N_MEMORIES:] /= whole
    weights = (rows[:, -N_MEMORIES:] * whole).sum(axis=1)
    if not is_sound or not (np.abs(weights - 1.0) <= _SLACK).all():
        raise CorruptError(f"the memory of the tree in place {place} is not one of any rows")
    return rows
