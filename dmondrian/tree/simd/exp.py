"""Exponentials and quotients of several numbers at once, and the lowest bit of a word.

Relies on Numba's intrinsics. Promises to mean the same as plain Python, under
``NUMBA_DISABLE_JIT=1`` too, and the same to the last bit on every processor.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dmondrian._numba.jit import intrinsic
from dmondrian._numba.llvm import cgutils, ir, types
from dmondrian.tree.keyed_random import LN2_HIGH, LN2_LOW, LOG2_E, TAYLOR, exp
from dmondrian.tree.simd.lanes import elements, vector_at

_BIT, _LONG = ir.IntType(1), ir.IntType(64)
_EXP_LANES = 8
# With it a small whole number k gets the bits of 2^k, at the end.
_WHOLE = 1.5 * 2.0**52 + 1023.0


def _power_of_e(builder, x, kind):
    """Return what :func:`dmondrian.tree.keyed_random.exp` does of a vector, in the same steps."""
    longs = ir.VectorType(_LONG, kind.count)
    mul, add, sub = builder.fmul, builder.fadd, builder.fsub

    def each(value):
        return ir.Constant(kind, [value] * kind.count)

    name = f"llvm.floor.v{kind.count}f64"
    floor = cgutils.get_or_insert_function(builder.module, ir.FunctionType(kind, [kind]), name)
    k = builder.call(floor, [add(mul(x, each(LOG2_E)), each(0.5))])
    r = sub(sub(x, mul(k, each(LN2_HIGH))), mul(k, each(LN2_LOW)))
    z = mul(r, r)

    def four(n):
        a, b, c, d = map(each, TAYLOR[n : n + 4])
        return add(add(a, mul(b, r)), mul(z, add(c, mul(d, r))))

    both = add(four(6), mul(mul(z, z), four(10)))
    total = add(each(1.0), add(r, mul(z, add(four(2), mul(mul(z, z), both)))))
    bits = builder.bitcast(add(k, each(_WHOLE)), longs)
    power = builder.shl(bits, ir.Constant(longs, [52] * kind.count))
    return mul(total, builder.bitcast(power, kind))


def write_exponentials(values: Any, n: Any) -> None:
    """Write e^x in the place of each x of the first ``n``.

    Parameters
    ----------
    values : float64 [m], contiguous
        The first ``n`` in [-700, 700]. Those up to the next multiple of 8, which m must not be
        below, may be written to too.
    n : uint64
    """
    for j in range(int(n)):
        values[j] = exp(values[j])


@intrinsic(write_exponentials, mechanism="simd")
def _write_exponentials(typing_context, values, n):
    def generate(context, builder, signature, args):
        data = elements(context, builder, values, args[0])
        kind = ir.VectorType(ir.DoubleType(), _EXP_LANES)
        none, step = ir.Constant(_LONG, 0), ir.Constant(_LONG, _EXP_LANES)
        with cgutils.for_range_slice(builder, none, args[1], step) as (start, _):
            place = vector_at(builder, data, start, kind)
            x = builder.load(place)
            x.align = 8
            builder.store(_power_of_e(builder, x, kind), place).align = 8
        return context.get_dummy_value()

    return types.none(values, types.uint64), generate


def quotients(a: Any, b: Any, c: Any, d: Any) -> tuple[Any, Any]:
    """Return ``a`` / ``c`` and ``b`` / ``d``, which take a processor as long as one of them."""
    return np.divide(a, c), np.divide(b, d)


@intrinsic(quotients, mechanism="simd")
def _quotients(typing_context, a, b, c, d):
    def generate(context, builder, signature, args):
        kind, word = ir.VectorType(ir.DoubleType(), 2), ir.IntType(32)

        def both(first, second):
            vector = builder.insert_element(ir.Constant(kind, ir.Undefined), first, word(0))
            return builder.insert_element(vector, second, word(1))

        ratios = builder.fdiv(both(args[0], args[1]), both(args[2], args[3]))
        parts = [builder.extract_element(ratios, word(k)) for k in range(2)]
        return context.make_tuple(builder, signature.return_type, parts)

    pair = types.containers.UniTuple(types.float64, 2)
    return pair(types.float64, types.float64, types.float64, types.float64), generate


def three_quotients(a: Any, b: Any, c: Any, d: Any, e: Any, f: Any) -> tuple[Any, Any, Any]:
    """Return ``a`` / ``d``, ``b`` / ``e`` and ``c`` / ``f``, as :func:`quotients` does two."""
    return np.divide(a, d), np.divide(b, e), np.divide(c, f)


@intrinsic(three_quotients, mechanism="simd")
def _three_quotients(typing_context, a, b, c, d, e, f):
    def generate(context, builder, signature, args):
        kind, word = ir.VectorType(ir.DoubleType(), 4), ir.IntType(32)

        def all_three(values):
            vector = ir.Constant(kind, [1.0] * 4)
            for k, value in enumerate(values):
                vector = builder.insert_element(vector, value, word(k))
            return vector

        ratios = builder.fdiv(all_three(args[:3]), all_three(args[3:]))
        parts = [builder.extract_element(ratios, word(k)) for k in range(3)]
        return context.make_tuple(builder, signature.return_type, parts)

    triple = types.containers.UniTuple(types.float64, 3)
    return triple(*[types.float64] * 6), generate


def lowest_bit(word: Any) -> Any:
    """Return the place of the lowest bit of ``word``, uint64, that is set; one must be."""
    k = np.uint64(0)
    while not word >> k & np.uint64(1):
        k += np.uint64(1)
    return k


@intrinsic(lowest_bit, mechanism="simd")
def _lowest_bit(typing_context, word):
    def generate(context, builder, signature, args):
        return builder.cttz(args[0], ir.Constant(_BIT, 1))

    return types.uint64(types.uint64), generate
