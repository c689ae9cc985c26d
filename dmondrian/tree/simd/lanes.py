"""Several comparisons in one instruction.

Relies on Numba's intrinsics. Promises to mean the same as plain Python, under
``NUMBA_DISABLE_JIT=1`` too, and the same on every processor: comparisons do not round.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dmondrian._numba.jit import intrinsic
from dmondrian._numba.llvm import ir, types

LANES = 4
WORDS = 16  # of a group of conditions, and where they begin
FEATURES, THRESHOLDS, SIDES, EXITS = 0, LANES, 2 * LANES, 2 * LANES + 1

_BIT, _LONG = ir.IntType(1), ir.IntType(64)


def way_on(groups: Any, group: Any, x: Any) -> int:
    """Return the exit of the first of four conditions that fails for ``x``, or the last exit.

    Parameters
    ----------
    groups : int32 [g, WORDS], contiguous
        Words of a group: four features, four thresholds (float32), a word whose bit k is set where
        the way goes right at condition k, that is where x[feature] > threshold, and whose bit 4 is
        set; then five exits.
    group : uint64
    x : float32 [d], contiguous
    """
    words = groups[group]
    thresholds = words[THRESHOLDS : THRESHOLDS + LANES].view(np.float32)
    for k in range(LANES):
        is_right = x[words[FEATURES + k]] > thresholds[k]
        if is_right != bool(words[SIDES] >> k & 1):
            return words[EXITS + k]
    return words[EXITS + LANES]


@intrinsic(way_on, mechanism="simd")
def _way_on(typing_context, groups, group, x):
    def generate(context, builder, signature, args):
        word, single = ir.IntType(32), ir.FloatType()
        values = elements(context, builder, x, args[2])
        first = builder.mul(args[1], ir.Constant(_LONG, WORDS))
        start = builder.gep(elements(context, builder, groups, args[0]), [first])

        def place(k):
            return builder.gep(start, [ir.Constant(_LONG, k)])

        four = ir.VectorType(single, LANES)
        thresholds = builder.load(builder.bitcast(place(THRESHOLDS), four.as_pointer()))
        thresholds.align = 4
        row_values = ir.Constant(four, ir.Undefined)
        for k in range(LANES):
            feature = builder.zext(builder.load(place(FEATURES + k)), _LONG)
            value = builder.load(builder.gep(values, [feature]))
            row_values = builder.insert_element(row_values, value, ir.Constant(word, k))
        is_right = builder.bitcast(
            builder.fcmp_ordered(">", row_values, thresholds), ir.IntType(LANES)
        )
        apart = builder.xor(builder.zext(is_right, word), builder.load(place(SIDES)))
        exit_index = builder.zext(builder.cttz(apart, ir.Constant(_BIT, 1)), _LONG)
        return builder.sext(builder.load(builder.gep(place(EXITS), [exit_index])), _LONG)

    return types.int64(groups, types.uint64, x), generate


def elements(context, builder, array_type, array):
    """Return the address of the first element."""
    return context.make_array(array_type)(context, builder, array).data


def vector_at(builder, data, start, kind):
    """Return the address of the vector of ``kind`` that begins with element ``start``."""
    return builder.bitcast(builder.gep(data, [start]), kind.as_pointer())
