"""About how far a row lies outside a box: enough to find out that it splits no node there.

Unlike what :mod:`dmondrian.tree.simd.box_distance` has, this may differ in its last digits from one
processor to another: whoever uses it allows for them. Where all units are equal, steps are summed
up as whole numbers.

Shapes: p features as floats, g in steps; see :mod:`dmondrian.tree.box_encoding`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dmondrian._numba.jit import intrinsic
from dmondrian._numba.llvm import cgutils, ir, types
from dmondrian.tree.simd.box_distance import (
    AT_ONCE,
    STEPS_AT_ONCE,
    Box,
    called,
    in_vectors,
    load,
    of_box,
    steps_outside,
)
from dmondrian.tree.simd.lanes import elements

_SHORT, _WORD, _LONG = (ir.IntType(n) for n in (16, 32, 64))
_SINGLE = ir.FloatType()
_LARGEST = float(np.finfo(np.float32).max)


def rough_extension(box: Any, numeric: Any, steps: Any, units: Any, unit: Any) -> np.float32:
    """Return about how far a row lies outside a box; as ``box_distance.beyond``.

    The sum over features, differences and sums in float32 and in any order: 0 only where the row
    is within, inf where it is too large, else off by about 2^-24 d of it at most. A feature that is
    nan adds 0.

    Parameters
    ----------
    units : float32 [g], contiguous
        Powers of two.
    unit : float
        All of them, if they are equal and g <= 65,536, else 0.
    """
    p, g = len(numeric), len(steps)
    total = 0.0  # of float64, whose sums do not overflow
    for j in range(p):
        x = np.float64(numeric[j])
        total += max(np.float64(box[j]) - x, x - np.float64(box[p + j]), 0.0) if x == x else 0.0
    bounds = box[2 * p : 2 * p + g].view(np.int16)
    for j in range(g):
        x = np.float64(steps[j])
        total += max(bounds[j] - x, x - bounds[g + j], 0.0) * units[j]
    return np.float32(total if total <= _LARGEST else np.inf)


@intrinsic(rough_extension, mechanism="simd")
def _rough_extension(typing_context, box, numeric, steps, units, unit):
    def define(builder, *arguments):
        *of_both, units, unit = arguments
        box = Box(*of_both)
        total = cgutils.alloca_once_value(builder, _SINGLE(0.0))
        _add_floats(builder, total, box)
        are_equal = builder.fcmp_ordered(">", unit, _SINGLE(0.0))
        with builder.if_else(are_equal) as (equal, unequal):
            with equal:
                distance = builder.uitofp(_whole_steps(builder, box), _SINGLE)
                distance = builder.fmul(distance, unit)
                builder.store(builder.fadd(builder.load(total), distance), total)
            with unequal:
                _add_steps(builder, total, box, units)
        builder.ret(builder.load(total))

    def generate(context, builder, signature, args):
        arguments = of_box(context, builder, signature, args)
        arguments.append((_SINGLE.as_pointer(), elements(context, builder, units, args[3])))
        arguments.append((_SINGLE, builder.fptrunc(args[4], _SINGLE)))
        return called(builder, "dmondrian_rough_extension", _SINGLE, arguments, define)

    return types.float32(box, numeric, steps, units, types.float64), generate


def _added(builder, lanes, add):
    """Return the sum of the lanes of a vector."""
    while lanes.type.count > 1:
        width = lanes.type.count // 2
        none, places = ir.Constant(lanes.type, ir.Undefined), ir.VectorType(_WORD, width)
        halves = (list(range(first, first + width)) for first in (0, width))
        lanes = add(*(builder.shuffle_vector(lanes, none, places(half)) for half in halves))
    return builder.extract_element(lanes, _LONG(0))


def _add_up(builder, total, n, at_once, box, add):
    """Add to ``total``, in memory, what is ``box`` of ``n`` features, vector by vector."""
    element = total.type.pointee

    def take(start, width):
        values = box(start, width)
        if width < at_once:
            builder.store(add(builder.load(total), _added(builder, values, add)), total)
        else:
            builder.store(add(builder.load(sums), values), sums)

    with builder.if_then(builder.icmp_unsigned("!=", n, _LONG(0))):
        kind = ir.VectorType(element, at_once if element == _SINGLE else at_once // 2)
        sums = cgutils.alloca_once(builder, kind)
        builder.store(kind([0.0 if element == _SINGLE else 0] * kind.count), sums)
        in_vectors(builder, n, at_once, take)
        with builder.if_then(builder.icmp_unsigned(">=", n, _LONG(at_once))):
            whole = _added(builder, builder.load(sums), add)
            builder.store(add(builder.load(total), whole), total)


def _add_floats(builder, total, box):
    """Add extensions of the features in floats."""

    def larger(a, b):
        return builder.select(builder.fcmp_ordered(">", a, b), a, b)

    def outside(start, width):
        kind = ir.VectorType(_SINGLE, width)
        lower, upper, values = (load(builder, each, start, kind) for each in box.of_floats(builder))
        further = larger(builder.fsub(lower, values), builder.fsub(values, upper))
        return larger(further, kind([0.0] * width))

    _add_up(builder, total, box.p, AT_ONCE, outside, builder.fadd)


def _add_steps(builder, total, box, units):
    """Add extensions of those in steps, each in its units."""

    def outside(start, width):
        kind = ir.VectorType(_SINGLE, width)
        steps = steps_outside(builder, box.of_steps(builder), start, kind)
        return builder.fmul(steps, load(builder, units, start, kind))

    _add_up(builder, total, box.g, AT_ONCE, outside, builder.fadd)


def _whole_steps(builder, box):
    """Return the sum of steps outside, uint32; 65,535 of each feature at most."""

    def outside(start, width):
        kind = ir.VectorType(_SHORT, width)
        lower, upper, values = (load(builder, each, start, kind) for each in box.of_steps(builder))
        low = builder.select(builder.icmp_signed(">", values, lower), values, lower)
        high = builder.select(builder.icmp_signed("<", values, upper), values, upper)
        differences = builder.sub(low, high)  # of 16 bits without a sign
        if width == 1:
            return builder.zext(differences, ir.VectorType(_WORD, 1))
        pairs = ir.VectorType(_WORD, width // 2)
        differences, half = builder.bitcast(differences, pairs), pairs([16] * pairs.count)
        second = builder.lshr(differences, half)
        return builder.add(builder.and_(differences, pairs([0xFFFF] * pairs.count)), second)

    total = cgutils.alloca_once_value(builder, _WORD(0))
    _add_up(builder, total, box.g, STEPS_AT_ONCE, outside, builder.add)
    return builder.load(total)
