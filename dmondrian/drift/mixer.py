"""The weights of a mixture of forecasts: what a member, and the forest, learn about experts.

Relies on :mod:`dmondrian.drift.mixing_kernels`. Promises that the weights are a pure function of
the rows in order, whatever the cuts between calls.

Shapes: G inputs, E experts, n rows, K classes.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import numpy as np

from dmondrian.drift.mixing_kernels import mix_and_step, mix_rows
from dmondrian.errors import CorruptError
from dmondrian.tree.box_encoding import read_only

SHARE = 0.0005  # of the experts' weights that is spread anew by a row
LARGEST_WEIGHT = 1e9  # of an input, of a state from outside


class Expert(NamedTuple):
    """A geometric mixture of some inputs."""

    inputs: tuple[int, ...]
    start: tuple[float, ...]  # their weights at first
    rate: float  # of the steps; 0 where the weights stay


class Mixer:
    """Experts on ``n_inputs`` inputs and their weights.

    Attributes
    ----------
    weights : float64 [E, G]
        Of the inputs in each expert; 0 where it does not take an input.
    outer : float64 [E]
        Of the experts, sum 1.
    """

    def __init__(self, n_inputs: int, experts: Sequence[Expert]) -> None:
        shape = len(experts), n_inputs
        self.weights, self._used = np.zeros(shape), np.zeros(shape, np.bool_)
        self._rates = read_only(np.array([expert.rate for expert in experts]))
        for e, expert in enumerate(experts):
            self.weights[e, list(expert.inputs)] = expert.start
            self._used[e, list(expert.inputs)] = True
        self.outer = np.full(len(experts), 1.0 / len(experts))

    def mix(self, inputs: np.ndarray) -> np.ndarray:
        """Return the mixture, float64 [n, K], of ``inputs`` float64 [G, n, K]."""
        out = np.empty(inputs.shape[1:])
        mix_rows(inputs, self.weights, self.outer, self._used, out)
        return out

    def mix_and_step(self, inputs: np.ndarray, y: np.ndarray, w: np.ndarray) -> np.ndarray:
        """Return what :meth:`mix` does; before the next row the weights take a step to each label.

        Parameters
        ----------
        inputs : float64 [G, n, K]
        y : float64 [n]
            Classes.
        w : float64 [n] or [0]
            Weights > 0, or none for weights of one.
        """
        out = np.empty(inputs.shape[1:])
        mix_and_step(
            inputs, self.weights, self.outer, self._used, self._rates, SHARE, read_only(y),
            read_only(w), out,
        )  # fmt: skip
        return out

    def copy(self) -> Self:
        """Return a mixer of the same weights, which goes on by itself."""
        other = copy.copy(self)
        other.weights, other.outer = self.weights.copy(), self.outer.copy()
        return other

    def to_json(self) -> dict[str, Any]:
        """Return the weights as lists."""
        return {"weights": self.weights.tolist(), "outer": self.outer.tolist()}

    def take_json(self, stored: Any) -> None:
        """Take over the weights of :meth:`to_json`.

        Raises
        ------
        CorruptError
            If they are not those of such a mixer.
        """
        try:
            weights, outer = (np.array(stored[name], np.float64) for name in ("weights", "outer"))
            is_sound = (
                weights.shape == self.weights.shape
                and outer.shape == self.outer.shape
                and bool((np.abs(weights) <= LARGEST_WEIGHT).all())
                and not weights[~self._used].any()
                and bool((outer > 0.0).all())
                and abs(outer.sum() - 1.0) < 1e-9
            )
        except (KeyError, TypeError, ValueError):
            is_sound = False
        if not is_sound:
            raise CorruptError(
                f"mixing weights should be {self.weights.shape[0]} rows of "
                f"{self.weights.shape[1]} numbers and as many weights of sum 1; found "
                f"{str(stored)[:80]}"
            )
        self.weights[:], self.outer[:] = weights, outer
