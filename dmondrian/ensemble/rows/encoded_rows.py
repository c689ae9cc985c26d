"""Rows encoded once, for forests that differ in their feature scales.

A column's product with a power of two takes as many values, as many steps apart: steps and bits
stay as they are, and units and values are multiplied. So rows that many small forests learn, each
with scales of its own (:mod:`dmondrian.tuning.feature_scales`), are encoded once.

Relies on :mod:`dmondrian.tree.box_encoding_choice`. Promises rows that make the same trees, to the
last bit, as the products in floats do; and none where a product might not be exact.

Shapes: n rows, d features.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dmondrian.ensemble.rows.unit_cube import scale_columns
from dmondrian.ensemble.settings.parameters import ForestParameters
from dmondrian.tree.box_encoding import Columns, Rows, Stepped, make_columns, read_only
from dmondrian.tree.box_encoding_choice import find_columns, rows_of

# Of values and units, so that products with scales are normal numbers, and units that kernels take.
_LEAST, _LARGEST_UNIT = 2.0**-64, 2.0**64


@dataclass(frozen=True)
class EncodedRows:
    """Rows as kernels take them, and how they are written."""

    columns: Columns
    rows: Rows

    def __len__(self) -> int:
        return len(self.rows.values)

    def __getitem__(self, part: slice) -> EncodedRows:
        return EncodedRows(self.columns, Rows(*(values[part] for values in self.rows)))

    def times(self, scales: np.ndarray) -> EncodedRows:
        """Return the rows times feature scales.

        Parameters
        ----------
        scales : float32 [d]
            Powers of two from 2^-32 to 2.

        Raises
        ------
        ParameterError
            A value is beyond float32 then.
        """
        old, rows = self.columns, self.rows
        steps = Stepped(old.stepped, old.units * scales[old.stepped], old.origins)
        of_bits = old.values * scales[old.binary][:, None]
        values = read_only(scale_columns(rows.values, scales))
        numeric = values if rows.numeric is rows.values else read_only(values[:, old.numeric])
        columns = make_columns(len(scales), old.binary, of_bits, steps)
        return EncodedRows(columns, Rows(values, numeric, rows.steps, rows.bits))


def encode_rows(parameters: ForestParameters, X: np.ndarray) -> EncodedRows | None:
    """Return rows before they are scaled; None where a forest cannot learn them so.

    As where it has no boxes, or does more to rows than to scale them: on the cube, or rounded.

    Parameters
    ----------
    parameters : ForestParameters
    X : float32 [n, d], C-contiguous
        Finite.
    """
    if not parameters.has_boxes or parameters.domain == "cube" or parameters.feature_units:
        return None
    X = read_only(X)
    if (np.abs(X) < _LEAST).any() and (np.abs(X[X != 0.0]) < _LEAST).any():
        return None
    columns = find_columns(X.shape[1], (), X)
    if not ((columns.units >= _LEAST) & (columns.units <= _LARGEST_UNIT)).all():
        return None
    return EncodedRows(columns, rows_of(X, columns).rows)
