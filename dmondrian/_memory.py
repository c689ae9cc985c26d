"""What kernels may do with memory that Python code cannot say: borrow, address, prefetch, foresee.

Relies on Numba's intrinsics. Promises that each means the same as plain Python, under
``NUMBA_DISABLE_JIT=1`` too, apart from time.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba.core import types
from numba.core.cgutils import alloca_once_value, get_or_insert_function
from numba.extending import intrinsic

from dmondrian._jit import overload_part

CACHE_LINE = 64  # bytes
_TWO_LINES = CACHE_LINE + 8  # bytes of doubles that lie in no more, wherever they begin


@intrinsic
def _without_owner(typing_context, array):  # type: ignore[no-untyped-def]  # numba's signature
    def generate(context, builder, signature, args):  # type: ignore[no-untyped-def]  # likewise
        view = context.make_array(array)(context, builder, args[0])
        view.meminfo = view.meminfo.type(None)
        view.parent = view.parent.type(None)
        return view._getvalue()

    return array(array), generate


def borrow(array: Any) -> Any:
    """Return the array without its reference count, for the length of a kernel.

    Every slice of a counted array costs two atomic operations; a kernel slices at every
    node. The caller of the kernel holds the array, so nothing can vanish meanwhile. An array that
    the kernel made vanishes after the last line that names it: borrow it within the loop that
    uses it.
    """
    return array


@overload_part(borrow)
def _borrow(array):  # type: ignore[no-untyped-def]  # read by numba
    return lambda array: _without_owner(array)


@intrinsic
def _pointer(typing_context, address, dtype):  # type: ignore[no-untyped-def]  # numba's signature
    pointer = types.CPointer(dtype.dtype)  # type: ignore[attr-defined]  # Numba's hints omit it

    def generate(context, builder, signature, args):  # type: ignore[no-untyped-def]  # likewise
        return builder.inttoptr(args[0], context.get_value_type(pointer))

    return pointer(address, dtype), generate


def array_at(address: int, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Return the C-contiguous array at an address; whoever gave the address holds the memory."""
    n_bytes = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    memory = (ctypes.c_char * n_bytes).from_address(int(address)) if n_bytes else bytearray()
    return np.frombuffer(memory, dtype).reshape(shape)


@overload_part(array_at)
def _array_at(address, shape, dtype):  # type: ignore[no-untyped-def]  # read by numba
    return lambda address, shape, dtype: numba.carray(_pointer(address, dtype), shape)


@intrinsic
def _prefetch(typing_context, array, row, byte):  # type: ignore[no-untyped-def]  # numba's signature
    def generate(context, builder, signature, args):  # type: ignore[no-untyped-def]  # likewise
        view = context.make_array(array)(context, builder, args[0])
        word, place = ir.IntType(32), ir.IntType(8).as_pointer()
        step = builder.mul(args[1], builder.extract_value(view.strides, 0))
        start = builder.add(builder.ptrtoint(view.data, step.type), builder.add(step, args[2]))
        kind = ir.FunctionType(ir.VoidType(), [place, word, word, word])
        function = get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        # to be read, into the nearest cache, data
        flags = [ir.Constant(word, flag) for flag in (0, 3, 1)]
        builder.call(function, [builder.inttoptr(start, place), *flags])
        return context.get_dummy_value()

    return types.none(array, types.int64, types.int64), generate


def prefetch(array: Any, row: Any) -> None:
    """Ask for the cache lines of ``array[row]``; changes nothing."""


@overload_part(prefetch)
def _prefetch_row(array, row):  # type: ignore[no-untyped-def]  # read by numba
    def ask(array, row):  # type: ignore[no-untyped-def]  # likewise
        n_bytes, row = array.shape[1] * array.itemsize, np.int64(row)
        if n_bytes > 0:
            _prefetch(array, row, np.int64(0))
        if n_bytes > _TWO_LINES:
            for byte in range(CACHE_LINE, n_bytes, CACHE_LINE):
                _prefetch(array, row, np.int64(byte))
        if n_bytes % CACHE_LINE != 0:  # it may begin within a line
            _prefetch(array, row, np.int64(n_bytes - 1))

    return ask


@intrinsic
def _step_up(typing_context, number, guess, level):  # type: ignore[no-untyped-def]  # numba's signature
    def generate(context, builder, signature, args):  # type: ignore[no-untyped-def]  # likewise
        kind = args[0].type
        hidden = ir.InlineAsm(ir.FunctionType(kind, [kind]), "", "=r,0", side_effect=True)
        told, at = (alloca_once_value(builder, arg) for arg in (args[0], args[2]))
        # The compiler is not to see that they are equal, nor to choose without a jump.
        guess = builder.call(hidden, [args[1]])
        with builder.if_then(builder.icmp_signed("==", args[0], args[1]), likely=True):
            builder.store(builder.call(hidden, [guess]), told)
            builder.store(builder.sub(args[2], ir.Constant(kind, 1)), at)
        found = builder.load(told), builder.load(at)
        return context.make_tuple(builder, signature.return_type, found)

    told = types.containers.UniTuple(types.int64, 2)
    return told(types.int64, types.int64, types.int64), generate


def step_up(number: Any, guess: Any, level: Any) -> Any:
    """Return ``number`` and, where it is ``guess``, ``level`` - 1, else ``level``.

    Where it is, the processor need not wait for it to go on.
    """
    return number, level - 1 if number == guess else level


@overload_part(step_up)
def _step_up_number(number, guess, level):  # type: ignore[no-untyped-def]  # read by numba
    return lambda number, guess, level: _step_up(np.int64(number), np.int64(guess), np.int64(level))


def in_a_row(array: Any) -> Any:
    """Return the elements of ``array``, C-contiguous, as an array of one dimension, borrowed."""
    return array.reshape(-1)


@overload_part(in_a_row)
def _elements_in_a_row(array):  # type: ignore[no-untyped-def]  # read by numba
    dtype = numba.np.numpy_support.as_dtype(array.dtype).type

    def view(array):  # type: ignore[no-untyped-def]  # likewise
        return array_at(array.ctypes.data, (array.size,), dtype)

    return view


def prefetch_word(array: Any, place: Any) -> None:
    """Ask for the cache line of ``array[place]``, of one dimension; changes nothing."""


@overload_part(prefetch_word)
def _prefetch_word_of_array(array, place):  # type: ignore[no-untyped-def]  # read by numba
    return lambda array, place: _prefetch(array, np.int64(place), np.int64(0))


@intrinsic
def _load_word(typing_context, array, byte):  # type: ignore[no-untyped-def]  # numba's signature
    def generate(context, builder, signature, args):  # type: ignore[no-untyped-def]  # likewise
        view, word = context.make_array(array)(context, builder, args[0]), ir.IntType(32)
        start = builder.add(builder.ptrtoint(view.data, args[1].type), args[1])
        place = builder.inttoptr(start, word.as_pointer())
        builder.load_atomic(place, "monotonic", 4)  # else left out, as nobody asks for the word
        return context.get_dummy_value()

    return types.none(array, types.int64), generate


def bring(array: Any) -> None:
    """Read a word of each cache line of ``array``, C-contiguous, in order; changes nothing.

    Its elements take 4 bytes or more. The memory gives lines in order many times as fast as single
    ones. Prefetches did not do where it was tried, on an AMD EPYC: so many at a time took no time,
    and brought little.
    """


@overload_part(bring)
def _bring_array(array):  # type: ignore[no-untyped-def]  # read by numba
    def read(array):  # type: ignore[no-untyped-def]  # likewise
        for byte in range(0, array.size * array.itemsize, CACHE_LINE):
            _load_word(array, np.int64(byte))

    return read
