"""Loss settings of a generalised Mondrian forest, as checked data, and their policies.

Relies on the policies' modules. Promises that equal costs give equal policies.

Shapes: k outputs, m nodes.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from dmondrian.errors import CorruptError, DataError, ParameterError
from dmondrian.losses.convex import LOSSES, OfMean
from dmondrian.losses.huber import Huber
from dmondrian.losses.quantile import Pinball
from dmondrian.stats.labels import LEAST_SIZE, Labels, n_labels_stats
from dmondrian.stats.moments import MOMENTS, Moments

REGRESSION = ("squared", "gaussian", "poisson", "geometric", "huber", "quantile")
BINARY = LOSSES[LOSSES.index("bernoulli") :]
# Losses of the user's own, whose functions the trees do not know.
OWN, OWN_OF_MEAN, OWN_BINARY = "own", "own of the mean", "own binary"
OF_LABELS = ("huber", "quantile", OWN)
COUNTS = ("poisson", "geometric")
# Those whose cells' values are numbers in the unit of labels.
OF_THE_LABEL = ("squared", "gaussian", "huber", "quantile")
SELECTIONS = ("penalized", "prequential")
LOG_FREQUENCY, MINIMIZER = CELL_VALUES = ("log_frequency", "minimizer")  # of a density
LARGEST_SIZE = 2**14
_NUMBERS = (float, int)


@dataclass(frozen=True)
class Cost:
    """Loss settings: what cells minimise, and how the lifetime is chosen by it.

    Attributes
    ----------
    loss : str
        One of :data:`REGRESSION` or :data:`BINARY`; "density", of rows without labels;
        :data:`OWN`, :data:`OWN_OF_MEAN` or :data:`OWN_BINARY`, which differ in the statistics
        that nodes store.
    levels : tuple of float
        Increasing quantile levels in (0, 1); for the quantile loss alone.
    delta : float
        Where Huber's loss becomes linear, in units of the label.
    bound : float or None
        Limit of the value of a cell; None for those of :mod:`dmondrian.losses.convex`.
    size : int
        Labels of a node that are kept (losses that need the labels).
    selection : {"penalized", "prequential"} or None
        How each tree's lifetime is chosen from its nodes.
    penalty : float or None
        Penalty of a unit of lifetime; None for the default of
        :mod:`dmondrian.ensemble.lifetime_selection`.
    rate : float
        Learning rate of the mixture over prunings, in units of one over the loss; 0 without one.
    lifetime : float or None
        Lifetime of predictions that was chosen on held-out rows.
    cell_value : {"log_frequency", "minimizer"}
        Values of a density's cells; see :mod:`dmondrian.ensemble.density_risk`.
    """

    loss: str
    levels: tuple[float, ...] = ()
    delta: float = 1.0
    bound: float | None = None
    size: int = 64
    selection: str | None = None
    penalty: float | None = None
    rate: float = 0.0
    lifetime: float | None = None
    cell_value: str = LOG_FREQUENCY

    @property
    def is_binary(self) -> bool:
        """Whether labels are two classes."""
        return self.loss in (*BINARY, OWN_BINARY)

    @property
    def is_own(self) -> bool:
        """Whether the loss is the user's own."""
        return self.loss in (OWN, OWN_OF_MEAN, OWN_BINARY)

    @property
    def keeps_labels(self) -> bool:
        """Whether nodes store labels, as moments are not enough."""
        return self.loss in OF_LABELS

    @property
    def n_outputs(self) -> int:
        """Values of a cell."""
        return len(self.levels) if self.loss == "quantile" else 1

    @property
    def middle(self) -> int:
        """The output that stands for all: of quantiles the one nearest to the median."""
        return int(np.argmin(np.abs(np.array(self.levels) - 0.5))) if self.levels else 0

    @property
    def n_stats(self) -> int:
        """Statistics of a node, in doubles."""
        return n_labels_stats(self.size) if self.keeps_labels else MOMENTS

    def to_json(self) -> dict[str, Any]:
        """Return the cost as a JSON-able dict, without later keys that have their first value."""
        values = {**dataclasses.asdict(self), "levels": list(self.levels)}
        if self.cell_value == LOG_FREQUENCY:
            del values["cell_value"]
        return values

    @classmethod
    def from_json(cls, values: Any) -> Cost:
        """Return the cost of :meth:`to_json`, checked.

        Raises
        ------
        CorruptError
            If it is none.
        """
        names = {field.name for field in dataclasses.fields(cls)}
        if not isinstance(values, dict) or not names - {"cell_value"} <= set(values) <= names:
            raise CorruptError(f"a cost should have the keys {sorted(names)}")
        values = {"cell_value": LOG_FREQUENCY, **values}
        optional = values["bound"], values["penalty"], values["lifetime"]
        numbers = [
            values["delta"],
            values["rate"],
            *(value for value in optional if value is not None),
        ]
        levels, size = values["levels"], values["size"]
        sound = (
            values["loss"] in (*REGRESSION, *BINARY, "density", OWN, OWN_OF_MEAN, OWN_BINARY)
            and values["selection"] in (None, *SELECTIONS)
            and isinstance(levels, list)
            and all(type(level) is float and 0.0 < level < 1.0 for level in levels)
            and all(former < later for former, later in pairwise(levels))
            and bool(levels) == (values["loss"] == "quantile")
            and all(type(value) in _NUMBERS and 0 <= value < math.inf for value in numbers)
            and values["delta"] > 0
            and values["bound"] != 0
            and (values["lifetime"] is None or values["selection"] is None)
            and type(size) is int
            and LEAST_SIZE <= size <= LARGEST_SIZE
            and values["cell_value"]
            in (CELL_VALUES if values["loss"] == "density" else CELL_VALUES[:1])
        )
        if not sound:
            raise CorruptError(f"impossible cost of a forest: {str(values)[:400]}")
        return cls(**{**values, "levels": tuple(levels)})

    def stat(self) -> Any:
        """Return the policy of the statistics of a node."""
        return Labels(int(self.size)) if self.keeps_labels else Moments(MOMENTS)

    def check_labels(self, y: np.ndarray) -> None:
        """Refuse labels for which the loss is not defined.

        Parameters
        ----------
        y : float64 [n]

        Raises
        ------
        DataError
            If counts are negative, or labels are beyond what the learning rate is good for.
        """
        if self.rate > 0.0 and self.bound is not None and len(y) and not self.is_binary:
            least, most = mean_range(self.loss, self.bound)
            if float(y.max()) > most or (self.loss not in COUNTS and float(y.min()) < least):
                raise DataError(
                    f"y has values in [{y.min():g}, {y.max():g}], and the learning rate is good "
                    f"for labels up to {most:g} in size with bound={self.bound:g}: give a larger "
                    "bound, or scale the target"
                )
        if self.loss in COUNTS and len(y) and float(y.min()) < 0.0:
            row = int(y.argmin())
            raise DataError(
                f"loss={self.loss!r} is of counts, expected labels >= 0, got {y[row]:g} in row "
                f"{row}: shift or drop such rows, or choose another loss"
            )

    def policy(self, prior: bool) -> Any:
        """Return the loss policy; ``prior`` lets empty cells predict 0."""
        bound = 0.0 if self.bound is None else float(self.bound)
        priced = self.selection == "prequential" or self.rate > 0.0
        if self.loss == OWN:  # the trees are not asked for its values
            return Pinball(np.array([0.5]), int(self.size), 0.0, prior, False)
        if self.loss == "quantile":
            levels = np.array(self.levels, np.float64)
            return Pinball(levels, int(self.size), bound, prior, priced)
        if self.loss == "huber":
            return Huber(float(self.delta), int(self.size), bound, prior, priced)
        # Rows without labels are learned as rows of label 0.
        return OfMean(
            LOSSES.index(self.loss if self.loss in LOSSES else "squared"),
            bound,
            prior,
            priced,
            float(self.rate),
        )


def responses(loss: str, z: np.ndarray) -> np.ndarray:
    """Return the means of labels at the averaged ``z`` of a forest, of the same shape.

    The derivative of b for the GLM losses; of binary costs the probability of the second class
    at which ``z`` is the best constant.

    Raises
    ------
    KeyError
        For the hinge, whose best constant is the sign of 2p - 1 alone.
    """
    return _RESPONSES[loss](z)


def _expit(z: np.ndarray) -> np.ndarray:
    return 0.5 + 0.5 * np.tanh(0.5 * z)


_RESPONSES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    **dict.fromkeys((*OF_THE_LABEL, OWN, OWN_OF_MEAN, "density"), lambda z: z),
    "poisson": np.exp,
    "geometric": lambda z: -np.exp(z) / np.expm1(z),
    "bernoulli": _expit,
    "logistic": _expit,
    "exponential": lambda z: _expit(2.0 * z),
    "square": lambda z: np.clip(0.5 + 0.5 * z, 0.0, 1.0),
    "modified_square": lambda z: np.clip(0.5 + 0.5 * z, 0.0, 1.0),
    "smoothed_hinge": lambda z: np.where(
        z >= 0.0, 1.0 / (2.0 - np.minimum(z, 1.0)), 1.0 - 1.0 / (2.0 + np.maximum(z, -1.0))
    ),
}


def forecasts(cost: Cost, mean: np.ndarray) -> np.ndarray:
    """Return what metrics compare with labels, from the mean over trees.

    Parameters
    ----------
    cost : Cost
    mean : float64 [n, k]

    Returns
    -------
    float64 array of shape (n, 2) or (n, 1)
        Class probabilities (of the hinge: shares of the trees' signs), or the predicted mean
        label; of quantiles the one whose level is nearest to 1/2.
    """
    if cost.is_binary:
        share = responses("square" if cost.loss == "hinge" else cost.loss, mean[:, 0])
        return np.stack([1.0 - share, share], axis=1)
    return responses(cost.loss, mean[:, [cost.middle]])


def theory_rate(loss: str, bound: float) -> float:
    """Return the largest learning rate at which a loss is exp-concave for |z| <= ``bound``.

    exp(-rate loss(z, y)) is concave in z where rate <= loss'' / loss'^2, which is least at the
    ends of the limits of z and y (real labels within the bound, counts up to the largest mean
    of a cell).

    Raises
    ------
    ParameterError
        For losses of which no such rate is known; for bounds so large or small that the rate is no
        double.
    """
    if loss not in _RATES:
        raise ParameterError(
            'aggregation="aggregate" needs a loss that is known to be exp-concave, and '
            f"{loss!r} is not: expected one of {sorted(_RATES)} (of any other no learning rate is "
            "known at which exp(-rate loss) is concave, and where a loss has sloping straight "
            'pieces there is none); use one of these, or aggregation="mean"'
        )
    try:
        rate = _RATES[loss](bound)
    except ArithmeticError:
        rate = math.inf
    if not 0.0 < rate < math.inf:
        raise ParameterError(
            f"with bound={bound:g} the learning rate at which loss={loss!r} is exp-concave is "
            "beyond what a double holds: give a bound nearer to 1, and scale the target"
        )
    return rate


def _poisson_rate(bound: float) -> float:
    small, large = math.exp(-bound), math.exp(bound)
    return min(small, small / (large - small) ** 2)


def _geometric_rate(bound: float) -> float:
    least, most = mean_range("geometric", bound)
    return min(1.0, least * (1.0 + least) / (most - least) ** 2)


_RATES: dict[str, Callable[[float], float]] = {
    "squared": lambda bound: 1.0 / (8.0 * bound * bound),
    "gaussian": lambda bound: 1.0 / (4.0 * bound * bound),
    "poisson": _poisson_rate,
    "geometric": _geometric_rate,
    "bernoulli": lambda bound: math.exp(-bound),
    "logistic": lambda bound: math.exp(-bound) * math.log(2.0),
    "exponential": lambda bound: math.exp(-bound),
    "square": lambda bound: 0.5 / (1.0 + bound) ** 2,
    "modified_square": lambda bound: 0.5 / (1.0 + bound) ** 2,
}


def mean_range(loss: str, bound: float) -> tuple[float, float]:
    """Return the least and the largest label that a loss of |z| <= ``bound`` is bounded for."""
    if loss == "poisson":
        return 0.0, math.exp(bound)
    if loss == "geometric":
        return 1.0 / math.expm1(bound), 1.0 / math.expm1(1.0 / bound)
    return -bound, bound


def quantile_names(levels: Iterable[float]) -> list[str]:
    """Return the names of quantiles' columns: other levels have other names."""
    return [f"q_{float(level)!r}" for level in levels]
