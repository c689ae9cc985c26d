"""A mixer whose weights stay as they are for a block of rows, whose labels come together.

Relies on :mod:`dmondrian.drift.mixer`. Promises that no forecast knows a label of its own block,
and that the weights are a pure function of the rows in order, whatever the cuts between calls.

Shapes: G inputs, n rows, K classes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from dmondrian.drift.mixer import Mixer


class DelayedMixer:
    """A mixer that is in use, and one that takes the steps until the block ends.

    Parameters
    ----------
    mixer : Mixer
        At its start.
    delay : int
        Rows of a block; with 1 both mixers are one.
    """

    def __init__(self, mixer: Mixer, delay: int) -> None:
        self.used = mixer
        self.ahead = mixer if delay == 1 else mixer.copy()

    def mix(self, inputs: np.ndarray) -> np.ndarray:
        """Return the mixture, float64 [n, K], of ``inputs`` float64 [G, n, K]."""
        return self.used.mix(inputs)

    def mix_and_step(self, inputs: np.ndarray, y: np.ndarray, w: np.ndarray) -> np.ndarray:
        """Return the mixture of rows of one block; take steps to their labels.

        Parameters
        ----------
        inputs, y, w
            As of :meth:`dmondrian.drift.mixer.Mixer.mix_and_step`.
        """
        if self.ahead is self.used:
            return self.used.mix_and_step(inputs, y, w)
        mixed = self.used.mix(inputs)
        self.ahead.mix_and_step(inputs, y, w)
        return mixed

    def end_block(self) -> None:
        """Use the weights that know all labels of the block."""
        if self.ahead is not self.used:
            self.used = self.ahead.copy()

    def to_json(self) -> dict[str, Any]:
        """Return the weights as lists."""
        found = self.used.to_json()
        return found if self.ahead is self.used else {**found, "ahead": self.ahead.to_json()}

    def take_json(self, stored: Any) -> None:
        """Take over the weights of :meth:`to_json`, or those of a mixer at the end of a block.

        Raises
        ------
        CorruptError
            If they are not those of such a mixer.
        """
        self.used.take_json(stored)
        if self.ahead is not self.used:
            self.ahead.take_json(stored.get("ahead", stored))


def cut_blocks(position: int, n: int, delay: int) -> Iterator[tuple[slice, bool]]:
    """Yield slices of ``n`` rows from row ``position`` on, within blocks; whether one ends there.

    Blocks of one row are one slice.
    """
    start = 0
    while start < n:
        stop = n if delay == 1 else min(n, start + delay - (position + start) % delay)
        yield slice(start, stop), (position + stop) % delay == 0
        start = stop
