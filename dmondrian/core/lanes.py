"""Four comparisons in one instruction, which Python code cannot say.

Relies on Numba's intrinsics. Promises to mean the same as plain Python, under
``NUMBA_DISABLE_JIT=1`` too, and the same on every processor: comparisons do not round.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from dmondrian._jit import overload_part

LANES = 4


@intrinsic
def _first_apart(typing_context, words, row, x):
    def generate(context, builder, signature, args):
        memory = context.make_array(words)(context, builder, args[0])
        values = context.make_array(x)(context, builder, args[2])
        word, long, single = ir.IntType(32), ir.IntType(64), ir.FloatType()
        step = builder.mul(args[1], builder.extract_value(memory.strides, 0))
        start = builder.add(builder.ptrtoint(memory.data, long), step)
        start = builder.inttoptr(start, word.as_pointer())

        def place(k):
            return builder.gep(start, [ir.Constant(long, k)])

        four = ir.VectorType(single, LANES)
        thresholds = builder.load(builder.bitcast(place(LANES), four.as_pointer()))
        thresholds.align = 4
        asked = ir.Constant(four, ir.Undefined)
        for k in range(LANES):
            feature = builder.zext(builder.load(place(k)), long)
            value = builder.load(builder.gep(values.data, [feature]))
            asked = builder.insert_element(asked, value, ir.Constant(word, k))
        is_right = builder.bitcast(builder.fcmp_ordered(">", asked, thresholds), ir.IntType(LANES))
        stays = builder.trunc(builder.load(place(2 * LANES)), ir.IntType(LANES))
        apart = builder.zext(builder.xor(is_right, stays), long)
        stop = builder.or_(apart, ir.Constant(long, 1 << LANES))
        return builder.cttz(stop, ir.Constant(ir.IntType(1), 1))

    return types.int64(words, types.uint64, x), generate


def first_apart(words: Any, row: Any, x: Any) -> int:
    """Return the first of four conditions in which ``x`` parts from the way, 4 if in none.

    Parameters
    ----------
    words : int32 [m, w], rows contiguous
        Words of a row: four features, four thresholds (float32), then a word whose bit k is set
        where the way goes right at condition k, that is where x[feature] > threshold.
    row : uint64
    x : float32 [d], contiguous
    """
    four = words[row]
    is_right = x[four[:LANES]] > four[LANES : 2 * LANES].view(np.float32)
    stays = [bool(four[2 * LANES] >> k & 1) for k in range(LANES)]
    return int(np.append(is_right != stays, True).argmax())


@overload_part(first_apart)
def _first_apart_of_row(words, row, x):
    return lambda words, row, x: _first_apart(words, np.uint64(row), x)
