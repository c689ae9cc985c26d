"""How cells of all trees are fitted together, the Mondrian kernel, as checked data.

The features of the kernel are the cells: phi(x) is T^{-1/2} in the column of x's cell in each of T
trees, and f(x) = phi(x) . w. Trees keep values u = m + T^{1/2} w, m what a cell without rows says,
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
_LEAST_SHARE = 1e-3  # score of a class below which it is not told to be less likely


@dataclass(frozen=True)
class Joint:
    """What the cells' values minimise, and how.

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
        """The policy of what a node remembers."""
        return Values(bool(self.is_joint), float(self.ridge), -1.0)

    @property
    def forecast(self) -> Value:
        """The policy of what a cell says."""
        joint, averaged = bool(self.is_joint), bool(self.is_averaged)
        return Value(int(self.n_outputs), joint, float(self.ridge), -1.0, averaged)

    def to_json(self) -> dict[str, Any]:
        """Return it as a JSON-able dict; settings of later versions only where they are used."""
        told = dataclasses.asdict(self)
        return {key: told[key] for key in told if _LATER.get(key, ()) != told[key]}

    @classmethod
    def from_json(cls, told: Any) -> Joint:
        """Return what :meth:`to_json` told, checked.

        Raises
        ------
        CorruptError
            If it is none.
        """
        names = {field.name for field in dataclasses.fields(cls)}
        told = {**_LATER, **told} if isinstance(told, dict) else told
        if not isinstance(told, dict) or set(told) != names:
            raise CorruptError(f"a joint fit should have the keys {sorted(names)}")
        scale = told["scale"]
        sizes = told["n_outputs"], told["batch_size"], told["max_columns"]
        sound = (
            all(type(size) is int for size in sizes)
            and 0 <= told["n_outputs"] < 2**24
            and 1 <= told["batch_size"] <= LARGEST_BATCH
            and told["max_columns"] >= 0
            and told["solver"] in SOLVERS
            and type(told["is_joint"]) is bool
            and type(told["is_averaged"]) is bool
            and type(told["ridge"]) in (float, int)
            and 0.0 < told["ridge"] < math.inf
            and (scale is None or (type(scale) in (float, int) and 0.0 < scale < math.inf))
            and told["loss"] in LOSSES
        )
        if not sound:
            raise CorruptError(f"impossible joint fit: {str(told)[:400]}")
        return cls(**told)


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
    told: np.ndarray = kept / kept.sum(axis=1, keepdims=True)
    return told


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
    told: np.ndarray = powers / powers.sum(axis=1, keepdims=True)
    return told
