"""Forecasts of a run's members, row by row, kept beside its checkpoints for members added later.

The guard of a forest that follows its stream learns from the forecasts of all members
(:mod:`dmondrian.drift.guard`), summed as whole numbers. A run keeps these sums, so that members
that are added to it learn the stream alone, and the guard of all is stepped by both::

    shares/000000000000000-000000000004096    of rows 0 to 4095 that have a positive weight

Relies on sums that depend on tree numbers, parameters, seed and stream alone, so that pieces of a
run that was killed, and went on from an earlier checkpoint, overlap and say the same. Promises that
a piece is checked when it is read: its digest, then every size.

Shapes: n rows, s whole numbers of outputs, T members, G inputs of a member.
"""

from __future__ import annotations

import hashlib
import json
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile
from typing import Any, NamedTuple

import numpy as np

from dmondrian.checkpoint.run import Run
from dmondrian.errors import CheckpointError, CorruptError

FOLDER = "shares"
PIECE_BYTES = 2**24
"""About how many bytes of shares are written as one object between two checkpoints."""
MOST_PIECES = 64
"""How many of the newest pieces, of less than half of `PIECE_BYTES`, are joined to larger ones."""
MOST_NUMBERS = 64
"""Most numbers of a row's shares that a run keeps: those of twelve classes."""

_NAME = re.compile(rf"{FOLDER}/([0-9]{{15}})-([0-9]{{15}})")
_MAGIC, _DIGEST = b"DMSHARE1", 32
_MOST_KEYS, _MOST_WIDTH = 8, 4096
_TYPES = {"int64": np.dtype(np.int64), "float64": np.dtype(np.float64)}

Shares = dict[int, np.ndarray]
"""As :data:`dmondrian.drift.guard.Shares`."""


class Piece(NamedTuple):
    """Forecasts of members for consecutive rows."""

    start: int  # row of positive weight
    shares: Shares
    exponents: dict[int, np.ndarray]  # by rows learned: see `Members.exponents_at_marks`

    @property
    def stop(self) -> int:
        """The row behind the last one."""
        return self.start + _length(self.shares)


def encode(piece: Piece) -> bytes:
    """Return a piece as bytes: a header, columns one byte of all numbers after the other."""
    arrays = {key: np.ascontiguousarray(whole) for key, whole in piece.shares.items()}
    about = {
        "start": piece.start,
        "rows": _length(arrays),
        "keys": [[key, array.dtype.name, array.shape[1]] for key, array in arrays.items()],
        "ages": [[rows, exponents.tolist()] for rows, exponents in sorted(piece.exponents.items())],
    }
    header = json.dumps(about).encode()
    body = b"".join(
        array.reshape(-1).view(np.uint8).reshape(-1, 8).T.tobytes() for array in arrays.values()
    )
    data = _MAGIC + len(header).to_bytes(8, "little") + header + zlib.compress(body, 1)
    return data + hashlib.sha256(data).digest()


def decode(data: bytes) -> Piece:
    """Return the piece of :func:`encode`.

    Raises
    ------
    CorruptError
        If the bytes are not those of a piece.
    """
    content, digest = data[:-_DIGEST], data[-_DIGEST:]
    if not content.startswith(_MAGIC) or hashlib.sha256(content).digest() != digest:
        raise CorruptError("what members forecast is damaged: its bytes are not what was written")
    n_header = int.from_bytes(content[8:16], "little")
    try:
        about = json.loads(content[16 : 16 + n_header])
        start, n, keys = int(about["start"]), int(about["rows"]), about["keys"]
        layout = [(int(key), _TYPES[name], int(width)) for key, name, width in keys]
        widths = [width for _, _, width in layout]
        if min([start, n, *widths]) < 0 or max([0, *widths]) > _MOST_WIDTH:
            raise ValueError("sizes")
        size = 8 * n * sum(widths)
        opened = zlib.decompressobj()
        body = opened.decompress(content[16 + n_header :], size + 1)
        if len(layout) > _MOST_KEYS or len(body) != size or n > size:
            raise ValueError("sizes")
        exponents = {int(rows): np.array(values, np.float64) for rows, values in about["ages"]}
        if any(values.ndim != 2 for values in exponents.values()):
            raise ValueError("ages")
    except (KeyError, TypeError, ValueError, OverflowError, zlib.error, RecursionError) as error:
        raise CorruptError(f"what members forecast is damaged: {str(error)[:80]}") from None
    shares, at = {}, 0
    for key, dtype, width in layout:
        columns = np.frombuffer(body, np.uint8, 8 * n * width, at).reshape(8, n * width)
        shares[key] = np.ascontiguousarray(columns.T).view(dtype).reshape(n, width)
        at += 8 * n * width
    return Piece(start, shares, exponents)


def pieces_of(run: Run) -> list[tuple[int, int]]:
    """Return the rows [start, stop) of the pieces that a run has."""
    matches = (_NAME.fullmatch(name) for name in run.store.list(FOLDER))
    return sorted((int(m[1]), int(m[2])) for m in matches if m)


def names_of(run: Run) -> list[str]:
    """Return the names of the objects, as they are to be copied with a run."""
    return [_name(start, stop) for start, stop in pieces_of(run)]


def covered(pieces: Iterable[tuple[int, int]]) -> int:
    """Return up to which row pieces, in their order, have all rows from row 0 on."""
    reached = 0
    for start, stop in pieces:
        if start > reached:
            break
        reached = max(reached, stop)
    return reached


class SharesWriter:
    """Writes the shares of a run's members into its folder, from a row on.

    Parameters
    ----------
    run : Run
    start : int
        Number of the first row.
    """

    def __init__(self, run: Run, start: int) -> None:
        self._run, self._start, self._n_bytes = run, start, 0
        self._parts: list[Shares] = []
        self._exponents: dict[int, np.ndarray] = {}

    def add(self, shares: Shares, exponents: Mapping[int, np.ndarray]) -> None:
        """Take the rows that come next, and write some if they are many."""
        self._parts.append(shares)
        self._exponents |= exponents
        self._n_bytes += sum(whole.nbytes for whole in shares.values())
        if self._n_bytes >= PIECE_BYTES:
            self.write()

    def write(self) -> None:
        """Write the rows that were taken and not written.

        Raises
        ------
        StoreError
            If the store refused or failed.
        """
        parts = [part for part in self._parts if _length(part)]
        if parts:
            whole = {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}
            piece = Piece(self._start, whole, self._exponents)
            self._run.store.put(_name(piece.start, piece.stop), encode(piece))
            self._start, self._parts, self._exponents, self._n_bytes = piece.stop, [], {}, 0
            row_bytes = sum(array.nbytes for array in whole.values()) // _length(whole)
            _join_newest(self._run, piece.stop, PIECE_BYTES // max(1, row_bytes))
        self._parts, self._exponents, self._n_bytes = [], {}, 0


def _join_newest(run: Run, stop: int, most: int) -> None:
    """Join the newest pieces of few rows, up to a row, where there are many of them.

    A run that `dmondrian follow` goes on with gets one at each look. Those joined are deleted
    afterwards: until then they overlap the new ones, and have the same rows.
    """
    pieces = [pair for pair in pieces_of(run) if pair[1] <= stop]
    some = list(takewhile(lambda pair: 2 * (pair[1] - pair[0]) < most, reversed(pieces)))[::-1]
    if len(some) < MOST_PIECES or covered([(0, some[0][0]), *some]) < stop:
        return
    kept, joined = KeptShares([run]), []
    exponents: dict[int, np.ndarray] = {}
    try:
        for pair in some:
            exponents |= _read(run, _name(*pair)).exponents
        for begin in range(some[0][0], stop, most):
            end = min(begin + most, stop)
            part_exponents = {
                rows: values for rows, values in exponents.items() if begin < rows <= end
            }
            joined.append(Piece(begin, kept.of(begin, end - begin)[0], part_exponents))
    except CheckpointError:
        return  # whoever needs the damaged one finds it named
    for piece in joined:
        run.store.put(_name(piece.start, piece.stop), encode(piece))
    written = {(piece.start, piece.stop) for piece in joined}
    run.store.delete(_name(*pair) for pair in some if pair not in written)


class KeptShares:
    """The shares of the members of some runs, by rows.

    Parameters
    ----------
    runs : sequence of Run
        In the order of their trees.
    """

    def __init__(self, runs: Sequence[Run]) -> None:
        self._runs = list(runs)
        self._known = [pieces_of(run) for run in self._runs]
        self._newest: list[Piece | None] = [None] * len(self._runs)

    @property
    def n_rows(self) -> int:
        """Rows of positive weight that all runs have, from the first on."""
        return min(covered(known) for known in self._known)

    def of(self, start: int, n: int) -> list[Shares]:
        """Return the shares of ``n`` rows from a row on, of each run.

        Raises
        ------
        CheckpointError
            If a run does not have them all.
        CorruptError
            If a piece is damaged.
        """
        return [self._of_run(i, start, n) for i in range(len(self._runs))]

    def exponents_at(self, rows: int) -> np.ndarray:
        """Return the exponents of all members' inputs after so many rows, float64 [T, G].

        Raises
        ------
        CheckpointError, CorruptError
            As of :meth:`of`.
        """
        exponents = []
        for i, run in enumerate(self._runs):
            piece = self._piece(i, rows - 1)
            if rows not in piece.exponents:
                raise CorruptError(f"{run.url} lacks the weights of its trees after {rows} rows")
            exponents.append(piece.exponents[rows])
        return np.concatenate(exponents)

    def check(self) -> None:
        """Check all pieces by reading them.

        Raises
        ------
        CorruptError
            If one is damaged.
        """
        for run, known in zip(self._runs, self._known, strict=True):
            for start, stop in known:
                _read(run, _name(start, stop))

    def _of_run(self, i: int, start: int, n: int) -> Shares:
        parts: list[Shares] = []
        at, stop = start, start + n
        while at < stop:
            piece = self._piece(i, at)
            end = min(stop, piece.stop)
            part_rows = slice(at - piece.start, end - piece.start)
            parts.append({key: whole[part_rows] for key, whole in piece.shares.items()})
            at = end
        return {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}

    def _piece(self, i: int, row: int) -> Piece:
        """Return the piece of a run that has a row."""
        newest = self._newest[i]
        if newest is not None and newest.start <= row < newest.stop:
            return newest
        run = self._runs[i]
        there = [pair for pair in self._known[i] if pair[0] <= row < pair[1]]
        if not there:
            raise CheckpointError(
                f"{run.url} does not have what its members forecast of row {row}: it was trained "
                "by an earlier version, or its shares are gone"
            )
        name = _name(*max(there, key=lambda pair: pair[1]))
        piece = _read(run, name)
        self._newest[i] = piece
        return piece


def _read(run: Run, name: str) -> Piece:
    try:
        piece = decode(run.store.get(name))
        if _name(piece.start, piece.stop) != name:
            raise CorruptError("it has other rows than its name")
    except CorruptError as error:
        raise CorruptError(
            f"{name} in {run.url}: {error}. Put it back from a copy of the run; new trees that are "
            "not finished are given up by deleting their folder in growth/"
        ) from None
    return piece


def _name(start: int, stop: int) -> str:
    return f"{FOLDER}/{start:015d}-{stop:015d}"


def _length(shares: Mapping[Any, np.ndarray]) -> int:
    return len(next(iter(shares.values())))
