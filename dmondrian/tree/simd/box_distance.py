"""Bounds of a box and a row, several features in one instruction: outside or not, by how much.

Relies on Numba's intrinsics. Promises to mean the same as plain Python, under
``NUMBA_DISABLE_JIT=1`` too, and the same on every processor: comparisons do not round, and the
order of additions is fixed.

Shapes: p features as floats, g in steps; see :mod:`dmondrian.tree.box_encoding`.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import numpy as np

from dmondrian._numba.jit import inline, intrinsic
from dmondrian._numba.llvm import cgutils, ir, types
from dmondrian.tree.simd.lanes import elements, vector_at

SUM_LANES = 8
AT_ONCE = 16  # features of a box
STEPS_AT_ONCE = 32  # of 16 bits

_BIT, _SHORT, _WORD, _LONG = (ir.IntType(n) for n in (1, 16, 32, 64))
_SUMS = types.containers.UniTuple(types.float64, SUM_LANES)


def load(builder, data, start, kind):
    """Return the vector of ``kind`` that begins with element ``start``."""
    vector = builder.load(vector_at(builder, data, start, kind))
    vector.align = _bytes_of(kind)
    return vector


def _bytes_of(kind):
    """Return the bytes of an element of a vector of floats or of steps."""
    return 2 if kind.element == _SHORT else 4


def _compare(builder, how, a, b):
    """Return where lanes of floats, or of steps, compare as ``how``."""
    is_whole = a.type.element == _SHORT
    return (builder.icmp_signed if is_whole else builder.fcmp_ordered)(how, a, b)


def in_vectors(builder, p, width, do):
    """Do something to ``p`` features, ``width`` at a time, then to half as many of those left, ...

    To each of them once: what was written a moment ago, in other vectors, is slow to read.
    """
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


@inline
def sums_of_lanes(values, n):
    """Return sums of those j < n - n % 8 with j % 8 = 0, 1, .. 7, each in order."""
    a, b, c, d, e, f, g, h = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
    for j in range(0, n - SUM_LANES + 1, SUM_LANES):
        a, b = a + values[j], b + values[j + 1]
        c, d = c + values[j + 2], d + values[j + 3]
        e, f = e + values[j + 4], f + values[j + 5]
        g, h = g + values[j + 6], h + values[j + 7]
    return a, b, c, d, e, f, g, h


def extend(lower: Any, upper: Any, x: Any, extensions: Any) -> tuple[np.float64, ...]:
    """Write how far ``x`` lies outside [``lower``, ``upper``], in whole vectors of 8 features.

    Parameters
    ----------
    lower, upper, x : float32 [p], contiguous
    extensions : float64 [p], contiguous
        Exactly rounded. The last p % 8 of them are left as they are.

    Returns
    -------
    Sums of those that were written, of features j with j % 8 = 0, 1, .. 7, each in order.
    """
    for j in range(len(x) - len(x) % SUM_LANES):
        value = np.float64(x[j])
        extensions[j] = max(np.float64(lower[j]) - value, value - np.float64(upper[j]), 0.0)
    return sums_of_lanes(extensions, len(x))


@intrinsic(extend, mechanism="simd")
def _extend(typing_context, lower, upper, x, extensions):
    def generate(context, builder, signature, args):
        low, high, values, out = map(partial(elements, context, builder), signature.args, args)
        singles, doubles = (
            ir.VectorType(kind(), SUM_LANES) for kind in (ir.FloatType, ir.DoubleType)
        )
        nothing = ir.Constant(doubles, [0.0] * SUM_LANES)

        def larger(a, b):
            return builder.select(builder.fcmp_ordered(">", a, nothing), a, b)

        def outside(start):
            lowest, highest, features = (
                builder.fpext(load(builder, data, start, singles), doubles)
                for data in (low, high, values)
            )
            below = larger(builder.fsub(lowest, features), nothing)
            return larger(builder.fsub(features, highest), below)

        p = builder.extract_value(context.make_array(x)(context, builder, args[2]).shape, 0)
        return _extended(builder, p, out, doubles, outside)

    return _SUMS(lower, upper, x, extensions), generate


def _extended(builder, p, out, doubles, outside):
    """Write what is ``outside``, whole vectors of ``doubles``; return sums of lanes."""
    sums = cgutils.alloca_once_value(builder, ir.Constant(doubles, [0.0] * SUM_LANES))
    step = ir.Constant(_LONG, SUM_LANES)
    whole = builder.sub(p, builder.urem(p, step))
    with cgutils.for_range_slice(builder, ir.Constant(_LONG, 0), whole, step) as (start, _):
        extensions = outside(start)
        store = builder.store(extensions, vector_at(builder, out, start, doubles))
        store.align = 8
        builder.store(builder.fadd(builder.load(sums), extensions), sums)
    lane_sums = builder.load(sums)
    lanes = [builder.extract_element(lane_sums, ir.Constant(_LONG, k)) for k in range(SUM_LANES)]
    return cgutils.pack_array(builder, lanes)


def extend_steps(lower: Any, upper: Any, x: Any, units: Any, extensions: Any) -> tuple[Any, ...]:
    """Return the extension in steps, int16 [g], of ``units``, float32 [g]; contiguous."""
    for j in range(len(x) - len(x) % SUM_LANES):
        value = np.float64(x[j])
        further = max(np.float64(lower[j]) - value, value - np.float64(upper[j]), 0.0)
        extensions[j] = further * np.float64(units[j])
    return sums_of_lanes(extensions, len(x))


@intrinsic(extend_steps, mechanism="simd")
def _extend_steps(typing_context, lower, upper, x, units, extensions):
    def generate(context, builder, signature, args):
        low, high, values, each, out = map(
            partial(elements, context, builder), signature.args, args
        )
        singles, doubles = (
            ir.VectorType(kind(), SUM_LANES) for kind in (ir.FloatType, ir.DoubleType)
        )

        def outside(start):
            distances = steps_outside(builder, (low, high, values), start, doubles)
            unit = builder.fpext(load(builder, each, start, singles), doubles)
            return builder.fmul(distances, unit)

        g = builder.extract_value(context.make_array(x)(context, builder, args[2]).shape, 0)
        return _extended(builder, g, out, doubles, outside)

    return _SUMS(lower, upper, x, units, extensions), generate


class Box(NamedTuple):
    """Arguments of a function of a box and a row: addresses, and how many features of each kind.

    They are few, so that such a function can be called, not copied: its loops would take registers
    and cache from the caller.
    """

    box: Any  # of the node's bounds: lower ones [p], upper ones [p], then those in steps
    numeric: Any  # of the row's numeric features
    p: Any
    steps: Any  # of its stepped features
    g: Any

    def of_floats(self, builder):
        """Return addresses of lower bounds, upper bounds and the row's values."""
        return self.box, builder.gep(self.box, [self.p]), self.numeric

    def of_steps(self, builder):
        """Return the same in steps."""
        first = builder.gep(self.box, [builder.shl(self.p, ir.Constant(_LONG, 1))])
        lower = builder.bitcast(first, _SHORT.as_pointer())
        return lower, builder.gep(lower, [self.g]), self.steps

    def in_vectors(self, builder, do):
        """Do something to some features: floats, then steps."""
        for p, most, data, element in (
            (self.p, AT_ONCE, self.of_floats(builder), ir.FloatType()),
            (self.g, STEPS_AT_ONCE, self.of_steps(builder), _SHORT),
        ):
            with builder.if_then(builder.icmp_unsigned("!=", p, ir.Constant(_LONG, 0))):
                in_vectors(
                    builder, p, most,
                    lambda start, width, data=data, element=element: do(
                        data, start, ir.VectorType(element, width)
                    ),
                )  # fmt: skip


def called(builder, name, result, types_and_values, define):
    """Return what a function of the module returns, which is defined where it is not yet there."""
    kinds, values = zip(*types_and_values, strict=True)
    function = builder.module.globals.get(name)
    if function is None:
        function = ir.Function(builder.module, ir.FunctionType(result, kinds), name)
        function.linkage = "linkonce_odr"
        function.attributes.add("noinline")
        function.attributes.add("nounwind")
        body = ir.IRBuilder(function.append_basic_block("entry"))
        define(body, *function.args)
    return builder.call(function, values)


def of_box(context, builder, signature, args):
    """Return types and values of a :class:`Box` of arrays box, numeric and steps."""
    single, short = ir.FloatType().as_pointer(), _SHORT.as_pointer()
    box, numeric, steps = (
        context.make_array(kind)(context, builder, arg)
        for kind, arg in zip(signature.args[:3], args[:3], strict=True)
    )
    p, g = (builder.extract_value(array.shape, 0) for array in (numeric, steps))
    return [
        (single, box.data), (single, numeric.data), (_LONG, p), (short, steps.data), (_LONG, g),
    ]  # fmt: skip


def beyond(box: Any, numeric: Any, steps: Any) -> bool:
    """Return whether any feature of a row is outside the bounds of a box.

    Parameters
    ----------
    box : float32 [2 p + g or more], contiguous
        Lower bounds, upper bounds, then lower and upper ones in steps, int16.
    numeric : float32 [p], contiguous
    steps : int16 [g], contiguous
    """
    p, g = len(numeric), len(steps)
    for j in range(p):
        if numeric[j] < box[j] or numeric[j] > box[p + j]:
            return True
    bounds = box[2 * p : 2 * p + g].view(np.int16)
    for j in range(g):  # noqa: SIM110  # Numba compiles no generators
        if steps[j] < bounds[j] or steps[j] > bounds[g + j]:
            return True
    return False


@intrinsic(beyond, mechanism="simd")
def _beyond(typing_context, box, numeric, steps):
    def define(builder, *arguments):
        is_beyond = cgutils.alloca_once_value(builder, ir.Constant(_BIT, 0))

        def compare(data, start, kind):
            low, high, values = (load(builder, each, start, kind) for each in data)
            below, above = _compare(builder, "<", values, low), _compare(builder, ">", values, high)
            lanes = builder.bitcast(builder.or_(below, above), ir.IntType(kind.count))
            is_any = builder.icmp_unsigned("!=", lanes, ir.Constant(lanes.type, 0))
            builder.store(builder.or_(builder.load(is_beyond), is_any), is_beyond)

        Box(*arguments).in_vectors(builder, compare)
        builder.ret(builder.load(is_beyond))

    def generate(context, builder, signature, args):
        arguments = of_box(context, builder, signature, args)
        return called(builder, "dmondrian_beyond", _BIT, arguments, define)

    return types.boolean(box, numeric, steps), generate


def widen(box: Any, numeric: Any, steps: Any) -> None:
    """Take a row into a box, which is written to; as :func:`beyond`."""
    p, g = len(numeric), len(steps)
    for j in range(p):
        x = numeric[j]
        if x < box[j]:
            box[j] = x
        if x > box[p + j]:
            box[p + j] = x
    bounds = box[2 * p : 2 * p + g].view(np.int16)
    for j in range(g):
        step = steps[j]
        if step < bounds[j]:
            bounds[j] = step
        if step > bounds[g + j]:
            bounds[g + j] = step


@intrinsic(widen, mechanism="simd")
def _widen(typing_context, box, numeric, steps):
    def define(builder, *arguments):
        def take_in(data, start, kind):
            values = load(builder, data[2], start, kind)
            for bounds, how in ((data[0], "<"), (data[1], ">")):
                known = load(builder, bounds, start, kind)
                wider = builder.select(_compare(builder, how, values, known), values, known)
                place = vector_at(builder, bounds, start, kind)
                builder.store(wider, place).align = _bytes_of(kind)

        Box(*arguments).in_vectors(builder, take_in)
        builder.ret_void()

    def generate(context, builder, signature, args):
        arguments = of_box(context, builder, signature, args)
        called(builder, "dmondrian_widen", ir.VoidType(), arguments, define)
        return context.get_dummy_value()

    return types.none(box, numeric, steps), generate


def steps_outside(builder, data, start, kind):
    """Return how many steps a vector of ``kind`` lies outside; data are lower, upper and x."""
    shorts, words = (ir.VectorType(element, kind.count) for element in (_SHORT, _WORD))
    lowest, highest, values = (load(builder, each, start, shorts) for each in data)
    is_below = _compare(builder, "<", values, lowest)
    is_above = _compare(builder, ">", values, highest)
    # One of the two differences is 0; they need 16 bits without a sign.
    below = builder.sub(builder.select(is_below, lowest, values), values)
    above = builder.sub(values, builder.select(is_above, highest, values))
    return builder.sitofp(builder.zext(builder.or_(below, above), words), kind)
