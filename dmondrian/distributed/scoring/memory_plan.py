"""Memory: what a worker needs to use a model, and how the trees are shared out under its limit.

Relies on what the blobs of a model say of their sizes, on the workers' own limits, and on Dask,
which spills and warns at 70 per cent of a limit and pauses at 80. Promises that the bytes of a
layout stay below 70, or an error which says what limit would do; and that a layout depends on sizes
and numbers alone. Trees and running sums are counted exactly; the rows of a task by an allowance
per value, which long strings in columns that are kept may exceed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from dask.utils import parse_bytes

from dmondrian.checkpoint import Blob
from dmondrian.data import Block
from dmondrian.data.chunks import JOINED_ROWS
from dmondrian.errors import ClusterError, ParameterError

USABLE = 0.7
"""Share of a worker's limit that is planned with: Dask warns and spills above it."""

PROCESS_BYTES = 384 << 20
"""A worker process without rows and trees: 365 MB were measured, with compiled kernels."""

TREE_BYTES = 8192
"""Of a tree beside its nodes: Python objects and small arrays."""

VALUE_BYTES = 16
"""Allowed for a value of a column in memory: a number, or a short string with its offset."""

TOGETHER = 2**23
"""Encoded values up to which small blocks are answered together: 32 MiB."""

_WAVE = 16  # rounds of the pipeline between two looks at the workers' limits


@dataclass(frozen=True)
class Stored:
    """A blob and what it needs in memory."""

    blob: Blob
    held: int  # bytes of its trees
    loading: int  # bytes needed beside, only while it is loaded


@dataclass(frozen=True)
class Group:
    """Trees that are in memory together."""

    blobs: tuple[Blob, ...]  # in the order of their trees' numbers
    n_bytes: int  # that loading and holding them needs at most


@dataclass(frozen=True)
class Needs:
    """What the rows of one part need."""

    task: int  # bytes of a task beside trees and running sums
    sums: int  # bytes of the running sums of its rows


@dataclass(frozen=True)
class Layout:
    """How trees and parts are shared out."""

    passes: tuple[tuple[Group, ...], ...]  # the groups of a pass are held by different workers
    room: int | None  # bytes of trees that a worker may hold; None where there is no limit
    window: int | None  # parts under way at a time; None: as many as the threads want
    wave: int | None  # parts that go through all passes before the next ones; None: all

    @property
    def n_groups(self) -> int:
        """Groups of trees; one is the whole model."""
        return sum(map(len, self.passes))


def parse_limit(limit: str | int | None) -> int | None:
    """Read "512MiB", "2 GB", a number of bytes, or None.

    Raises
    ------
    ParameterError
        For anything else, and for zero.
    """
    if limit is None:
        return None
    try:
        n_bytes = 0 if isinstance(limit, bool) or limit == "" else parse_bytes(limit)
    except (ValueError, TypeError, AttributeError):
        n_bytes = 0
    if n_bytes < 1:
        raise ParameterError(
            f'memory_limit is {limit!r}; expected bytes of a worker such as "2GiB" or "800 MB"'
        )
    return int(n_bytes)


def stored(blob: Blob, sizes: Sequence[int]) -> Stored:
    """Return what a blob needs, from the bytes of its trees' nodes.

    While it is loaded there are its bytes, its decoded columns, the trees themselves and what
    checking one tree needs, at most as much as the tree. Trees that predict for long are frozen,
    which takes less than half their bytes again.
    """
    held = 3 * sum(sizes) // 2 + TREE_BYTES * len(sizes)
    return Stored(blob, held, blob.n_bytes + sum(sizes) + max(sizes, default=0))


def row_needs(
    blocks: Iterable[Sequence[Block]], n_features: int, n_columns: int, widths: Mapping[str, int]
) -> Needs:
    """Return what parts of rows need.

    Parameters
    ----------
    blocks : iterable of sequences of Block
        The blocks of each part.
    n_features, n_columns : int
        Of an encoded row; read from a file.
    widths : mapping
        Doubles per row: "sums" that run from group to group, and "result" of a task.
    """
    parts = [list(part) for part in blocks]
    most = max((sum(block.rows for block in part) for part in parts), default=0)
    block = max((block.rows for part in parts for block in part), default=0)
    group = max((block.group_rows for part in parts for block in part), default=0)
    # Encoded float32, multiplied by scales, and one column on its way; then sums and results.
    together = max(block, min(most, max(JOINED_ROWS, TOGETHER // max(1, n_features))))
    encoded = together * (12 * n_features + 16 * widths["sums"])
    read = 2 * group * n_columns * VALUE_BYTES
    written = 3 * most * 8 * widths["result"]  # as a table, encoded, and as bytes
    return Needs(encoded + read + written, most * 8 * widths["sums"])


def lay_out(
    trees: Sequence[Stored], needs: Needs, threads: Mapping[str, int], limit: int | None
) -> Layout:
    """Share out the trees.

    Parameters
    ----------
    trees : sequence of Stored
        The model, in the order of the trees' numbers.
    needs : Needs
    threads : mapping
        Threads of each worker.
    limit : int or None
        Bytes of memory of the smallest worker; None if unlimited.

    Raises
    ------
    ClusterError
        Not even one blob at a time fits.
    """
    whole = _group(trees)
    if limit is None:
        return Layout(((whole,),), None, None, None)
    most = max(threads.values(), default=1)
    free = int(USABLE * limit) - PROCESS_BYTES - most * needs.task
    if whole.n_bytes <= free:
        return Layout(((whole,),), free, None, None)
    # Each part under way may have its sums twice with one worker: as they came, and those made.
    free -= most * needs.sums
    least = max(_group([one]).n_bytes for one in trees)
    if least + 4 * needs.sums > free:
        _refuse(limit, limit + int((least + 4 * needs.sums - free) / USABLE) + 1, most)
    wanted = 2 * sum(threads.values()) + 1  # parts under way that keep all threads busy
    cap = max(least, free - needs.sums * max(4, min(4 * wanted, free // (4 * (needs.sums or 1)))))
    groups = _cut(trees, cap, len(threads))
    passes = tuple(tuple(groups[i : i + len(threads)]) for i in range(0, len(groups), len(threads)))
    room = max(group.n_bytes for group in groups)
    slots = (free - room) // (needs.sums or 1)  # running sums that a worker may hold
    if len(passes) == 1:
        window = max(1, min(wanted, slots // 2))
        return Layout(passes, room, window, _WAVE * window)
    # Between two passes all sums of a wave may lie with one worker.
    window = max(1, min(wanted, slots // 4))
    return Layout(passes, room, window, min(slots - 2 * window, _WAVE * window))


def _group(trees: Sequence[Stored]) -> Group:
    held = sum(one.held for one in trees)
    return Group(tuple(one.blob for one in trees), held + max(one.loading for one in trees))


def _cut(trees: Sequence[Stored], cap: int, n_workers: int) -> list[Group]:
    """Cut the trees into consecutive groups below `cap`, even ones, a multiple of the workers."""
    wanted = len(_packed(trees, cap))
    wanted = -(-wanted // n_workers) * n_workers
    low, high = max(_group([one]).n_bytes for one in trees), cap
    while low < high:  # the smallest cap that still makes so few groups
        middle = (low + high) // 2
        if len(_packed(trees, middle)) <= wanted:
            high = middle
        else:
            low = middle + 1
    return [_group(packed) for packed in _packed(trees, high)]


def _packed(trees: Sequence[Stored], cap: int) -> list[list[Stored]]:
    groups: list[list[Stored]] = [[]]
    held = loading = 0  # of the last group; see `_group`
    for one in trees:
        held, loading = held + one.held, max(loading, one.loading)
        if groups[-1] and held + loading > cap:
            groups.append([])
            held, loading = one.held, one.loading
        groups[-1].append(one)
    return groups


def _refuse(limit: int, enough: int, threads: int) -> None:
    fewer = ", fewer threads per worker" if threads > 1 else ""
    raise ClusterError(
        f"a worker's memory limit of {_mebibytes(limit)} is too small to use this model, even with "
        f"one of its shards in memory at a time: {_mebibytes(enough)} would do; give workers more "
        f"memory{fewer}, or train with more shards (n_shards)"
    )


def _mebibytes(n_bytes: int) -> str:
    return f"{-(-n_bytes // (1 << 20)):,} MiB"
