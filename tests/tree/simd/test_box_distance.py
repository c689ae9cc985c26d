"""Several features of a box and a row say what one after the other would."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numba
import numpy as np
import pytest

from dmondrian.tree.box_encoding import Stepped, make_columns
from dmondrian.tree.simd.box_distance import SUM_LANES, beyond, extend, extend_steps, widen
from dmondrian.tree.simd.box_distance_bound import rough_extension


def few_floats(rng: np.random.Generator, n: int) -> np.ndarray:
    """Return ties and subnormals among others, float32 [3, n]."""
    few = np.array([-np.inf, -1.5, -0.0, 0.0, 1e-45, 1.5, np.inf], np.float32)
    return rng.choice(few, (3, n))


def few_steps(rng: np.random.Generator, n: int) -> np.ndarray:
    """Return numbers of steps, int16 [3, n], the farthest apart among them."""
    return rng.choice(np.array([-32768, -2, 0, 1, 32766, 32767], np.int16), (3, n))


class Drawn:
    """A box of p floats and g steps, and a row; what lies beside the box is of other bounds."""

    def __init__(self, floats: np.ndarray, steps: np.ndarray) -> None:
        p, g = floats.shape[1], steps.shape[1]
        self.memory = np.zeros(2 * p + g + 11, np.float32)
        self.memory[:3], self.memory[3 + 2 * p + g :] = 7.0, -7.0
        self.box = self.memory[3 : 3 + 2 * p + g]
        self.box[: 2 * p] = floats[:2].ravel()
        self.box[2 * p :].view(np.int16)[:] = steps[:2].ravel()
        # Rows of an array, at any byte; what lies beside them is beyond all bounds.
        wide, long = np.full(p + 9, np.inf, np.float32), np.full(g + 9, -32768, np.int16)
        wide[3 : 3 + p], long[3 : 3 + g] = floats[2], steps[2]
        self.numeric, self.steps = wide[3 : 3 + p], long[3 : 3 + g]

    @property
    def row(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return self.box, self.numeric, self.steps


SIZES = [(p, g) for p in range(40) for g in (0, 1, 20, 39)] + [
    (p, g) for g in range(70) for p in (0, 3)
]


@numba.njit
def compiled_beyond(box, numeric, steps):  # type: ignore[no-untyped-def]  # as above
    return beyond(box, numeric, steps)


@numba.njit
def compiled_extend(lower, upper, x, extensions):  # type: ignore[no-untyped-def]  # as above
    return extend(lower, upper, x, extensions)


@numba.njit
def compiled_steps(lower, upper, x, units, extensions):  # type: ignore[no-untyped-def]  # as above
    return extend_steps(lower, upper, x, units, extensions)


def test_any_feature_beyond_its_bounds_is_enough() -> None:
    for p, g in SIZES[::3]:
        rng = np.random.default_rng([p, g])
        ends = np.sort(rng.normal(size=(2, p)).astype(np.float32), axis=0)
        marks = np.sort(rng.integers(-32768, 32768, (2, g)).astype(np.int16), axis=0)
        at = int(rng.integers(2))
        drawn = Drawn(np.vstack([ends, ends[at : at + 1]]), np.vstack([marks, marks[at : at + 1]]))
        assert not compiled_beyond(*drawn.row)  # on the bounds is within
        assert not beyond(*drawn.row)
        for j in range(p):
            for end, past in zip(ends, (-np.inf, np.inf), strict=True):
                before, drawn.numeric[j] = drawn.numeric[j], np.nextafter(end[j], np.float32(past))
                assert compiled_beyond(*drawn.row)
                assert beyond(*drawn.row)
                drawn.numeric[j] = before
        for k in range(g):
            for end, past in zip(marks, (-1, 1), strict=True):
                if -32768 <= int(end[k]) + past <= 32767:
                    before, drawn.steps[k] = drawn.steps[k], end[k] + past
                    assert compiled_beyond(*drawn.row)
                    assert beyond(*drawn.row)
                    drawn.steps[k] = before


def expected_extensions(exact: np.ndarray) -> tuple[np.ndarray, list[float]]:
    """Return what is written of exact extensions [n], and what is returned."""
    sums, written = [0.0] * SUM_LANES, np.full(len(exact), -1.0)
    for j in range(len(exact) - len(exact) % SUM_LANES):
        written[j] = exact[j]
        sums[j % SUM_LANES] += float(exact[j])
    return written, sums


def test_extensions_are_added_in_their_lanes() -> None:
    for p in range(40):
        rng = np.random.default_rng(p)
        lower, upper = np.sort(rng.normal(size=(2, p)).astype(np.float32), axis=0)
        x = (rng.normal(size=p) * 10.0 ** rng.integers(-9, 9, p)).astype(np.float32)
        x[::5] = lower[::5]
        low, high, asked = (each.astype(float) for each in (lower, upper, x))
        exact = np.maximum(np.maximum(low - asked, asked - high), 0.0)
        written, sums = expected_extensions(exact)
        for way in (compiled_extend, extend):
            extensions = np.full(p + 9, -1.0)  # what lies behind is not added
            assert list(way(lower, upper, x, extensions)) == sums
            assert extensions[:p].tobytes() == written.tobytes()
            assert (extensions[p:] == -1.0).all()


def test_extensions_in_steps_are_added_in_their_lanes() -> None:
    for g, seed in itertools.product(range(40), range(5)):
        rng = np.random.default_rng([g, seed])
        three, units = few_steps(rng, g), np.exp2(rng.integers(-9, 9, g)).astype(np.float32)
        lower, upper = np.sort(three[:2], axis=0)
        low, high, asked = (each.astype(float) for each in (lower, upper, three[2]))
        exact = np.maximum(np.maximum(low - asked, asked - high), 0.0) * units
        written, sums = expected_extensions(exact)
        for way in (compiled_steps, extend_steps):
            extensions = np.full(g + 9, -1.0)
            assert list(way(lower, upper, three[2], units, extensions)) == sums
            assert extensions[:g].tobytes() == written.tobytes()
            assert (extensions[g:] == -1.0).all()


@numba.njit
def compiled_widen(box, numeric, steps):  # type: ignore[no-untyped-def]  # as above
    widen(box, numeric, steps)


@pytest.mark.parametrize("way", [compiled_widen, widen])
def test_bounds_are_widened_and_nothing_beside_them(way: Callable[..., None]) -> None:
    for (p, g), seed in itertools.product(SIZES, range(3)):
        rng = np.random.default_rng([p, g, seed])
        floats, steps = few_floats(rng, p), few_steps(rng, g)
        floats[:2], steps[:2] = np.sort(floats[:2], axis=0), np.sort(steps[:2], axis=0)
        drawn = Drawn(floats, steps)
        for three in (floats, steps):
            for j in range(three.shape[1]):  # 0 and -0 are equal: the one that came first stays
                lower, upper, x = three[:, j]
                three[0, j], three[1, j] = x if x < lower else lower, x if x > upper else upper
        way(*drawn.row)
        assert drawn.memory.tobytes() == Drawn(floats, steps).memory.tobytes()


@numba.njit
def compiled_rough(box, numeric, steps, *units):  # type: ignore[no-untyped-def]  # as above
    return rough_extension(box, numeric, steps, *units)


def reported_of(units: np.ndarray) -> tuple[np.ndarray, float]:
    """Return what columns say of units."""
    features = np.arange(len(units))
    columns = make_columns(
        len(units), np.empty(0), np.empty((0, 2)), Stepped(features, units, 0.0 * units)
    )
    return columns.units, columns.unit


@pytest.mark.parametrize("way", [compiled_rough, rough_extension])
@pytest.mark.parametrize("orders", [(-20, 20), (3, 4)])
def test_rough_extensions_are_near_and_zero_where_there_are_none(
    orders: tuple[int, int],
    way: Callable[..., np.float32],
) -> None:
    for p, g in SIZES[::2]:
        rng = np.random.default_rng([p, g])
        floats = np.sort(rng.normal(size=(3, p)).astype(np.float32), axis=0)[[0, 2, 1]]
        steps = np.sort(rng.integers(-32767, 32767, (3, g)).astype(np.int16), axis=0)[[0, 2, 1]]
        units = np.exp2(rng.integers(*orders, g)).astype(np.float32)
        reported = reported_of(units)
        assert (reported[1] > 0.0) == (g > 0 and (units == units[0]).all())
        assert g < 2 or (reported[1] > 0.0) == (orders == (3, 4))
        drawn = Drawn(floats, steps)
        assert way(*drawn.row, *reported) == 0.0
        for j in range(p):
            for end, past in ((floats[0], -np.inf), (floats[1], np.inf)):
                drawn.numeric[j] = np.nextafter(end[j], np.float32(past))
                assert way(*drawn.row, *reported) == abs(drawn.numeric[j] - end[j]) > 0.0
                drawn.numeric[j] = floats[2, j]
        for k in range(g):
            for end, past in ((steps[0], -1), (steps[1], 1)):
                drawn.steps[k] = end[k] + past
                assert way(*drawn.row, *reported) == units[k]
                drawn.steps[k] = steps[2, k]
        far = (rng.normal(size=p) * 10.0 ** rng.integers(-9, 9, p)).astype(np.float32)
        marks = few_steps(rng, g)[2]
        drawn.numeric[:], drawn.steps[:] = far, marks
        lower, upper = floats[:2].astype(float)
        exact = np.maximum(lower - far, far - upper).clip(min=0.0)
        low, high = steps[:2].astype(float)
        in_steps = np.maximum(low - marks, marks - high).clip(min=0.0) * units
        total = exact.sum() + in_steps.sum()
        assert abs(way(*drawn.row, *reported) - total) <= 2.0**-24 * (p + g + 1) * total
        steps[:2], steps[2] = 32767, -32768
        far_off, total = Drawn(floats, steps), 65_535.0 * units.sum(dtype=float)
        assert abs(way(*far_off.row, *reported) - total) <= 2.0**-24 * (g + 1) * total
    none = np.empty((3, 0), np.int16)
    for floats, expected in (
        ([[-3e38], [-2e38], [3e38]], np.inf),
        ([[-1.0], [1.0], [np.nan]], 0.0),
        ([[1e-45], [1e-45], [3e-45]], np.float32(1e-45)),
    ):
        given = Drawn(np.array(floats, np.float32), none)
        assert way(*given.row, *reported_of(np.empty(0, np.float32))) == expected
