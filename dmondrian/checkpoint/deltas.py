"""Deltas: the state of a forest as the nodes that have changed since a whole state in the store.

A forest that learns few rows changes few of its nodes: those on the ways of these rows. Its
state is written as a difference from the last whole one of the same trees, never from another
difference: to read a state takes two blobs at most, and a damaged difference spoils no other
state. The next state is whole once differences have come to cost more than whole states do, on
average, once `MOST` of them need the same one, or where boxes are written another way by now.

Relies on marks of nodes (:mod:`dmondrian.tree.node_marks`) to find what has changed: `MARK_BYTES` a
node in memory beside the forest. Promises that a state which is read from a difference is, in every
number, the one that was written. Whoever reads blobs checks that they have their digests.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dmondrian._memory_limit import usable_bytes
from dmondrian._numba.mechanisms import uses
from dmondrian.checkpoint.codec import (
    NODE,
    Decoded,
    Since,
    StoredTrees,
    decode_blob,
    encode_forest,
)
from dmondrian.checkpoint.document import dump_json
from dmondrian.errors import CorruptError

if TYPE_CHECKING:
    from dmondrian.forest.forest import Forest
    from dmondrian.tree.box_encoding import Columns

MOST = 16
"""Differences from one whole state: as many checkpoints are lost where that one is damaged."""

LARGEST_SHARE = 0.5
"""Share of nodes that have changed up to which it is worth reading two blobs for a state."""

Array = np.ndarray[Any, Any]
Trees = list[dict[str, Array]]
Read = Callable[[str, int | None], bytes]  # of a digest and, where it is known, a number of bytes


@dataclass(frozen=True)
class Base:
    """A whole state in the store, and the marks of its nodes."""

    digest: str
    n_bytes: int
    marks: tuple[Array, ...]  # uint64 [m, 2] of each tree
    columns: Columns  # how its boxes are written, which marks do not show
    count: int = 0  # differences from it so far
    n_written: int = 0  # bytes of these

    @property
    def blob(self) -> tuple[str, int]:
        """Digest and number of bytes of the blob."""
        return self.digest, self.n_bytes


@dataclass(frozen=True)
class EncodedState:
    """A state encoded for a blob, and what it is a difference from."""

    data: bytes
    base: Base | None  # what it is the difference from; None of a whole state
    # of a whole state that others may be differences from
    marks: tuple[Array, ...] | None = None
    columns: Columns | None = None

    def base_after(self, digest: str) -> Base | None:
        """Return what the next state may be a difference from, once this one is stored."""
        if self.base is not None:
            n_written = self.base.n_written + len(self.data)
            return replace(self.base, count=self.base.count + 1, n_written=n_written)
        if self.marks is None or self.columns is None:
            return None
        return Base(digest, len(self.data), self.marks, self.columns)


class State(NamedTuple):
    """A state that was read from its blob, and, of a difference, from that of its base."""

    header: dict[str, Any]
    trees: Trees | StoredTrees
    digest: str  # of its blob
    n_bytes: int  # of that
    since: Since | None  # where it is a difference
    changed: list[tuple[Array, int]]  # of a difference: nodes of each tree, and how many were there
    form: int  # of the forest

    def base(self, forest: Forest) -> Base | None:
        """Return what the next state may be a difference from; None if it has to be whole.

        ``forest`` is made of this state, and has learned no more.
        """
        from dmondrian.forest.state import NESTED

        rows = _rows_of(forest)
        if rows is None or self.form != NESTED:  # an earlier version wrote boxes another way
            return None
        marks, columns = _marks_of(forest, rows), forest.trees[0].columns
        if self.since is None:
            return Base(self.digest, self.n_bytes, marks, columns)
        from dmondrian.tree.node_marks import unknown

        before = (
            unknown(marks_now, *of) for marks_now, of in zip(marks, self.changed, strict=True)
        )
        n_written = self.since.n_written + self.n_bytes
        named = self.since.digest, self.since.n_bytes
        return Base(*named, tuple(before), columns, self.since.n_earlier + 1, n_written)


def _rows_of(forest: Forest) -> list[int] | None:
    """Return the nodes of each tree of a forest that may be stored as a difference; else None."""
    from dmondrian.forest import forest as of_forests

    rows = _counts(forest)
    return rows if rows and max(rows) >= of_forests.LEAST_SPARSE else None


def _counts(forest: Forest) -> list[int]:
    """Return the nodes of each tree of a forest with boxes that learns each row once, else none."""
    from dmondrian.tree.nodes import N_NODES

    is_plain = forest.parameters.has_boxes and not forest.parameters.follows_stream
    if not (is_plain and uses("deltas")):
        return []
    return [int(tree.head_i[N_NODES]) for tree in forest.store.trees]


def _marks_of(forest: Forest, rows: Sequence[int]) -> tuple[Array, ...]:
    from dmondrian.tree.node_marks import marks_of

    return tuple(marks_of(tree, m) for tree, m in zip(forest.trees, rows, strict=True))


def encode_state(
    forest: Forest, base: Base | None = None, is_whole: bool = False, is_last: bool = False
) -> EncodedState:
    """Write the state of a forest that nobody changes meanwhile, whole or as a difference.

    Parameters
    ----------
    forest : Forest
    base : Base or None
        The last whole state of these trees that is in the store.
    is_whole : bool
        Whether the state is to be whole.
    is_last : bool
        Whether no other will be a difference from it, besides.
    """
    rows = None if is_last else _rows_of(forest)
    if rows is None:
        return EncodedState(encode_forest(*forest.stored()), None)
    from dmondrian.tree.box_encoding_choice import are_same as are_alike
    from dmondrian.tree.node_marks import changed_nodes

    marks, columns = _marks_of(forest, rows), forest.trees[0].columns
    may_differ = base is not None and len(base.marks) == len(rows) and not is_whole
    if base is not None and may_differ and are_alike(columns, base.columns):
        each = zip(forest.trees, marks, base.marks, strict=True)
        changed = [changed_nodes(*tree_and_marks) for tree_and_marks in each]
        counts = [len(nodes) for nodes in changed]
        if _pays(sum(counts), sum(rows), base):
            since = Since(base.digest, base.n_bytes, base.count, base.n_written, rows)
            trees = (
                {**fields, NODE: nodes}
                for fields, nodes in zip(forest.stored_nodes(rows, changed), changed, strict=True)
            )
            return EncodedState(encode_forest(forest.stored()[0], trees, counts, since), base)
    return EncodedState(encode_forest(*forest.stored()), None, marks, columns)


def warm_marks(forest: Forest) -> None:
    """Compile the kernels that differences need, where the forest may once be stored as one."""
    if rows := _counts(forest):
        from dmondrian.tree.node_marks import changed_nodes

        for tree, marks in zip(forest.trees, _marks_of(forest, rows), strict=True):
            changed_nodes(tree, marks, marks)


def _pays(n_changed: int, n_nodes: int, base: Base) -> bool:
    """Return whether a difference costs less than states since the base did, on average."""
    n_bytes = base.n_bytes * n_changed / sum(map(len, base.marks))
    average = (base.n_bytes + base.n_written) / (base.count + 1)
    return base.count < MOST and n_changed <= LARGEST_SHARE * n_nodes and n_bytes < average


def read_state(
    read: Read,
    digest: str,
    n_bytes: int | None = None,
    *,
    name: str,
    max_bytes: int | None = None,
    without: Sequence[str] = (),
) -> State:
    """Read a state that `encode_state` wrote.

    Parameters
    ----------
    read : callable
        Returns the bytes of a blob by its digest and, where it is known, its size; checked. What
        it raises goes through.
    digest : str
    n_bytes : int or None
        Of the blob with that digest.
    name : str
        What it is called in error messages.
    max_bytes : int or None
        Largest size of all arrays together, as of
        :func:`~dmondrian.checkpoint.codec.decode_forest`.
    without : sequence of str
        Fields of trees that are not decoded.

    Raises
    ------
    CorruptError
        The bytes are no state; what is wrong with a tree's numbers when it is decoded.
    """
    limit = usable_bytes() // 2 if max_bytes is None else max_bytes
    data = read(digest, n_bytes)
    decoded, n_read = decode_blob(data, name=name, max_bytes=limit, without=without), len(data)
    del data
    since = decoded.since
    if since is None:
        return State(decoded.header, decoded.trees, digest, n_read, None, [], _form(decoded))
    named = f"{name}, which has changed since blobs/{since.digest}"
    data = read(since.digest, since.n_bytes)
    whole = decode_blob(data, name=named, max_bytes=limit, without=without)
    del data
    is_base = whole.since is None and _form(whole) == _form(decoded)
    if not is_base or len(whole.trees) != len(decoded.trees):
        raise CorruptError(
            f"{named}: that is no whole state of {len(decoded.trees)} trees. {_ADVICE}"
        )
    changes, before = list(decoded.trees), list(whole.trees)
    changed = [
        (changed_nodes[NODE], _length(tree))
        for changed_nodes, tree in zip(changes, before, strict=True)
    ]
    try:
        trees = _patched(before, changes, since.nodes, limit)
    except CorruptError as error:
        raise CorruptError(f"{named}: {error} {_ADVICE}") from error
    return State(decoded.header, trees, digest, n_read, since, changed, _form(decoded))


def _form(decoded: Decoded) -> int:
    """Return the format of a forest; 0 where it names none."""
    form = decoded.header.get("format") if isinstance(decoded.header, dict) else None
    return form if type(form) is int else 0


def _length(tree: Mapping[str, Array]) -> int:
    return len(next(iter(tree.values()), ()))


def are_same(read: Read, *shards: Mapping[str, Any]) -> bool:
    """Return whether entries of manifests are of equal states, in every number.

    Raises
    ------
    CorruptError
        One of them cannot be read.
    """
    first, *rest = (
        read_state(read, shard["digest"], shard["bytes"], name=f"blobs/{shard['digest']}")
        for shard in shards
    )
    trees = list(first.trees)
    return all(
        dump_json(first.header) == dump_json(state.header)
        and are_same_trees(trees, list(state.trees))
        for state in rest
    )


def are_same_trees(
    first: Sequence[Mapping[str, Array]], second: Sequence[Mapping[str, Array]]
) -> bool:
    """Return whether trees have the same fields, to the last bit."""
    return len(first) == len(second) and all(
        a.keys() == b.keys() and all(_is_same(a[name], b[name]) for name in a)
        for a, b in zip(first, second, strict=True)
    )


def _is_same(first: Array, second: Array) -> bool:
    return (
        first.dtype == second.dtype
        and first.shape == second.shape
        and np.ascontiguousarray(first).tobytes() == np.ascontiguousarray(second).tobytes()
    )


_ADVICE = "It is damaged or was not written by dmondrian: use an earlier checkpoint."


def _patched(trees: Trees, changed: Trees, sizes: Sequence[int], limit: int) -> Trees:
    """Return trees with the nodes that have changed; both lists are emptied."""
    patched: Trees = []
    while trees:
        tree, new_fields, n_nodes = trees.pop(0), changed.pop(0), sizes[len(patched)]
        nodes = new_fields.pop(NODE)
        _check(tree, new_fields, nodes, n_nodes)
        # One of its fields is there twice, which the other half of the memory has a place for.
        n_bytes = sum(field.nbytes for fields in (*trees, *patched) for field in fields.values())
        n_bytes += n_nodes * sum(
            field.dtype.itemsize * math.prod(field.shape[1:]) for field in new_fields.values()
        )
        if n_bytes > limit:
            raise CorruptError(
                f"It declares trees of {n_bytes} bytes, more than the {limit} bytes that may be "
                "used."
            )
        patched.append(
            {name: _field(tree.pop(name), new_fields.pop(name), nodes, n_nodes) for name in [*tree]}
        )
    return patched


def _check(
    tree: Mapping[str, Array], new_fields: Mapping[str, Array], nodes: Array, m: int
) -> None:
    """Refuse changed nodes that are out of order or lack new ones, and states of other fields."""
    kinds, new_kinds = (
        {name: (field.dtype, field.shape[1:]) for name, field in fields.items()}
        for fields in (tree, new_fields)
    )
    if kinds != new_kinds:
        raise CorruptError("The fields of the two states differ.")
    n_before = min(m, _length(tree))
    is_rising = (nodes[1:] > nodes[:-1]).all() and (nodes[:1] >= 0).all() and (nodes[-1:] < m).all()
    if not is_rising or np.count_nonzero(nodes >= n_before) != m - n_before:
        raise CorruptError(
            "The nodes that have changed are not in order, or lack some that are new."
        )


def _field(before: Array, changed: Array, nodes: Array, n_nodes: int) -> Array:
    """Return a field of a tree with the nodes that have changed; in its memory where it can."""
    field = before
    if len(before) != n_nodes or not before.flags.writeable:
        n = min(len(before), n_nodes)
        field = np.empty((n_nodes, *before.shape[1:]), before.dtype)
        field[:n] = before[:n]
    field[nodes] = changed
    return field
