"""Mixers of forecasts: the weights that a member, or the guard, learns of its inputs.

A mixer is a mixture over experts, and each expert a mixture over some of the inputs, whose weights
take steps of a rate of its own.

Labels come ``delay`` rows at a time. The rows of a block are mixed by the weights from before it.
Meanwhile a copy of these takes its steps row by row, as if each label were known at once; its mean
over the block mixes the rows of the next one, and is what the copy begins that block with. The
longer the delay, the smaller the steps: weights of experts take the probability of a label to the
power ``delay``^-1/2, as all rows of a block are evidence of one state of the trees.

Blocks of time have rows of any number: the power is that of the block before, and the first is one
of rows that all inputs forecast alike, which move no weights (:mod:`dmondrian.drift.label_blocks`).

Relies on :mod:`dmondrian.drift.mixing_kernels`. Promises that no forecast knows a label of its own
block, and that the weights are a pure function of the rows in order, whatever the cuts between
calls.

Shapes: G inputs, E experts, n rows, k outputs: K classes, or mean and variance.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from dmondrian.drift.linear_mixing_kernels import FIRST_SCALE, LinearExperts
from dmondrian.drift.mixing_kernels import (
    GeometricExperts,
    Steps,
    Weights,
    make_row,
    mix_and_step,
    mix_rows,
)
from dmondrian.errors import CorruptError
from dmondrian.tree.box_encoding import read_only

SHARE = 0.0005  # of the experts' weights that a row moves to those at first
LARGEST_WEIGHT = 1e9  # of an input, of a state from outside
_LARGEST_SCALE = 1e300  # a squared error


class LinearSettings(NamedTuple):
    """Settings of linear mixtures; fields as of :class:`LinearExperts`."""

    input_share: float = 5e-5
    rate: float = 0.1
    rows: float = 256.0
    is_scaled: bool = False


class Expert(NamedTuple):
    """A mixture of some inputs, over which the mixer mixes.

    Not one of the estimators' parameter ``experts``: that names what inputs there are.
    """

    inputs: tuple[int, ...]
    start: tuple[float, ...]  # their weights at first
    rate: float  # of the steps; 0 where the weights stay


class Mixer:
    """Experts on ``n_inputs`` inputs, and their weights.

    Parameters
    ----------
    n_inputs : int
    experts : sequence of Expert
    delay : int
        Rows of a block.
    shares : sequence of float or None
        Weights of the experts at first, to which each row moves them back by a small part; equal
        for None.
    linear : LinearSettings or None
        Of mixtures of means and variances; None for geometric mixtures of probabilities.
    is_timed : bool, default=False
        Whether blocks are of time, and ``delay`` that of the next rows.
    positive : sequence of int
        Inputs whose weights in geometric mixtures never fall below 0, so that mixtures rise with
        what these forecast; weights of linear mixtures never do.

    Attributes
    ----------
    weights : Weights
        That mix.
    """

    def __init__(
        self,
        n_inputs: int,
        experts: Sequence[Expert],
        delay: int = 1,
        shares: Sequence[float] | None = None,
        linear: LinearSettings | None = None,
        is_timed: bool = False,
        positive: Sequence[int] = (),
    ) -> None:
        n = len(experts)
        inputs, rates, used = np.zeros((n, n_inputs)), np.zeros((n, n_inputs)), []
        for e, expert in enumerate(experts):
            inputs[e, list(expert.inputs)] = expert.start
            rates[e, list(expert.inputs)] = expert.rate
            used.append(np.isin(np.arange(n_inputs), expert.inputs))
        start = np.full(n, 1.0 / n) if shares is None else np.array(shares, np.float64)
        self._least = np.full(n_inputs, -np.inf)
        self._least[list(positive)] = 0.0
        shared = read_only(rates), read_only(start), SHARE, _power_of(delay)
        self._experts: GeometricExperts | LinearExperts
        if linear is None:
            self._experts = GeometricExperts(*shared, read_only(self._least))
        else:
            self._experts = LinearExperts(*shared, *linear)
        self._used, self._is_delayed = np.array(used), delay > 1 or is_timed
        self.weights = Weights(
            inputs, start.copy(), np.array(() if linear is None else FIRST_SCALE)
        )
        self._begin_block()

    def _begin_block(self) -> None:
        """Let the weights that take steps through a block begin as those that mix its rows."""
        inputs, experts, scale = self.weights
        n = len(experts) if self._is_delayed else 0
        ahead = Weights(inputs[:n].copy(), experts[:n].copy(), scale.copy())
        total = Weights(*(np.zeros_like(part) for part in ahead))
        self._steps = Steps(ahead, total, np.zeros(1))

    def mix(self, inputs: np.ndarray) -> np.ndarray:
        """Return the mixture, float64 [n, k], of ``inputs`` float64 [G, n, k]."""
        out = np.empty(inputs.shape[1:])
        row = make_row(self.weights, inputs.shape[2])
        mix_rows(self._experts, self.weights, row, np.ascontiguousarray(inputs), out)
        return out

    def mix_and_step(self, inputs: np.ndarray, y: np.ndarray, w: np.ndarray) -> np.ndarray:
        """Return what :meth:`mix` does of rows of one block; take a step to each label.

        Parameters
        ----------
        inputs : float64 [G, n, k]
        y : float64 [n]
            Classes, or labels.
        w : float64 [n] or [0]
            Weights > 0, or none for weights of one.
        """
        out = np.empty(inputs.shape[1:])
        mix_and_step(
            self._experts, self.weights, make_row(self.weights, inputs.shape[2]), self._steps,
            np.ascontiguousarray(inputs), read_only(y), read_only(w), out,
        )  # fmt: skip
        return out

    def end_block(self) -> None:
        """Mix the next rows by the mean of the weights over the steps of the block that ended."""
        n = self._steps.n[0]
        if n > 0.0:
            total, scale = self._steps.total, self._steps.weights.scale
            self.weights = Weights(total.inputs / n, total.experts / n, scale)
        self._begin_block()

    def set_delay(self, delay: int) -> None:
        """Let weights of experts move as for blocks of ``delay`` rows, from the next block on."""
        self._experts = self._experts._replace(power=_power_of(delay))

    def use_rates_of(self, other: Mixer) -> None:
        """Let weights move by the rates of another mixer of the same experts, from now on."""
        self._experts = other._experts

    def to_json(self) -> dict[str, Any]:
        """Return the weights as lists."""
        stored = _lists(self.weights)
        if self._is_delayed:
            stored["ahead"] = _lists(self._steps.weights)
            stored["sum"] = _lists(self._steps.total) | {"n": float(self._steps.n[0])}
        return stored

    def load_json(self, stored: Any) -> None:
        """Take over the weights of :meth:`to_json`, or those of a mixer at the end of a block.

        Raises
        ------
        CorruptError
            If they are not those of such a mixer.
        """
        self.weights = self._read(stored, 1.0)
        self._begin_block()
        if self._is_delayed and "ahead" in stored:
            # Version 1 kept the newest weights of a block, and no sum of them.
            ahead_alone = stored["ahead"] if isinstance(stored["ahead"], dict) else {}
            stored = {"sum": {**ahead_alone, "n": 1.0}, **stored}
            n = stored["sum"].get("n") if isinstance(stored.get("sum"), dict) else None
            if not isinstance(n, float) or not 0.0 <= n < math.inf:
                raise CorruptError(f"steps of mixing weights should be a number, found {n!r}")
            ahead, total = self._read(stored["ahead"], 1.0), self._read(stored["sum"], n)
            self._steps = Steps(ahead, total, np.array([n]))

    def _read(self, stored: Any, whole: float) -> Weights:
        """Return the weights of lists; those of experts add up to ``whole``."""
        shape = self.weights.inputs.shape
        try:
            inputs, experts = (np.array(stored[name], np.float64) for name in ("weights", "outer"))
            is_sound = (
                inputs.shape == shape
                and experts.shape == shape[:1]
                and bool((np.abs(inputs) <= LARGEST_WEIGHT * max(whole, 1.0)).all())
                and bool((inputs >= self._least).all())
                and not inputs[~self._used].any()
                and bool((experts > 0.0).all() if whole else not experts.any())
                and abs(experts.sum() - whole) <= 1e-9 * whole
            )
            scale = np.array(stored.get("scale", ()), np.float64)
            is_sound = is_sound and scale.shape == self.weights.scale.shape
            if is_sound and len(scale):
                is_sound = bool(
                    ((scale >= 0.0) & (scale <= _LARGEST_SCALE)).all()
                    and (inputs >= 0.0).all()
                    and (inputs[self._used] > 0.0).all() == (whole > 0.0)
                    and (np.abs(inputs.sum(axis=1) - whole) <= 1e-9 * whole).all()
                )
        except (AttributeError, KeyError, TypeError, ValueError):
            is_sound = False
        if not is_sound:
            raise CorruptError(
                f"mixing weights should be {shape[0]} rows of {shape[1]} numbers and as many "
                f"weights of sum {whole:g}; found {str(stored)[:80]}"
            )
        return Weights(inputs, experts, scale)


def _power_of(delay: int) -> float:
    return 1.0 / math.sqrt(delay)


def _lists(weights: Weights) -> dict[str, Any]:
    stored = {"weights": weights.inputs.tolist(), "outer": weights.experts.tolist()}
    return stored | ({"scale": weights.scale.tolist()} if len(weights.scale) else {})
