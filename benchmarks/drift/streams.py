"""The streams of the benchmark of drift: real ones, generated ones, stationary ones.

Generators are NumPy code of this file, after the publications that they are of, so that the rows
are the same wherever the benchmark runs; river and MOA have the same families. Real sets come
through `benchmarks.datasets`.

Promises float32 rows in [0, 1], scaled with the bounds of all rows of the stream, and rows that
depend on the name, the number of rows and the files alone. Abrupt changes come at quarters of the
stream. A gradual change mixes two concepts with the odds of a sigmoid (Bifet et al., 2010, MOA).

Shapes: n rows, d columns, K classes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks import datasets

ROWS = 20_000  # most rows of a stream, unless it has its own
QUARTERS = 4
Labelled = tuple[np.ndarray, np.ndarray]  # X [n, d], y [n]
Concept = Callable[[np.random.Generator, int], Labelled]
"""Draws n rows of one joint distribution of columns and label."""


class Arrival(NamedTuple):
    """When labels are known.

    Parameters
    ----------
    delay
        Rows after a row that its label is known, >= 1.
    in_blocks
        Labels come for so many rows together, after the last of them: what a model knows that
        forecasts a file before any label of it.
    """

    delay: int
    in_blocks: bool = False

    def known(self, n: int) -> np.ndarray:
        """Return how many labels are known when each of n rows is forecast, int64 [n]."""
        rows = np.arange(n)
        if self.in_blocks:
            return rows // self.delay * self.delay
        return np.maximum(0, rows + 1 - self.delay)

    def __str__(self) -> str:
        if self.in_blocks:
            return f"labels known in blocks of {self.delay:,} rows"
        return f"labels known {self.delay:,} row{'s' * (self.delay > 1)} later"


# The last is a file's length.
ARRIVALS = (Arrival(1), Arrival(64), Arrival(1024), Arrival(4096, in_blocks=True))


class Rows(NamedTuple):
    """A stream in its order."""

    X: np.ndarray  # float32 [n, d], in [0, 1]
    y: np.ndarray  # int64 [n], classes from 0
    n_classes: int


class Stream(NamedTuple):
    """How a stream is made.

    Parameters
    ----------
    make
        Returns the rows, given their number and the folder of the real sets.
    about
        What it is, in words.
    drifts
        False where rows are exchangeable.
    untouched
        No parameter of a learner of this package was chosen on it.
    rows
        At most.
    real
        The set that it is read from, if any.
    """

    make: Callable[[int, str | Path | None], Labelled]
    about: str
    drifts: bool = True
    untouched: bool = False
    rows: int = ROWS
    real: str | None = None


def load(name: str, folder: str | Path | None = None, max_rows: int | None = None) -> Rows:
    """Return the rows of a stream.

    Raises
    ------
    KeyError
        When no stream has this name.
    FileNotFoundError
        When it is real, and the folder is not given or has no file of its set.
    """
    stream = STREAMS[name]
    n = stream.rows if max_rows is None else min(max_rows, stream.rows)
    X, y = stream.make(n, folder)
    low, high = X.min(axis=0), X.max(axis=0)
    scaled = (X - low) / np.where(high > low, high - low, 1.0)
    classes, labels = np.unique(y, return_inverse=True)
    return Rows(np.ascontiguousarray(scaled, np.float32), labels.astype(np.int64), len(classes))


def abrupt(concepts: Sequence[Concept], n: int, seed: int) -> Labelled:
    """Return n rows, one concept after the other, in equal parts."""
    draw = np.random.default_rng(seed)
    ends = [n * k // len(concepts) for k in range(len(concepts) + 1)]
    sizes = np.diff(ends).tolist()
    parts = [concept(draw, size) for concept, size in zip(concepts, sizes, strict=True)]
    return np.concatenate([X for X, _ in parts]), np.concatenate([y for _, y in parts])


def gradual(concepts: Sequence[Concept], n: int, seed: int) -> Labelled:
    """Return n rows; around the end of a part, of 3/10 of its length, both concepts are mixed.

    Row t is of a later concept k with probability 1 / (1 + exp(-4 (t - t_k) / width)).
    """
    draw = np.random.default_rng(seed)
    part = n / len(concepts)
    places, which = np.arange(n), np.zeros(n, np.int64)
    for k in range(1, len(concepts)):
        odds = 4.0 * (places - k * part) / (0.3 * part)
        which[draw.random(n) < 1.0 / (1.0 + np.exp(-np.clip(odds, -500.0, 500.0)))] = k
    drawn = [concept(draw, n) for concept in concepts]
    X, y = (np.stack(both) for both in zip(*drawn, strict=True))
    return X[which, places], y[which, places]


def agrawal(rule: int) -> Concept:
    """Loans: nine columns, 5 % perturbed; rules 1, 4, 6, 2 of Agrawal et al. (1993) are 0 to 3."""

    def draw_rows(draw: np.random.Generator, n: int) -> Labelled:
        salary = draw.uniform(20_000.0, 150_000.0, n)
        commission = np.where(salary >= 75_000.0, 0.0, draw.uniform(10_000.0, 75_000.0, n))
        age, education = draw.integers(20, 81, n), draw.integers(0, 5, n)
        car, district = draw.integers(1, 21, n), draw.integers(0, 9, n)
        value = (9 - district) * 100_000.0 * draw.uniform(0.5, 1.5, n)
        years, loan = draw.integers(1, 31, n), draw.uniform(0.0, 500_000.0, n)
        third = np.digitize(age, [40, 60])  # young, middle, old

        def within(amount: np.ndarray, low: list[float]) -> np.ndarray:
            lowest = 1000.0 * np.array(low)[third]
            return (lowest <= amount) & (amount <= lowest + 50_000.0)

        schooled = (education >= third) & (education <= third + np.array([1, 2, 2])[third])
        is_first = (
            third != 1,
            np.where(schooled, within(salary, [25, 50, 50]), within(salary, [50, 75, 25])),
            within(salary + commission, [50, 75, 25]),
            within(salary, [50, 75, 25]),
        )[rule]
        X = np.column_stack(
            [salary, commission, age, education, car, district, value, years, loan]
        ).astype(np.float64)
        numeric = [0, 1, 2, 6, 7, 8]
        span = np.ptp(X[:, numeric], axis=0) if n else 0.0
        X[:, numeric] += 0.05 * span * draw.uniform(-1.0, 1.0, (n, len(numeric)))
        return X, is_first.astype(np.int64)

    return draw_rows


SEGMENTS = (0b1110111, 0b0010010, 0b1011101, 0b1011011, 0b0111010)
SEGMENTS += (0b1101011, 0b1101111, 0b1010010, 0b1111111, 0b1111011)


def led(n_swapped: int) -> Concept:
    """Digits by seven segments, each wrong in 10 % of rows, beside 17 columns of noise.

    The first segments have changed places with columns of noise (Breiman et al., 1984, with the
    drift of MOA's generator).
    """
    lit = np.array([[digit >> (6 - k) & 1 for k in range(7)] for digit in SEGMENTS])
    order = np.arange(24)
    order[:n_swapped], order[7 : 7 + n_swapped] = order[7 : 7 + n_swapped], order[:n_swapped].copy()

    def draw_rows(draw: np.random.Generator, n: int) -> Labelled:
        y = draw.integers(0, 10, n)
        shown = lit[y] ^ (draw.random((n, 7)) < 0.1)
        X = np.concatenate([shown, draw.integers(0, 2, (n, 17))], axis=1)
        return X[:, order].astype(np.float64), y

    return draw_rows


def hyperplane(n: int, d: int, speed: float, seed: int) -> Labelled:
    """Return rows on two sides of a plane that turns with every row (Hulten et al., 2001).

    Each weight moves by `speed` a row and turns back in 10 % of rows; 5 % of labels are wrong.
    """
    draw = np.random.default_rng(seed)
    start, X = draw.random(d), draw.random((n, d))
    ways = np.cumprod(np.where(draw.random((n, d)) < 0.1, -1.0, 1.0), axis=0)
    weights = start + speed * np.cumsum(ways, axis=0)
    y = (weights * X).sum(axis=1) >= 0.5 * weights.sum(axis=1)
    return X, (y ^ (draw.random(n) < 0.05)).astype(np.int64)


class Centres:
    """Gaussians of random centres, widths, weights and classes, that may move (MOA's RandomRBF).

    Parameters
    ----------
    speed
        Distance that a centre goes in a row, in a direction of its own; walls send it back.
    """

    def __init__(self, draw: np.random.Generator, n: int, d: int, classes: int, speed: float = 0.0):
        self._centres, self._widths = draw.random((n, d)), draw.random(n)
        self._classes, self._weights = np.arange(n) % classes, draw.random(n)
        ways = draw.normal(size=(n, d))
        self._ways = speed * ways / np.linalg.norm(ways, axis=1, keepdims=True)

    def __call__(self, draw: np.random.Generator, n: int) -> Labelled:
        """Draw n rows, the first with the centres where they began."""
        which = draw.choice(len(self._weights), n, p=self._weights / self._weights.sum())
        at = self._centres[which] + np.arange(n)[:, None] * self._ways[which]
        at = 1.0 - np.abs(1.0 - at % 2.0)
        ways = draw.uniform(-1.0, 1.0, at.shape)
        ways /= np.linalg.norm(ways, axis=1, keepdims=True)
        X = at + ways * (self._widths[which] * draw.normal(size=n))[:, None]
        return X, self._classes[which]


def rbf(n: int, speed: float, seed: int) -> Labelled:
    """Return rows around 50 moving centres, ten columns, five classes."""
    draw = np.random.default_rng(seed)
    return Centres(draw, 50, 10, 5, speed)(draw, n)


def recurring(n: int, seed: int) -> Labelled:
    """Return rows around 20 centres in 20 columns, four classes: sets of centres A, B, A, C."""
    first, second, third = (Centres(np.random.default_rng([seed, k]), 20, 20, 4) for k in range(3))
    return abrupt([first, second, first, third], n, seed)


def sea(threshold: float) -> Concept:
    """Sum of two of three columns above a threshold; 10 % wrong (Street and Kim, 2001)."""

    def draw_rows(draw: np.random.Generator, n: int) -> Labelled:
        X = draw.uniform(0.0, 10.0, (n, 3))
        return X, ((X[:, 0] + X[:, 1] > threshold) ^ (draw.random(n) < 0.1)).astype(np.int64)

    return draw_rows


def stagger(rule: int) -> Concept:
    """Size, colour and shape, of three values each (Schlimmer and Granger, 1986)."""

    def draw_rows(draw: np.random.Generator, n: int) -> Labelled:
        size, colour, shape = X = draw.integers(0, 3, (3, n))
        rules = ((size == 0) & (colour == 0), (colour == 1) | (shape == 1), size > 0)
        return X.T.astype(np.float64), rules[rule].astype(np.int64)

    return draw_rows


def mixed(is_reversed: bool) -> Concept:
    """Two of three: two booleans, and below a wave (Gama et al., 2004)."""

    def draw_rows(draw: np.random.Generator, n: int) -> Labelled:
        X = draw.random((n, 4))
        X[:, :2] = X[:, :2] >= 0.5
        below = X[:, 3] < 0.5 + 0.3 * np.sin(3.0 * np.pi * X[:, 2])
        y = X[:, 0] + X[:, 1] + below >= 2.0
        return X, (y ^ is_reversed).astype(np.int64)

    return draw_rows


def sine(is_second: bool, is_reversed: bool) -> Concept:
    """Below one of two waves, beside two columns of noise (Gama et al., 2004: SINE1, SINE2)."""

    def draw_rows(draw: np.random.Generator, n: int) -> Labelled:
        X = draw.random((n, 4))
        wave = 0.5 + 0.3 * np.sin(3.0 * np.pi * X[:, 1]) if is_second else np.sin(X[:, 1])
        return X, ((X[:, 0] < wave) ^ is_reversed).astype(np.int64)

    return draw_rows


def waveform(turned_by: int) -> Concept:
    """Mixtures of two of three waves at 21 places, with noise, beside 19 columns of noise.

    Breiman et al. (1984); the columns have moved on by some places.
    """
    hat = np.maximum(0.0, 6.0 - np.abs(np.arange(21) - 6.0))
    waves = np.stack([hat, np.roll(hat, 8), np.roll(hat, 4)])
    pairs = np.array([[0, 1], [0, 2], [1, 2]])

    def draw_rows(draw: np.random.Generator, n: int) -> Labelled:
        y, share = draw.integers(0, 3, n), draw.random((n, 1))
        one, other = pairs[y].T
        X = draw.normal(size=(n, 40))
        X[:, :21] += share * waves[one] + (1.0 - share) * waves[other]
        return np.roll(X, turned_by, axis=1), y

    return draw_rows


def random_tree(n: int, seed: int) -> Labelled:
    """Return uniform rows in five columns, three classes by a random tree (Domingos, Hulten, 2000).

    Branches end from depth 3 on with probability 0.15, and all at depth 6.
    """
    draw = np.random.default_rng(seed)
    X, y = draw.random((n, 5)), np.zeros(n, np.int64)

    def label(rows: np.ndarray, low: np.ndarray, high: np.ndarray, depth: int) -> None:
        if depth == 6 or (depth >= 3 and draw.random() < 0.15):
            y[rows] = draw.integers(0, 3)
            return
        j = draw.integers(0, 5)
        cut = draw.uniform(low[j], high[j])
        nearer, farther = high.copy(), low.copy()
        nearer[j] = farther[j] = cut
        is_below = X[rows, j] < cut
        label(rows[is_below], low, nearer, depth + 1)
        label(rows[~is_below], farther, high, depth + 1)

    label(np.arange(n), np.zeros(5), np.ones(5), 0)
    return X, y


def in_order(name: str) -> Callable[[int, str | Path | None], Labelled]:
    """Return what reads the first rows of a real set as they are stored."""

    def read(n: int, folder: str | Path | None) -> Labelled:
        found = datasets.stored(name, folder, n)
        return found.X_train, found.y_train

    return read


def shuffled(name: str) -> Callable[[int, str | Path | None], Labelled]:
    """Return what reads rows of a set in random order."""

    def read(n: int, folder: str | Path | None) -> Labelled:
        found = datasets.load(name, folder)
        return found.X_train[:n], found.y_train[:n]

    return read


def relabelled(n: int, folder: str | Path | None) -> Labelled:
    """Return satimage in random order; at each quarter the classes are renumbered by one."""
    found = datasets.stored("satimage", folder)
    rows = np.random.default_rng(datasets.SEED).permutation(len(found.y_train))[:n]
    quarter = np.arange(len(rows)) * QUARTERS // len(rows)
    return found.X_train[rows], (found.y_train[rows] + quarter) % found.n_classes


def _generated(make: Callable[[int], Labelled]) -> Callable[[int, str | Path | None], Labelled]:
    return lambda n, folder: make(n)


AGRAWAL = tuple(agrawal(rule) for rule in range(QUARTERS))
LED = tuple(led(n_swapped) for n_swapped in (1, 3, 5, 7))
SINE = tuple(sine(second, turned) for second in (False, True) for turned in (False, True))
STREAMS: dict[str, Stream] = {
    "electricity": Stream(
        in_order("electricity"),
        "market of New South Wales, half hours in time order, all rows",
        rows=45_312,
        real="electricity",
    ),
    "covtype": Stream(
        in_order("covtype"), "forest cover in the order of the source", real="covtype"
    ),
    "ijcnn1": Stream(
        in_order("ijcnn1"),
        "windows of a time series in the order of the source, one label in ten",
        untouched=True,
        real="ijcnn1",
    ),
    "satimage, relabelled": Stream(
        relabelled,
        "satellite image in random order, classes renumbered at each quarter",
        rows=5_104,
        real="satimage",
    ),
    "Agrawal, abrupt": Stream(
        _generated(lambda n: abrupt(AGRAWAL, n, 11)), "loans by four rules, nine columns"
    ),
    "Agrawal, gradual": Stream(
        _generated(lambda n: gradual(AGRAWAL, n, 12)), "the same, gradual changes"
    ),
    "LED, abrupt": Stream(
        _generated(lambda n: abrupt(LED, n, 5)),
        "digits by 7 of 24 columns, of which 1, 3, 5, 7 have changed places",
    ),
    "LED, gradual": Stream(_generated(lambda n: gradual(LED, n, 6)), "the same, gradual changes"),
    "hyperplane": Stream(
        _generated(lambda n: hyperplane(n, 10, 0.001, 3)), "a plane that turns, ten columns"
    ),
    "RBF, slow": Stream(_generated(lambda n: rbf(n, 1e-4, 4)), "50 centres that move, .0001 a row"),
    "RBF, fast": Stream(_generated(lambda n: rbf(n, 1e-3, 4)), "50 centres that move, .001 a row"),
    "RBF, recurring": Stream(
        _generated(lambda n: recurring(n, 8)),
        "20 centres in 20 columns: sets A, B, A, C",
        untouched=True,
    ),
    "SEA": Stream(
        _generated(lambda n: abrupt([sea(limit) for limit in (8.0, 9.0, 7.0, 9.5)], n, 7)),
        "a sum above four thresholds, one label in ten wrong",
    ),
    "STAGGER": Stream(
        _generated(lambda n: abrupt([stagger(rule) for rule in (0, 1, 2, 0)], n, 9)),
        "three rules of three nominal columns, the first twice",
    ),
    "Mixed": Stream(
        _generated(lambda n: abrupt([mixed(k % 2 == 1) for k in range(QUARTERS)], n, 10)),
        "one rule and its reverse, by turns",
    ),
    "Sine": Stream(
        _generated(lambda n: abrupt(SINE, n, 13)),
        "two waves and their reverses, two columns of noise",
        untouched=True,
    ),
    "waveform": Stream(
        _generated(lambda n: gradual([waveform(k) for k in (0, 13, 26, 7)], n, 14)),
        "three waves in 40 columns that move on, gradual changes",
        untouched=True,
    ),
    "adult": Stream(shuffled("adult"), "in random order", drifts=False, rows=10_000, real="adult"),
    "bank": Stream(shuffled("bank"), "in random order", drifts=False, rows=10_000, real="bank"),
    "covtype, shuffled": Stream(
        shuffled("covtype"), "forest cover in random order", drifts=False, real="covtype"
    ),
    "random tree": Stream(
        _generated(lambda n: random_tree(n, 2)), "three classes, five columns", drifts=False
    ),
    "20 columns": Stream(
        shuffled("synthetic_d20"), "two classes, half of the columns noise", drifts=False
    ),
}
