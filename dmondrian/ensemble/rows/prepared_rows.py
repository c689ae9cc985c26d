"""Rows prepared once: moved to the cube, scaled, rounded, and encoded as boxes are.

What a forest does to rows before its trees see them has two parts. The first follows from the
parameters alone (:class:`Preparation`), so that all forests of a run share its result. The second,
the encoding, follows from the boxes of an ensemble (:mod:`dmondrian.tree.box_encoding_choice`) and
could differ between two ensembles; but those that learned the same rows from the first one on
choose the same. So encodings are made when an ensemble first asks for one and kept with the rows,
by columns, for whoever asks next.

An encoding is made of all rows that were prepared together, and a slice takes its part: rows that
are learned in pieces, or by many forests, are encoded once. Where some of these rows do not fit the
encoding of an ensemble, it therefore finds another for the whole, not for the piece alone; that
changes memory and time only.

Relies on :mod:`dmondrian.tree.box_encoding_choice`. Promises values that depend on the parameters
and the row alone, and that threads which share rows prepare nothing twice.

Shapes: n rows, d features.
"""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock
from typing import Any

import numpy as np

from dmondrian.ensemble.rows.unit_cube import check_cube, clip_to_cube, scale_columns
from dmondrian.ensemble.settings.parameters import ForestParameters
from dmondrian.errors import ParameterError
from dmondrian.tree.box_encoding import Columns, Rows, read_only
from dmondrian.tree.box_encoding_choice import WrittenRows, are_same, fitted, rows_of
from dmondrian.tree.nodes import Tree
from dmondrian.tree.quantization import round_rows

_MOST_ENCODINGS = 2  # kept: those of ensembles that differ would take more memory than they save


class _Encodings:
    """Rows that were prepared together, encoded at most once for each kind of columns."""

    def __init__(self, values: np.ndarray) -> None:
        self.values = values
        self._lock = Lock()
        self._known: list[tuple[Columns, WrittenRows]] = []
        self._first: Columns | None = None

    def first(self, empty: Tree) -> Columns:
        """Return how trees without rows, of which ``empty`` is one, are to write their boxes."""
        with self._lock:
            if self._first is None:
                (tree,), rows = fitted([empty], self.values)
                self._first = tree.columns
                self._add(tree.columns, WrittenRows(rows, True, True))
        return self._first

    def get(self, columns: Columns) -> WrittenRows:
        """Return all rows as these columns write them, and whether they can."""
        with self._lock:
            written = self._find(columns)
            if written is None:
                written = rows_of(self.values, columns)
                self._add(columns, written)
        return written

    def keep(self, columns: Columns, rows: Rows) -> None:
        """Keep an encoding that was made elsewhere, in which all rows fit."""
        with self._lock:
            if self._find(columns) is None:
                self._add(columns, WrittenRows(rows, True, True))

    def _add(self, columns: Columns, written: WrittenRows) -> None:
        self._known = [(columns, written), *self._known[: _MOST_ENCODINGS - 1]]

    def _find(self, columns: Columns) -> WrittenRows | None:
        for known, written in self._known:
            if are_same(known, columns):
                return written
        return None

    @property
    def n_bytes(self) -> int:
        """Bytes of memory held by the values and their encodings."""
        arrays = [self.values]
        for _, written in self._known:
            arrays += [written.rows.steps, written.rows.bits]
            if written.rows.numeric is not self.values:
                arrays.append(written.rows.numeric)
        return sum(array.nbytes for array in arrays)


class PreparedRows:
    """Rows as the trees of some forests see them; made by :meth:`Preparation.prepare`.

    Slices share values and encodings. Any number of threads may share them.

    Attributes
    ----------
    values : float32 [n, d]
        Read-only, C-contiguous.
    """

    def __init__(
        self,
        key: tuple[Any, ...],
        encodings: _Encodings,
        part: slice | None = None,
        was_clipped: np.ndarray | None = None,
    ) -> None:
        self._key, self._encodings, self._part = key, encodings, part
        self._was_clipped = was_clipped  # bool [n]
        self.values = encodings.values if part is None else encodings.values[part]

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, rows: slice | np.ndarray) -> PreparedRows:
        """Return some of the rows: those of a slice with step 1, or a copy of any others."""
        clipped = None if self._was_clipped is None else self._was_clipped[rows]
        if isinstance(rows, slice):
            start, stop, _ = rows.indices(len(self))
            first = 0 if self._part is None else self._part.start
            part = slice(first + start, first + max(start, stop))
            return PreparedRows(self._key, self._encodings, part, clipped)
        return PreparedRows(self._key, _Encodings(read_only(self.values[rows])), None, clipped)

    @property
    def n_clipped(self) -> int:
        """Rows that were moved to the cube."""
        return 0 if self._was_clipped is None else int(self._was_clipped.sum())

    @property
    def n_bytes(self) -> int:
        """Bytes of memory held for all rows that were prepared together."""
        return self._encodings.n_bytes

    @property
    def together(self) -> np.ndarray:
        """Values of all rows that were prepared together with these."""
        return self._encodings.values

    def encode(self, columns: Columns) -> Rows | None:
        """Return the rows as boxes of these columns are written; None where some do not fit."""
        written = self._encodings.get(columns)
        return self._own(written.rows) if written.fit_bits and written.fit_steps else None

    def first_columns(self, empty: Tree) -> Columns:
        """Return the columns that are best for these rows and for trees without rows.

        Parameters
        ----------
        empty : Tree
            One without rows.
        """
        return self._encodings.first(empty)

    def keep(self, columns: Columns, rows: Rows) -> Rows:
        """Keep an encoding of :attr:`together`; return that of these rows."""
        self._encodings.keep(columns, rows)
        return self._own(rows)

    def _own(self, rows: Rows) -> Rows:
        return rows if self._part is None else Rows(*(values[self._part] for values in rows))


class Preparation:
    """Steps by which a forest prepares rows before its trees see them.

    Parameters
    ----------
    parameters : ForestParameters
        Domain, clipping, feature scales and units are taken from them.
    """

    def __init__(self, parameters: ForestParameters) -> None:
        scales, units = parameters.feature_scales, parameters.feature_units
        self._n_features, self._is_on_cube = parameters.n_features, parameters.domain == "cube"
        self._clips = self._is_on_cube and parameters.clip
        self._key = self._n_features, self._is_on_cube, self._clips, scales, units
        self._scales = None if scales is None else np.array(scales, np.float32)
        self._units = None if units is None else read_only(np.array(units, np.float64))

    def prepare(self, X: np.ndarray | PreparedRows) -> PreparedRows:
        """Return rows prepared; those that are so already as they are.

        Parameters
        ----------
        X : float32 [n, d], C-contiguous, or PreparedRows

        Raises
        ------
        ParameterError
            If rows have another width, or were prepared for forests of other parameters, or a
            value times its feature scale is beyond float32.
        DataError
            If rows lie outside the cube and are not moved to it.
        """
        if isinstance(X, PreparedRows):
            if X._key is not self._key and X._key != self._key:
                raise ParameterError(
                    "rows were prepared for forests of other scales, units or domain: prepare "
                    "them by this forest"
                )
            return X
        self.check_width(X)
        was_clipped = None
        if self._clips:
            X, was_clipped = clip_to_cube(X)
        self.check_domain(X)
        X = X if self._scales is None else scale_columns(X, self._scales)
        if self._units is not None:
            X, raw = np.empty(X.shape, np.float32), read_only(X)
            round_rows(raw, self._units, X)
        return PreparedRows(self._key, _Encodings(read_only(X)), None, was_clipped)

    def as_prepared(self, values: np.ndarray) -> PreparedRows:
        """Return rows from values that this made before, float32 [n, d]."""
        return PreparedRows(self._key, _Encodings(read_only(values)))

    def encoded(self, columns: Columns, rows: Rows) -> PreparedRows:
        """Return rows that were prepared and encoded elsewhere, for forests like this one."""
        encodings = _Encodings(rows.values)
        encodings.keep(columns, rows)
        return PreparedRows(self._key, encodings)

    def check_domain(self, X: np.ndarray, names: Sequence[str] | None = None) -> None:
        """Refuse rows outside the cube, where they are not moved to it; name the column."""
        if self._is_on_cube and not self._clips:
            check_cube(X, names)

    def check_width(self, X: np.ndarray) -> None:
        """Refuse rows of another width, which no kernel would notice."""
        if X.ndim != 2 or X.shape[1] != self._n_features:
            raise ParameterError(
                f"rows should have {self._n_features} features, got shape {X.shape}"
            )
