"""Settings of the joint fit of cells of all trees, the Mondrian kernel, as checked data.

The features of the kernel are the cells: phi(x) is T^{-1/2} in the column of x's cell in each of T
trees, and f(x) = phi(x) . w. Trees keep values u = m + T^{1/2} w, m the prediction of empty cells,
so that f(x) is the mean over trees of the values of x's cells: a forest, whose leaves were not
fitted one tree at a time.

Relies on the policies' modules. Promises that equal data give equal policies.

Shapes: n rows, T trees, k outputs.

References: Balog, Lakshminarayanan, Ghahramani, Roy, Teh (2016), sections 3, 4.2 and 6.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from dmondrian.errors import CorruptError, ParameterError
from dmondrian.losses.value import Value
from dmondrian.stats.cell_values import FIRST_VALUE, Values

SOLVERS = ("sgd", "cholesky", "auto")
LARGEST_BATCH = 65_536
LOSSES = ("squared", "log_loss", "hinge")
_LATER: dict[str, Any] = {"scale": None, "loss": "squared"}  # and what files without them mean
_LEAST_SHARE = 1e-3  # score of a class, as probabilities need it: lower ones count as this


@dataclass(frozen=True)
class Joint:
    """Settings of a joint fit: what the values of cells minimise, and how.

    Attributes
    ----------
    n_outputs : int
        Classes, or 1 for regression; 0 for features without values.
    solver : {"sgd", "cholesky", "auto"}
        "auto" is exact up to ``max_columns``, stochastic gradient beyond.
    is_joint : bool
        Whether trees are fitted together, or each for itself as a forest is.
    ridge : float
        delta^2, > 0: what a squared weight costs, in units of a row's squared error.
    batch_size : int
        Most rows of a mini-batch.
    max_columns : int
        Columns beyond which "auto" is not exact.
    is_averaged : bool
        Whether values are averages over lifetimes.
    scale : float or None
        s, > 0: weights are of variance s^2 beforehand, and labels about the function of s^2
        ``ridge``; None where s is integrated out.
    loss : {"squared", "log_loss", "hinge"}
        What the values minimise beside their own squares.
    """

    n_outputs: int
    solver: str = "sgd"
    is_joint: bool = True
    ridge: float = 0.01
    batch_size: int = 256
    max_columns: int = 1024
    is_averaged: bool = False
    scale: float | None = None
    loss: str = "squared"

    @property
    def n_stats(self) -> int:
        """Statistics of a node, in doubles."""
        return FIRST_VALUE + 2 * self.n_outputs

    @property
    def is_exact(self) -> bool:
        """Whether a new model begins with exact weights."""
        is_fitted = self.n_outputs > 0 and not self.is_averaged and self.loss == "squared"
        return self.is_joint and self.solver != "sgd" and is_fitted

    @property
    def stat(self) -> Values:
        """The policy of the statistics of a node."""
        return Values(bool(self.is_joint), float(self.ridge), -1.0)

    @property
    def forecast(self) -> Value:
        """The policy of the prediction of a cell."""
        joint, averaged = bool(self.is_joint), bool(self.is_averaged)
        return Value(int(self.n_outputs), joint, float(self.ridge), -1.0, averaged)

    def to_json(self) -> dict[str, Any]:
        """Return the settings as a JSON-able dict; those of later versions where they are used."""
        values = dataclasses.asdict(self)
        return {key: values[key] for key in values if _LATER.get(key, ()) != values[key]}

    @classmethod
    def from_json(cls, values: Any) -> Joint:
        """Return the settings of :meth:`to_json`, checked.

        Raises
        ------
        CorruptError
            If it is none.
        """
        names = {field.name for field in dataclasses.fields(cls)}
        values = {**_LATER, **values} if isinstance(values, dict) else values
        if not isinstance(values, dict) or set(values) != names:
            raise CorruptError(f"a joint fit should have the keys {sorted(names)}")
        scale = values["scale"]
        sizes = values["n_outputs"], values["batch_size"], values["max_columns"]
        sound = (
            all(type(size) is int for size in sizes)
            and 0 <= values["n_outputs"] < 2**24
            and 1 <= values["batch_size"] <= LARGEST_BATCH
            and values["max_columns"] >= 0
            and values["solver"] in SOLVERS
            and type(values["is_joint"]) is bool
            and type(values["is_averaged"]) is bool
            and type(values["ridge"]) in (float, int)
            and 0.0 < values["ridge"] < math.inf
            and (scale is None or (type(scale) in (float, int) and 0.0 < scale < math.inf))
            and values["loss"] in LOSSES
        )
        if not sound:
            raise CorruptError(f"impossible joint fit: {str(values)[:400]}")
        return cls(**values)


def as_targets(y: np.ndarray, n_outputs: int) -> np.ndarray:
    """Return what the values are fitted to, float64 [n, k]: labels, or ones at their classes."""
    if n_outputs == 1:
        return np.array(y, np.float64)[:, None]
    return (np.asarray(y)[:, None] == np.arange(n_outputs)).astype(np.float64)


def shares(scores: np.ndarray) -> np.ndarray:
    """Return probabilities from fitted scores of classes, float64 [n, K].

    Scores are least squares fits of zeros and ones and may leave [0, 1]: what is below 0.001
    counts as that, and all are divided by their sum, so that their order stays.
    """
    kept = np.maximum(scores, _LEAST_SHARE)
    proba: np.ndarray = kept / kept.sum(axis=1, keepdims=True)
    return proba


def proba_of(loss: str, scores: np.ndarray) -> np.ndarray:
    """Return probabilities from scores that minimise a loss, float64 [n, K].

    Raises
    ------
    ParameterError
        If the loss has none.
    """
    if loss == "squared":
        return shares(scores)
    if loss == "hinge":
        raise ParameterError(
            'a kernel machine of loss="hinge" has no probabilities to score by: load it as an '
            "estimator and call predict or decision_function"
        )
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    proba: np.ndarray = powers / powers.sum(axis=1, keepdims=True)
    return proba
