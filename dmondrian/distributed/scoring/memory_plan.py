"""Memory plan: what workers need to use a model, and how its trees are placed within their limits.

Relies on the sizes stored in a model's blobs, on the workers' memory limits, and on Dask, which
spills and warns at 70 per cent of a limit and pauses at 80. Promises that a placement stays below
70, or an error with the limit that would suffice; and that a placement depends on sizes and numbers
alone. Trees and running sums are counted exactly; the rows of a task by an allowance per value,
which long strings in kept columns may exceed.
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
"""Share of a worker's limit that a placement may use: Dask warns and spills above it."""

PROCESS_BYTES = 384 << 20
"""Of a worker process without rows and trees: 365 MB measured, with compiled kernels."""

TREE_BYTES = 8192
"""Of a tree in addition to its nodes: Python objects and small arrays."""

VALUE_BYTES = 16
"""Allowance for a value of a column: a number, or a short string with its offset."""

TOGETHER = 2**23
"""Most encoded values of small blocks that are predicted together: 32 MiB."""

_WAVE = 16  # parts per pipeline slot between two polls of the workers' limits


@dataclass(frozen=True)
class BlobMemory:
    """A blob and its memory needs."""

    blob: Blob
    held: int  # bytes of its trees
    loading: int  # bytes needed beside these while it is loaded


@dataclass(frozen=True)
class Group:
    """Trees that are in memory together."""

    blobs: tuple[Blob, ...]  # in the order of their trees' numbers
    n_bytes: int  # needed at most to load and hold them


@dataclass(frozen=True)
class Needs:
    """Memory needs of the rows of one part."""

    task: int  # bytes of a task without trees and running sums
    sums: int  # bytes of the running sums of its rows


@dataclass(frozen=True)
class TreePlacement:
    """Placement of trees on workers, and number of parts in memory."""

    passes: tuple[tuple[Group, ...], ...]  # the groups of a pass are held by different workers
    capacity: int | None  # bytes of trees that a worker may hold; None for no limit
    window: int | None  # parts in the pipeline at a time; None: enough for all threads
    wave: int | None  # parts that go through all passes together; None: all

    @property
    def n_groups(self) -> int:
        """Number of groups of trees; 1 is the whole model."""
        return sum(map(len, self.passes))


def parse_limit(limit: str | int | None) -> int | None:
    """Parse "512MiB", "2 GB", a number of bytes, or None.

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


def memory_of(
    blob: Blob, sizes: Sequence[int], stored_sizes: Sequence[int], is_in_turn: bool
) -> BlobMemory:
    """Return the memory needs of a blob, from the bytes of its trees' nodes.

    ``stored_sizes`` count boxes that are left out as well: Arrow decodes all columns of a tree.

    Loading needs its bytes, its decoded columns, the trees and the memory to check one tree, at
    most the size of the tree. Columns are of one tree, and of the one before, ``is_in_turn``; of a
    difference those of all trees, at most half of the nodes decoded twice. Flat predictors of the
    trees take less than half their bytes again.
    """
    held, decoded = 3 * sum(sizes) // 2 + TREE_BYTES * len(sizes), sum(stored_sizes)
    if blob.base is not None:
        decoded += decoded // 2
    elif is_in_turn:
        decoded = min(2 * max(stored_sizes, default=0), decoded)
    return BlobMemory(blob, held, blob.all_bytes + decoded + max(sizes, default=0))


def row_needs(
    blocks: Iterable[Sequence[Block]], n_features: int, n_columns: int, widths: Mapping[str, int]
) -> Needs:
    """Return the memory needs of the largest part.

    Parameters
    ----------
    blocks : iterable of sequences of Block
        The blocks of each part.
    n_features, n_columns : int
        Features of an encoded row; columns read from a file.
    widths : mapping
        Doubles per row: of running "sums", and of the "result" of a task.
    """
    parts = [list(part) for part in blocks]
    most = max((sum(block.rows for block in part) for part in parts), default=0)
    block = max((block.rows for part in parts for block in part), default=0)
    group = max((block.group_rows for part in parts for block in part), default=0)
    # Encoded float32, the same multiplied by scales, one column being encoded; sums and results.
    together = max(block, min(most, max(JOINED_ROWS, TOGETHER // max(1, n_features))))
    encoded = together * (12 * n_features + 16 * widths["sums"])
    read = 2 * group * n_columns * VALUE_BYTES
    written = 3 * most * 8 * widths["result"]  # as table, encoded, and as bytes
    return Needs(encoded + read + written, most * 8 * widths["sums"])


def place_trees(
    trees: Sequence[BlobMemory], needs: Needs, threads: Mapping[str, int], limit: int | None
) -> TreePlacement:
    """Return a placement of trees on workers.

    Parameters
    ----------
    trees : sequence of BlobMemory
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
        return TreePlacement(((whole,),), None, None, None)
    most = max(threads.values(), default=1)
    free = int(USABLE * limit) - PROCESS_BYTES - most * needs.task
    if whole.n_bytes <= free:
        return TreePlacement(((whole,),), free, None, None)
    # A worker may hold the sums of a part twice: received and computed.
    free -= most * needs.sums
    least = max(_group([memory]).n_bytes for memory in trees)
    if least + 4 * needs.sums > free:
        _refuse(limit, limit + int((least + 4 * needs.sums - free) / USABLE) + 1, most)
    wanted = 2 * sum(threads.values()) + 1  # parts that keep all threads busy
    cap = max(least, free - needs.sums * max(4, min(4 * wanted, free // (4 * (needs.sums or 1)))))
    groups = _cut(trees, cap, len(threads))
    passes = tuple(tuple(groups[i : i + len(threads)]) for i in range(0, len(groups), len(threads)))
    capacity = max(group.n_bytes for group in groups)
    slots = (free - capacity) // (needs.sums or 1)  # running sums that a worker may hold
    if len(passes) == 1:
        window = max(1, min(wanted, slots // 2))
        return TreePlacement(passes, capacity, window, _WAVE * window)
    # Between two passes one worker may hold all sums of a wave.
    window = max(1, min(wanted, slots // 4))
    return TreePlacement(passes, capacity, window, min(slots - 2 * window, _WAVE * window))


def _group(trees: Sequence[BlobMemory]) -> Group:
    held = sum(memory.held for memory in trees)
    return Group(
        tuple(memory.blob for memory in trees), held + max(memory.loading for memory in trees)
    )


def _cut(trees: Sequence[BlobMemory], cap: int, n_workers: int) -> list[Group]:
    """Cut the trees into even, consecutive groups below `cap`, a multiple of `n_workers`."""
    wanted = len(_packed(trees, cap))
    wanted = -(-wanted // n_workers) * n_workers
    low, high = max(_group([memory]).n_bytes for memory in trees), cap
    while low < high:  # bisect for the smallest cap with as few groups
        middle = (low + high) // 2
        if len(_packed(trees, middle)) <= wanted:
            high = middle
        else:
            low = middle + 1
    return [_group(packed) for packed in _packed(trees, high)]


def _packed(trees: Sequence[BlobMemory], cap: int) -> list[list[BlobMemory]]:
    groups: list[list[BlobMemory]] = [[]]
    held = loading = 0  # of the last group; see `_group`
    for memory in trees:
        held, loading = held + memory.held, max(loading, memory.loading)
        if groups[-1] and held + loading > cap:
            groups.append([])
            held, loading = memory.held, memory.loading
        groups[-1].append(memory)
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
