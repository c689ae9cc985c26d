"""Numbers of up to 64 nodes of a way side by side, of which a processor computes several at once.

Scratch of a tree is a lot: rows of numbers, one of each for each node. What the functions here
compute of the first ``n`` they may compute of the other numbers up to the next multiple of 8 too,
which mean nothing.

Relies on Numba's intrinsics. Promises to mean the same as plain Python, under
``NUMBA_DISABLE_JIT=1`` too, and the same to the last bit on every processor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types

from dmondrian._jit import inner, instead_of
from dmondrian.core.arithmetic import power_of_e
from dmondrian.core.draws import exp
from dmondrian.core.lanes import elements, vector_at

LOT = 64  # nodes at a time
PRICES, DIVISORS, COSTS = 0, LOT, 2 * LOT  # rows of doubles: where they begin
ODDS_HELD, EXPONENTS = 3 * LOT, 4 * LOT  # an exponent is in the upper half of its double
FIXED, SHARES, BELOW = 5 * LOT, 6 * LOT, 7 * LOT
NODES = 8 * LOT  # int64
SIZE = 9 * LOT

_AT_ONCE = 8
_BIT, _LONG = ir.IntType(1), ir.IntType(64)
_KIND = ir.VectorType(ir.DoubleType(), _AT_ONCE)
_LONGS = ir.VectorType(_LONG, _AT_ONCE)


@inner
def nodes_of(lot):
    """Return which nodes they are, int64, as a view of the lot."""
    return lot.view(np.int64)


def _row(lot: np.ndarray, start: int, n: Any) -> np.ndarray:
    return lot[start : start + int(n)]


class _Eight:
    """Eight nodes of a lot, to compute with."""

    def __init__(self, builder: Any, data: Any, start: Any) -> None:
        self._builder, self._data, self.start = builder, data, start

    def _place(self, row: int) -> Any:
        first = self._builder.add(self.start, ir.Constant(_LONG, row))
        return vector_at(self._builder, self._data, first, _KIND)

    def load(self, row: int) -> Any:
        """Return their numbers of a row."""
        value = self._builder.load(self._place(row))
        value.align = 8
        return value

    def store(self, value: Any, row: int) -> None:
        """Write them."""
        self._builder.store(value, self._place(row)).align = 8

    def signs_of_exponents(self) -> tuple[Any, Any]:
        """Return whether exponents are 0, and whether they are below."""
        bits = self._builder.bitcast(self.load(EXPONENTS), _LONGS)
        exponents = self._builder.ashr(bits, ir.Constant(_LONGS, [32] * _AT_ONCE))
        none = ir.Constant(_LONGS, [0] * _AT_ONCE)
        return tuple(self._builder.icmp_signed(how, exponents, none) for how in ("==", "<"))


def _each(value: float) -> Any:
    return ir.Constant(_KIND, [value] * _AT_ONCE)


def _in_eights(
    context: Any, builder: Any, signature: Any, args: Any, do: Callable[..., Any]
) -> Any:
    """Do something with all numbers of a lot, the first argument; the second is how many."""
    data = elements(context, builder, signature.args[0], args[0])
    none, step = ir.Constant(_LONG, 0), ir.Constant(_LONG, _AT_ONCE)
    with cgutils.for_range_slice(builder, none, args[1], step) as (start, _):
        do(builder, _Eight(builder, data, start))
    return context.get_dummy_value()


def write_quotients(lot: Any, n: Any) -> None:
    """Divide prices by divisors."""
    _row(lot, PRICES, n)[:] /= _row(lot, DIVISORS, n)


@instead_of(write_quotients)
def _write_quotients(typing_context, lot, n):
    def divide(builder, eight):
        eight.store(builder.fdiv(eight.load(PRICES), eight.load(DIVISORS)), PRICES)

    def generate(context, builder, signature, args):
        return _in_eights(context, builder, signature, args, divide)

    return types.none(lot, types.uint64), generate


def write_exponentials(lot: Any, n: Any) -> None:
    """Write e^x in the place of each price x, all in [-700, 700]."""
    prices = _row(lot, PRICES, n)
    for j in range(int(n)):
        prices[j] = exp(prices[j])


@instead_of(write_exponentials)
def _write_exponentials(typing_context, lot, n):
    def raise_to(builder, eight):
        eight.store(power_of_e(builder, eight.load(PRICES), _KIND), PRICES)

    def generate(context, builder, signature, args):
        return _in_eights(context, builder, signature, args, raise_to)

    return types.none(lot, types.uint64), generate


def write_mixtures(lot: Any, n: Any) -> None:
    """Write how a node's mixture follows from the one below it, q: it is fixed + share q.

    With odds o and price p it is (o p + q) / (1 + o); where odds have an exponent it is p, or q.
    """
    held, p = _row(lot, ODDS_HELD, n), _row(lot, PRICES, n)
    exponents = _row(lot, EXPONENTS, n).view(np.int64) >> 32
    go_on = 1.0 / (1.0 + held)
    _row(lot, FIXED, n)[:] = np.where(exponents == 0, held * go_on * p, p * (exponents > 0))
    _row(lot, SHARES, n)[:] = np.where(exponents == 0, go_on, exponents < 0)


@instead_of(write_mixtures)
def _write_mixtures(typing_context, lot, n):
    def mix(builder, eight):
        held, price = eight.load(ODDS_HELD), eight.load(PRICES)
        is_near, is_below = eight.signs_of_exponents()
        go_on = builder.fdiv(_each(1.0), builder.fadd(_each(1.0), held))
        fixed = builder.fmul(builder.fmul(held, go_on), price)
        fixed = builder.select(is_near, fixed, builder.select(is_below, _each(0.0), price))
        share = builder.select(is_below, _each(1.0), _each(0.0))
        eight.store(fixed, FIXED)
        eight.store(builder.select(is_near, go_on, share), SHARES)

    def generate(context, builder, signature, args):
        return _in_eights(context, builder, signature, args, mix)

    return types.none(lot, types.uint64), generate


def shift_odds(lot: Any, n: Any, first: Any, span: Any) -> bool:
    """Multiply odds by price over the mixture below; tell whether all are held.

    Those are whose bits lie within ``span``, uint64, from ``first``, int64, on; and where odds have
    an exponent the mixture of the node itself has to be, too. If not all are, what is written is
    of no use.
    """

    def are_held(numbers: np.ndarray) -> np.ndarray:
        return np.subtract(numbers.view(np.int64), first).view(np.uint64) < span

    held, p, q = (_row(lot, row, n) for row in (ODDS_HELD, PRICES, BELOW))
    exponents = _row(lot, EXPONENTS, n).view(np.int64) >> 32
    with np.errstate(all="ignore"):
        held[:] = held * p / q
    handed = np.where(exponents < 0, q, p)
    return bool(np.all(are_held(held) & ((exponents == 0) | are_held(handed))))


@instead_of(shift_odds)
def _shift_odds(typing_context, lot, n, first, span):
    def generate(context, builder, signature, args):
        lost = cgutils.alloca_once_value(builder, ir.Constant(_LONGS, [0] * _AT_ONCE))
        numbers = ir.Constant(_LONGS, list(range(_AT_ONCE)))

        def all_of(value):
            lanes = builder.insert_element(ir.Constant(_LONGS, ir.Undefined), value, _LONG(0))
            places = ir.Constant(ir.VectorType(ir.IntType(32), _AT_ONCE), [0] * _AT_ONCE)
            return builder.shuffle_vector(lanes, lanes, places)

        def are_held(value):
            bits = builder.sub(builder.bitcast(value, _LONGS), all_of(args[2]))
            return builder.icmp_unsigned("<", bits, all_of(args[3]))

        def shift(builder, eight):
            price, below = eight.load(PRICES), eight.load(BELOW)
            is_near, is_below = eight.signs_of_exponents()
            shifted = builder.fdiv(builder.fmul(eight.load(ODDS_HELD), price), below)
            handed = builder.select(is_below, below, price)
            held = builder.and_(are_held(shifted), builder.or_(is_near, are_held(handed)))
            rest = builder.sub(all_of(args[1]), all_of(eight.start))
            is_any = builder.icmp_unsigned("<", numbers, rest)
            found = builder.sext(builder.and_(is_any, builder.not_(held)), _LONGS)
            builder.store(builder.or_(builder.load(lost), found), lost)
            eight.store(shifted, ODDS_HELD)

        _in_eights(context, builder, signature, args, shift)
        lanes = builder.icmp_unsigned("!=", builder.load(lost), ir.Constant(_LONGS, [0] * _AT_ONCE))
        mask = builder.bitcast(lanes, ir.IntType(_AT_ONCE))
        return builder.icmp_unsigned("==", mask, ir.Constant(mask.type, 0))

    return types.boolean(lot, types.uint64, types.int64, types.uint64), generate
