"""Intrinsics of kernels: borrowed arrays, arrays at an address, prefetches, speculation.

Relies on Numba's intrinsics. Promises that each means the same as plain Python, under
``NUMBA_DISABLE_JIT=1`` too, apart from time.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types

from dmondrian._numba.jit import intrinsic
from dmondrian._numba.uncounted import uncounted

CACHE_LINE = 64  # bytes
_TWO_LINES = CACHE_LINE + 8  # bytes of doubles that lie in no more, wherever they begin


def unowned(array: Any) -> Any:
    """Return an array that a kernel made without its reference count.

    Every slice of a counted array costs two atomic operations. The array vanishes after the last
    line of the kernel that names it, whoever has borrowed it: borrow it within the loop that uses
    it.
    """
    return array


@intrinsic(unowned)
def _without_owner(typing_context, array):  # type: ignore[no-untyped-def]  # numba's signature
    def generate(context, builder, signature, args):  # type: ignore[no-untyped-def]  # as above
        return uncounted(context, builder, array, args[0])

    return array(array), generate


def array_at(address: int, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Return the C-contiguous array at an address; whoever gave the address holds the memory."""
    n_bytes = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    memory = (ctypes.c_char * n_bytes).from_address(int(address)) if n_bytes else bytearray()
    return np.frombuffer(memory, dtype).reshape(shape)


def _place_array(context, builder, kind, address, shape):  # type: ignore[no-untyped-def]  # as below
    """Return an array of type ``kind``, C-contiguous and borrowed, from an address on."""
    array = context.make_array(kind)(context, builder)
    strides: list[Any] = []
    array.itemsize = step = ir.Constant(address.type, kind.dtype.bitwidth // 8)
    for length in reversed(shape):
        strides.insert(0, step)
        step = builder.mul(step, length)
    array.data = builder.inttoptr(address, array.data.type)
    array.shape, array.strides = (cgutils.pack_array(builder, each) for each in (shape, strides))
    array.nitems = builder.udiv(step, array.itemsize)
    array.meminfo, array.parent = array.meminfo.type(None), array.parent.type(None)
    return array._getvalue()


@intrinsic(array_at, is_needed=True)
def _array_at(typing_context, address, shape, dtype):  # type: ignore[no-untyped-def]  # as above
    kind = types.Array(dtype.dtype, shape.count, "C")

    def generate(context, builder, signature, args):  # type: ignore[no-untyped-def]  # as above
        lengths = cgutils.unpack_tuple(builder, args[1], shape.count)
        return _place_array(context, builder, kind, args[0], lengths)

    lengths = types.containers.UniTuple(types.int64, shape.count)
    return kind(types.int64, lengths, dtype), generate


def flat_view(array: Any) -> Any:
    """Return the elements of ``array``, C-contiguous, as an array of one dimension, borrowed."""
    return array.reshape(-1)


@intrinsic(flat_view)
def _flat_view(typing_context, array):  # type: ignore[no-untyped-def]  # numba's signature
    if array.layout != "C":
        return None
    kind = array.copy(ndim=1)

    def generate(context, builder, signature, args):  # type: ignore[no-untyped-def]  # as above
        view = context.make_array(array)(context, builder, args[0])
        address = builder.ptrtoint(view.data, view.nitems.type)
        return _place_array(context, builder, kind, address, [view.nitems])

    return kind(array), generate


def _prefetch(builder, data, byte):  # type: ignore[no-untyped-def]  # as below
    """Ask for the cache line of a byte behind the address ``data``."""
    word, place = ir.IntType(32), ir.IntType(8).as_pointer()
    kind = ir.FunctionType(ir.VoidType(), [place, word, word, word])
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
    flags = [ir.Constant(word, flag) for flag in (0, 3, 1)]  # to be read, into the nearest, data
    address = builder.add(builder.ptrtoint(data, byte.type), byte)
    builder.call(function, [builder.inttoptr(address, place), *flags])


def prefetch_word(array: Any, place: Any) -> None:
    """Ask for the cache line of ``array[place]``, of one dimension; changes nothing."""


@intrinsic(prefetch_word, mechanism="prefetch")
def _prefetch_word(typing_context, array, place):  # type: ignore[no-untyped-def]  # as above
    def generate(context, builder, signature, args):  # type: ignore[no-untyped-def]  # as above
        view = context.make_array(array)(context, builder, args[0])
        _prefetch(builder, view.data, builder.mul(args[1], view.itemsize))
        return context.get_dummy_value()

    return types.none(array, types.int64), generate


def prefetch(array: Any, row: Any) -> None:
    """Ask for the cache lines of ``array[row]``, C-contiguous; changes nothing."""


@intrinsic(prefetch, mechanism="prefetch")
def _prefetch_row(typing_context, array, row):  # type: ignore[no-untyped-def]  # as above
    def generate(context, builder, signature, args):  # type: ignore[no-untyped-def]  # as above
        view = context.make_array(array)(context, builder, args[0])
        n_bytes = builder.extract_value(view.strides, 0)
        start, line = builder.mul(args[1], n_bytes), ir.Constant(n_bytes.type, CACHE_LINE)

        def is_above(n):  # type: ignore[no-untyped-def]  # as above
            return builder.icmp_signed(">", n_bytes, ir.Constant(n_bytes.type, n))

        with builder.if_then(is_above(0)):
            _prefetch(builder, view.data, start)
            with (
                builder.if_then(is_above(_TWO_LINES)),
                cgutils.for_range_slice(builder, line, n_bytes, line) as (byte, _),
            ):
                _prefetch(builder, view.data, builder.add(start, byte))
            last = builder.sub(n_bytes, ir.Constant(n_bytes.type, 1))
            rest = builder.srem(n_bytes, line)
            with builder.if_then(builder.icmp_signed("!=", rest, ir.Constant(rest.type, 0))):
                _prefetch(builder, view.data, builder.add(start, last))  # in another line, maybe
        return context.get_dummy_value()

    return types.none(array, types.int64), generate


def speculate(number: Any, guess: Any, level: Any) -> Any:
    """Return ``number`` and, where it is ``guess``, ``level`` - 1, else ``level``.

    Where it is, the processor need not wait for it to go on.
    """
    return number, level - 1 if number == guess else level


@intrinsic(speculate, mechanism="speculation")
def _speculate(typing_context, number, guess, level):  # type: ignore[no-untyped-def]  # numba's signature
    def generate(context, builder, signature, args):  # type: ignore[no-untyped-def]  # as above
        kind = args[0].type
        hidden = ir.InlineAsm(ir.FunctionType(kind, [kind]), "", "=r,0", side_effect=True)
        chosen, at = (cgutils.alloca_once_value(builder, arg) for arg in (args[0], args[2]))
        # The compiler is not to see that they are equal, nor to choose without a jump.
        guess = builder.call(hidden, [args[1]])
        with builder.if_then(builder.icmp_signed("==", args[0], args[1]), likely=True):
            builder.store(builder.call(hidden, [guess]), chosen)
            builder.store(builder.sub(args[2], ir.Constant(kind, 1)), at)
        loaded = builder.load(chosen), builder.load(at)
        return context.make_tuple(builder, signature.return_type, loaded)

    pair = types.containers.UniTuple(types.int64, 2)
    return pair(types.int64, types.int64, types.int64), generate


def stream(array: Any) -> None:
    """Read a word of each cache line of ``array``, C-contiguous, in order; changes nothing.

    Its elements take 4 bytes or more. The memory gives lines in order many times as fast as single
    ones. Prefetches did not do where it was tried, on an AMD EPYC: so many at a time took no time,
    and brought little.
    """


@intrinsic(stream, mechanism="prefetch")
def _stream(typing_context, array):  # type: ignore[no-untyped-def]  # numba's signature
    def generate(context, builder, signature, args):  # type: ignore[no-untyped-def]  # as above
        view, word = context.make_array(array)(context, builder, args[0]), ir.IntType(32)
        n_bytes = builder.mul(view.nitems, view.itemsize)
        none, line = (ir.Constant(n_bytes.type, n) for n in (0, CACHE_LINE))
        with cgutils.for_range_slice(builder, none, n_bytes, line) as (byte, _):
            start = builder.add(builder.ptrtoint(view.data, byte.type), byte)
            place = builder.inttoptr(start, word.as_pointer())
            builder.load_atomic(place, "monotonic", 4)  # else left out, as nobody asks for it
        return context.get_dummy_value()

    return types.none(array), generate
