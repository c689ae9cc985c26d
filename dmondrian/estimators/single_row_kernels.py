"""One row as it came, to one as kernels take it, if it needs no closer look.

Shapes: d features, p of them numeric, g stepped, b binary, q words of bits per value.
"""

from __future__ import annotations

import numpy as np

from dmondrian._numba.jit import kernel
from dmondrian.tree.box_encoding import fits_int16, steps_to, write_bits_of_row
from dmondrian.tree.quantization import rounded


@kernel
def convert_row(raw, scales, units, in_cube, columns, rows):
    """Write the only row of ``raw`` to ``rows``; return whether it can be learned as it is.

    It cannot, and ``rows`` means nothing, if a value is not finite as float32 or times its scale,
    or lies outside the cube, or a binary feature takes a third value, or a stepped one a value
    that steps cannot hold. -0 counts as outside: a row that is moved to the cube has no such value.

    ``raw`` float32 or float64 [1, d]; ``scales`` float32 [d], or [0] for scales of one; ``units``
    float64 [d] that values are rounded to, or [0]; ``rows`` as kernels read them, but writable.
    O(d).
    """
    x = rows.values[0]
    for j in range(x.shape[0]):
        value = np.float32(raw[0, j])
        if scales.shape[0] > 0:
            value = np.float32(value * scales[j])
        if units.shape[0] > 0:
            value = rounded(value, units[j], 1.0 / units[j])
        x[j] = value
        if not np.isfinite(value) or (in_cube and (np.signbit(value) or value > 1.0)):
            return False
    if columns.stepped.shape[0] + columns.binary.shape[0] == 0:
        return True
    for k in range(columns.numeric.shape[0]):
        rows.numeric[0, k] = x[columns.numeric[k]]
    for k in range(columns.stepped.shape[0]):
        steps = steps_to(columns, k, x[columns.stepped[k]])
        if not fits_int16(steps):
            return False
        rows.steps[0, k] = np.int16(steps)
    has_other_values = np.zeros(columns.binary.shape[0], np.bool_)
    patterns, wanted = x.view(np.int32), columns.values.view(np.int32)
    write_bits_of_row(patterns, wanted, columns, rows.bits[0], has_other_values)
    return not has_other_values.any()
