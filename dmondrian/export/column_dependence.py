"""Partial dependence of a run's forecasts on its columns, from the trees.

Beside it stand where rows lie on each, and which pairs of columns act together.

Relies on the trees of a run, which are loaded, on the encoding of its columns, and on its data,
where these are still there. Promises the numbers of :func:`dmondrian.export.partial_dependence` at
encoded values of a column, all features of the column together.

Shapes: g values, k outputs.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from dmondrian._text.wording import counted
from dmondrian.data import Column, Plan, Schema
from dmondrian.data.encode import encode_features
from dmondrian.data.schema import CYCLIC_PARTS
from dmondrian.errors import ParameterError
from dmondrian.export.column_spread import RowsRead, read_some, shares_of_bins
from dmondrian.export.plain_trees import plain_trees
from dmondrian.export.tree_dependence import Factor, dependence_of, interaction_of

_POINTS = 33  # of a column of numbers, whose range they cut evenly
_MOST_WHOLE = 64  # whole numbers that are all shown
_MOST_LEVELS = 15
_MOST_CLASSES = 4  # in a chart: the page has as many colours
_BINS = 25  # of a column of numbers
_MOST_PAIRED = 6  # columns of which all pairs are looked at
_PAIR_VALUES = 8  # of a column there
_MOST_NODES = 500_000  # of the trees that are walked where it has to be quick
LEAST_TOGETHER = 0.02
"""Share of the variance of the dependence on both columns, for a pair to be shown."""


class Dependence(NamedTuple):
    """Mean forecasts at values of a column, where the others vary as in the rows learned."""

    column: Column
    values: list[Any]  # numbers, microseconds or levels
    means: np.ndarray  # float64 [g, k]
    missing: np.ndarray | None  # float64 [k], where the column is null, if it was in training
    part: str  # of a time, what is shown of it; "" of others
    ends: list[float]  # of the bins; none of levels
    shares: np.ndarray | None  # float64, of rows, by bin or by value; None where it is not shown


class Pair(NamedTuple):
    """Two columns that act together."""

    names: tuple[str, str]
    share: float  # of the variance of the dependence on both that is no sum of one of each
    size: float  # the root of that variance, in units of the forecast


class Dependences(NamedTuple):
    """Partial dependence on the most important columns."""

    columns: list[Dependence]
    pairs: list[Pair]  # the largest first
    n_paired: int  # columns of which all pairs were looked at
    rows: str  # whose shares are shown, and trees walked, in words, or why there are none
    not_shown: list[str]  # columns without values to show: of text, or without a finite range


def dependence_on(
    estimator: Any,
    schema: Schema,
    plan: Plan | None,
    learned: int,
    names: Sequence[str],
    *,
    is_quick: bool = False,
) -> Dependences:
    """Return the dependence of a run's forecasts on columns.

    Parameters
    ----------
    estimator : estimator
        Of the run, see :func:`dmondrian.load`.
    schema : Schema
    plan : Plan or None
        Its stream, whose rows are looked at; None where it is not known.
    learned : int
        Rows of the stream that were learned.
    names : sequence of str
        Of columns.
    is_quick : bool
        Whether to walk the first trees alone where all have many nodes, none of a forest that
        follows the stream, and to read fewer rows, of local files alone.

    Raises
    ------
    ParameterError
        The forest is no sum over leaves of its forecasts.
    """
    if (why := why_no_dependence(estimator.algorithm, estimator.forest_.parameters)) is not None:
        raise ParameterError(f"there is no partial dependence {why}")
    trees = plain_trees(estimator)
    n_trees = len(trees)
    if is_quick:
        reached = np.cumsum([len(tree.left) for tree in trees])
        if estimator.forest_.parameters.follows_stream and reached[-1] > _MOST_NODES:
            raise ParameterError(
                f"it takes a while where all trees count, of {reached[-1]:,} nodes: "
                "--partial-dependence with a number of columns draws it"
            )
        trees = trees[: max(1, int(np.searchsorted(reached, _MOST_NODES, side="right")))]
    places, start = {}, 0
    for column in schema.columns:
        places[column.name] = column, list(range(start, start + column.width))
        start += column.width
    chosen = [places[name] for name in names]
    features_chosen = [feature for _, features in chosen for feature in features]
    rows = read_some(plan, learned, features_chosen, is_quick=is_quick)
    walked = "" if len(trees) == n_trees else f" The first {len(trees)} of {n_trees} trees count."
    dependences, factors, start = [], [], 0
    for column, features in chosen:
        column_rows = rows.X[:, start : start + len(features)]
        start += len(features)
        missing = None
        if column.has_nulls and values_of(column):
            missing = dependence_of(trees, features, encoded(schema, column, [None]))[0]
        for place, (part, values) in enumerate(shown_of(column)):
            of_part = [k for k, each in enumerate(column.parts) if part in ("", _PART_OF[each])]
            of_part = of_part or list(range(len(features)))  # of a category
            X = encoded(schema, column, values)
            part_features = [features[k] for k in of_part] if part else features
            means = dependence_of(trees, part_features, X[:, of_part] if part else X)
            ends, shares = spread_of(column, part, values, column_rows)
            null = missing if place == 0 else None
            dependences.append(Dependence(column, values, means, null, part, ends, shares))
        if values := values_of(column):
            ends, shares = spread_of(column, "", values, column_rows)
            pair_values, weights = _of_pairs(values, ends, shares)
            factors.append(
                (column.name, Factor(features, encoded(schema, column, pair_values), weights))
            )
    factors = factors[:_MOST_PAIRED]
    if trees[0].value.shape[1] == 2:  # what one class gains the other loses
        trees = [tree._replace(value=tree.value[:, 1:]) for tree in trees]
    pairs = [
        Pair((name, other_name), *interaction_of(trees, factor, another))
        for j, (other_name, another) in enumerate(factors)
        for name, factor in factors[:j]
    ]
    pairs = [pair for pair in pairs if pair.share >= LEAST_TOGETHER]
    pairs.sort(key=lambda pair: -pair.size)
    not_shown = [column.name for column, _ in chosen if not values_of(column)]
    return Dependences(dependences, pairs, len(factors), _in_rows(rows) + walked, not_shown)


def why_no_dependence(algorithm: Any, parameters: Any) -> str | None:
    """Return of which forests there is none, and why; None of those that have it."""
    if parameters.follows_stream and parameters.n_classes:
        return "for classifiers that follow the stream: they mix logarithms of what trees forecast"
    if parameters.domain == "cube":
        return (
            "for forests on the cube: where no row was learned, their cells are drawn for each row "
            "that is predicted"
        )
    if str(algorithm).startswith("generalized"):
        return "for generalised forests: their trees add up on the scale of the loss alone"
    if parameters.expected_extension:
        return (
            'for predict_extension = "expected": forecasts vary within a leaf, with the distance '
            "of the row"
        )
    return None


def _in_rows(rows: RowsRead) -> str:
    """Return whose shares are shown."""
    if rows.reason:
        return f"Where rows lie is not shown: {rows.reason}."
    which = "all rows learned" if rows.are_all else "rows in parts spread evenly over those learned"
    return f"Shares of rows are of {counted(len(rows.X), 'row')}: {which}."


_PART_OF = {
    "value": "",
    "linear": "date",
    "hour": "hour",
    "weekday": "weekday",
    "month": "month",
    **{
        part: whole.removesuffix("_sin")
        for pair in CYCLIC_PARTS.values()
        for part, whole in ((pair[0], pair[0]), (pair[1], pair[0]))
    },
}
"""What is shown of the parts of a column."""
_WEEKDAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
_DAY = 86_400_000_000  # microseconds


def shown_of(column: Column) -> list[tuple[str, list[Any]]]:
    """Return what is shown of a column, and its values: of a time each part by itself.

    Other parts of the time then vary as in the rows learned: points of a date, some days apart,
    would else be of different days of the week.
    """
    if column.kind != "time":
        values = values_of(column)
        return [("", values)] if values else []
    turns = {
        "date": values_of(column),
        "hour": [hour * _DAY // 24 for hour in range(24)],
        "weekday": [(4 + day) * _DAY for day in range(7)],  # the first Monday of 1970 is the 5th
        "month": [int(np.datetime64(f"1970-{k:02}-15", "us").astype(int)) for k in range(1, 13)],
        "yearday": [int(np.datetime64(f"1970-{k:02}-15", "us").astype(int)) for k in range(1, 13)],
    }
    parts = dict.fromkeys(_PART_OF[part] for part in column.parts)
    return [(part, turns[part]) for part in parts if turns[part]]


def name_of_value(part: str, value: Any) -> str:
    """Return an hour, a day of the week or a month, as text."""
    if part == "hour":
        return f"{value * 24 // _DAY:02}:00"
    if part == "weekday":
        return _WEEKDAYS[(value // _DAY - 4) % 7]
    return time.strftime("%B", time.gmtime(value / 1e6))


def spread_of(
    column: Column, part: str, values: Sequence[Any], X: np.ndarray
) -> tuple[list[float], np.ndarray | None]:
    """Return ends of bins and the shares of rows in them, those without nulls.

    The first and the last bin have an end that is infinite, where rows are beyond the range by
    which the column is encoded. Of a category there are no bins, but the shares of its ``values``,
    of all rows; of a part of a time that comes again nothing is shown.

    Parameters
    ----------
    column : Column
    part : str
        Of a time.
    values : sequence
        That are shown.
    X : float32 [n, width]
        Encoded rows; none where they cannot be read.
    """
    if column.kind == "category":
        return [], (X[:, : len(values)] > 0.0).mean(axis=0) if len(X) else None
    if part not in ("", "date"):
        return [], None
    assert column.lower is not None  # of values that are shown
    assert column.upper is not None
    ends = np.linspace(column.lower, column.upper, _BINS + 1).tolist()
    at = next((k for k, each in enumerate(column.parts) if each in ("value", "linear")), None)
    if column.has_nulls:
        X = X[X[:, -1] == 0.0]
    if at is None or not len(X):
        return ends, None
    shares = shares_of_bins(X[:, at], _BINS)
    first, last = int(shares[0] == 0.0), _BINS + 2 - int(shares[-1] == 0.0)
    return [-math.inf, *ends, math.inf][first : last + 1], shares[first:last]


def _of_pairs(
    values: Sequence[Any], ends: Sequence[float], shares: np.ndarray | None
) -> tuple[list[Any], np.ndarray]:
    """Return a few values of a column and the rows that they stand for."""
    if not ends and shares is not None:
        best = np.sort(np.argsort(-shares, kind="stable")[:_PAIR_VALUES])
        kept = [k for k in best.tolist() if shares[k] > 0.0]
        if kept:
            return [values[k] for k in kept], shares[kept]
    if not ends or shares is None or shares.sum() <= 0.0:
        places = np.unique(np.linspace(0, len(values) - 1, _PAIR_VALUES).astype(int))
        return [values[k] for k in places], np.ones(len(places))
    # The middles of so many parts of equal shares, and the shown values that are next to them.
    reached = np.concatenate([[0.0], np.cumsum(shares) / shares.sum()])
    finite = np.clip(ends, *np.array(ends)[np.isfinite(ends)][[0, -1]])
    middles = np.interp((np.arange(_PAIR_VALUES) + 0.5) / _PAIR_VALUES, reached, finite)
    nearest = np.abs(np.asarray(values, np.float64)[:, None] - middles).argmin(axis=0)
    places, counts = np.unique(nearest, return_counts=True)
    return [values[k] for k in places], counts.astype(np.float64)


def values_of(column: Column) -> list[Any]:
    """Return values of a column to show: evenly over the range of the training data, or levels."""
    if column.kind == "category":
        return list(column.levels[:_MOST_LEVELS])
    if column.kind == "text":
        return []  # a hash has no word to show
    low, high = column.lower, column.upper
    if low is None or high is None or not math.isfinite(high - low):
        return []
    if column.kind == "time":
        return sorted({int(value) for value in np.linspace(low, high, _POINTS)})
    is_whole = column.type.startswith(("int", "uint", "bool"))
    if is_whole and high - low <= _MOST_WHOLE:
        return [float(value) for value in range(int(low), int(high) + 1)]
    return [float(value) for value in np.unique(np.linspace(low, high, _POINTS))]


def encoded(schema: Schema, column: Column, values: Sequence[Any]) -> np.ndarray:
    """Return values of a column as the run encodes them, float32 [g, width]."""
    kinds = {"category": pa.string(), "time": pa.timestamp("us"), "number": pa.float64()}
    array = pa.array(values, kinds[column.kind])
    alone = replace(schema, columns=(column,))
    return encode_features(alone, {column.name: array}, len(values), {}, str)


def classes_shown(dependences: Sequence[Dependence], classes: Sequence[str]) -> list[int]:
    """Return the outputs to show: the second of two classes, or those that vary most of many."""
    if len(classes) <= 2:
        return [len(classes) - 1] if classes else [0]
    ranges = np.zeros(len(classes))
    for dependence in dependences:
        ranges = np.maximum(ranges, np.ptp(dependence.means, axis=0))
    return sorted(np.argsort(-ranges, kind="stable")[:_MOST_CLASSES].tolist())


def forecast_in_words(classes: Sequence[str], places: Sequence[int]) -> str:
    """Return what the mean is of."""
    if not classes:
        return "mean forecast"
    return f"mean probability of {classes[places[0]]}" if len(places) == 1 else "mean probability"
