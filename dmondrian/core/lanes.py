"""Several comparisons or sums in one instruction, which Python code cannot say.

Relies on Numba's intrinsics. Promises to mean the same as plain Python, under
``NUMBA_DISABLE_JIT=1`` too, and the same on every processor: comparisons do not round, and the
order of additions is fixed. Only :func:`rough_extension` may differ in its last digits: whoever
uses it allows for them.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types

from dmondrian._jit import instead_of

LANES = 4
SUM_LANES = 8
WORDS = 16  # of a group of conditions, and where they begin
FEATURES, THRESHOLDS, SIDES, EXITS = 0, LANES, 2 * LANES, 2 * LANES + 1
_AT_ONCE = 16  # features of a box

_BIT, _LONG = ir.IntType(1), ir.IntType(64)


def way_on(groups: Any, group: Any, x: Any) -> int:
    """Return the exit of a group of four conditions that ``x`` takes.

    It is that of the first condition in which ``x`` parts from the way, the last if in none.

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
    four = slice(THRESHOLDS, THRESHOLDS + LANES)
    is_right = x[words[FEATURES : FEATURES + LANES]] > words[four].view(np.float32)
    stays = [bool(words[SIDES] >> k & 1) for k in range(LANES)]
    return int(words[EXITS + np.append(is_right != stays, True).argmax()])


@instead_of(way_on)
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
        asked = ir.Constant(four, ir.Undefined)
        for k in range(LANES):
            feature = builder.zext(builder.load(place(FEATURES + k)), _LONG)
            value = builder.load(builder.gep(values, [feature]))
            asked = builder.insert_element(asked, value, ir.Constant(word, k))
        is_right = builder.bitcast(builder.fcmp_ordered(">", asked, thresholds), ir.IntType(LANES))
        apart = builder.xor(builder.zext(is_right, word), builder.load(place(SIDES)))
        found = builder.zext(builder.cttz(apart, ir.Constant(_BIT, 1)), _LONG)
        return builder.sext(builder.load(builder.gep(place(EXITS), [found])), _LONG)

    return types.int64(groups, types.uint64, x), generate


def elements(context, builder, array_type, array):
    """Return the address of the first element."""
    return context.make_array(array_type)(context, builder, array).data


def vector_at(builder, data, start, kind):
    """Return the address of the vector of ``kind`` that begins with element ``start``."""
    return builder.bitcast(builder.gep(data, [start]), kind.as_pointer())


def _load(builder, data, start, kind):
    """Return the vector of ``kind`` that begins with element ``start``."""
    vector = builder.load(vector_at(builder, data, start, kind))
    vector.align = 4
    return vector


def _in_lots(builder, p, do):
    """Do something to ``p`` features, 16 at a time, then to 8, 4, 2 and 1 of those that are left.

    To each of them once: what was written a moment ago, in other lots, is slow to read.
    """
    width = _AT_ONCE
    step = ir.Constant(_LONG, width)
    whole = builder.sub(p, builder.urem(p, step))
    with cgutils.for_range_slice(builder, ir.Constant(_LONG, 0), whole, step) as (start, _):
        do(start, width)
    start = cgutils.alloca_once_value(builder, whole)
    while width > 1:
        width //= 2
        some = ir.Constant(_LONG, width)
        has_some = builder.icmp_unsigned("!=", builder.and_(p, some), ir.Constant(_LONG, 0))
        with builder.if_then(has_some):
            first = builder.load(start)
            do(first, width)
            builder.store(builder.add(first, some), start)


def beyond(lower: Any, upper: Any, x: Any) -> bool:
    """Tell whether any of ``x`` is below ``lower`` or above ``upper``, float32 [p], contiguous."""
    return bool(((x < lower) | (x > upper)).any())


@instead_of(beyond)
def _beyond(typing_context, lower, upper, x):
    def generate(context, builder, signature, args):
        low, high, values = map(partial(elements, context, builder), signature.args, args)
        shape = context.make_array(x)(context, builder, args[2]).shape
        p = builder.extract_value(shape, 0)
        found = cgutils.alloca_once_value(builder, ir.Constant(_BIT, 0))

        def compare(start, width):
            kind = ir.VectorType(ir.FloatType(), width)
            asked = _load(builder, values, start, kind)
            below = builder.fcmp_ordered("<", asked, _load(builder, low, start, kind))
            above = builder.fcmp_ordered(">", asked, _load(builder, high, start, kind))
            lanes = builder.bitcast(builder.or_(below, above), ir.IntType(width))
            is_any = builder.icmp_unsigned("!=", lanes, ir.Constant(lanes.type, 0))
            builder.store(builder.or_(builder.load(found), is_any), found)

        _in_lots(builder, p, compare)
        return builder.load(found)

    return types.boolean(lower, upper, x), generate


def extend(lower: Any, upper: Any, x: Any, extensions: Any) -> tuple[np.float64, ...]:
    """Write how far ``x`` lies outside [``lower``, ``upper``], in whole lots of 8 features.

    Parameters
    ----------
    lower, upper, x : float32 [p], contiguous
    extensions : float64 [p], contiguous
        Exactly rounded. The last p % 8 of them are left as they are.

    Returns
    -------
    Sums of those that were written, of features j with j % 8 = 0, 1, .. 7, each in order.
    """
    whole = len(x) - len(x) % SUM_LANES
    low, high, asked = (np.asarray(a[:whole], np.float64) for a in (lower, upper, x))
    extensions[:whole] = np.maximum(np.maximum(low - asked, asked - high), 0.0)
    sums = np.zeros(SUM_LANES)
    for lot in np.reshape(extensions[:whole], (-1, SUM_LANES)):
        sums += lot
    return tuple(sums)


@instead_of(extend)
def _extend(typing_context, lower, upper, x, extensions):
    def generate(context, builder, signature, args):
        low, high, values, out = map(partial(elements, context, builder), signature.args, args)
        singles, doubles = (
            ir.VectorType(kind(), SUM_LANES) for kind in (ir.FloatType, ir.DoubleType)
        )
        nothing = ir.Constant(doubles, [0.0] * SUM_LANES)
        sums = cgutils.alloca_once_value(builder, nothing)

        def larger(a, b):
            return builder.select(builder.fcmp_ordered(">", a, nothing), a, b)

        step = ir.Constant(_LONG, SUM_LANES)
        p = builder.extract_value(context.make_array(x)(context, builder, args[2]).shape, 0)
        whole = builder.sub(p, builder.urem(p, step))
        with cgutils.for_range_slice(builder, ir.Constant(_LONG, 0), whole, step) as (start, _):
            lowest, highest, asked = (
                builder.fpext(_load(builder, data, start, singles), doubles)
                for data in (low, high, values)
            )
            below = larger(builder.fsub(lowest, asked), nothing)
            found = larger(builder.fsub(asked, highest), below)
            store = builder.store(found, vector_at(builder, out, start, doubles))
            store.align = 8
            builder.store(builder.fadd(builder.load(sums), found), sums)
        told = builder.load(sums)
        lanes = [builder.extract_element(told, ir.Constant(_LONG, k)) for k in range(SUM_LANES)]
        return cgutils.pack_array(builder, lanes)

    sums_of_lanes = types.containers.UniTuple(types.float64, SUM_LANES)
    return sums_of_lanes(lower, upper, x, extensions), generate


def widen(lower: Any, upper: Any, x: Any) -> None:
    """Take ``x`` into [``lower``, ``upper``], float32 [p], contiguous, which are written to."""
    np.copyto(lower, x, where=x < lower)
    np.copyto(upper, x, where=x > upper)


@instead_of(widen)
def _widen(typing_context, lower, upper, x):
    def generate(context, builder, signature, args):
        low, high, values = map(partial(elements, context, builder), signature.args, args)
        p = builder.extract_value(context.make_array(x)(context, builder, args[2]).shape, 0)

        def take_in(start, width):
            kind = ir.VectorType(ir.FloatType(), width)
            asked = _load(builder, values, start, kind)
            for bounds, beyond in ((low, "<"), (high, ">")):
                known = _load(builder, bounds, start, kind)
                wider = builder.select(builder.fcmp_ordered(beyond, asked, known), asked, known)
                builder.store(wider, vector_at(builder, bounds, start, kind)).align = 4

        _in_lots(builder, p, take_in)
        return context.get_dummy_value()

    return types.none(lower, upper, x), generate


def _added(builder, lanes, width):
    """Return the sum of the lanes of a vector."""
    while width > 1:
        width //= 2
        none = ir.Constant(lanes.type, ir.Undefined)
        places = ir.VectorType(ir.IntType(32), width)
        halves = [
            builder.shuffle_vector(lanes, none, ir.Constant(places, list(range(k, k + width))))
            for k in (0, width)
        ]
        lanes = builder.fadd(*halves)
    return builder.extract_element(lanes, ir.Constant(_LONG, 0))


def rough_extension(lower: Any, upper: Any, x: Any) -> np.float32:
    """Return about how far ``x`` lies outside [``lower``, ``upper``], float32 [p], contiguous.

    The sum over features, differences and sums in float32 and in any order: 0 only where ``x`` is
    within, inf where it is too large, else off by about 2^-24 p of it at most. A feature that is
    nan adds 0.
    """
    with np.errstate(over="ignore"):
        outside = np.fmax(np.fmax(lower - x, x - upper), np.float32(0.0))
        return np.float32(outside.sum(dtype=np.float32))


@instead_of(rough_extension)
def _rough_extension(typing_context, lower, upper, x):
    def generate(context, builder, signature, args):
        low, high, values = map(partial(elements, context, builder), signature.args, args)
        p = builder.extract_value(context.make_array(x)(context, builder, args[2]).shape, 0)

        def larger(a, b):
            return builder.select(builder.fcmp_ordered(">", a, b), a, b)

        def outside(start, kind):
            bounds = (_load(builder, data, start, kind) for data in (low, high))
            (lowest, highest), asked = bounds, _load(builder, values, start, kind)
            further = larger(builder.fsub(lowest, asked), builder.fsub(asked, highest))
            return larger(further, ir.Constant(kind, [0.0] * kind.count))

        kind = ir.VectorType(ir.FloatType(), _AT_ONCE)
        sums = cgutils.alloca_once_value(builder, ir.Constant(kind, [0.0] * _AT_ONCE))
        rest = cgutils.alloca_once_value(builder, ir.Constant(ir.FloatType(), 0.0))

        def add(start, width):
            told, total = outside(start, ir.VectorType(ir.FloatType(), width)), sums
            if width < _AT_ONCE:
                told, total = _added(builder, told, width), rest
            builder.store(builder.fadd(builder.load(total), told), total)

        _in_lots(builder, p, add)
        return builder.fadd(_added(builder, builder.load(sums), _AT_ONCE), builder.load(rest))

    return types.float32(lower, upper, x), generate
