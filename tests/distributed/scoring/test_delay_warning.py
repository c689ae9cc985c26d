"""Whoever scores many rows with a forest that waits for few is warned."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest

from dmondrian.distributed.scoring.delay_warning import warn_of_delay
from dmondrian.ensemble.settings.drift_settings import DriftSettings
from dmondrian.ensemble.settings.parameters import ForestParameters

PLAIN = ForestParameters("amf-classifier", 2, 2, 0, alpha=0.25, charge_opening=False)


@pytest.mark.parametrize(
    ("delay", "n_rows", "n_trained", "words"),
    [
        (None, 10**6, 0, None),
        (1, 4, 10**6, None),
        (64, 256, 10**6, None),
        (1, 5, 10**6, "known at once, and forecasts 5 rows before any of their labels"),
        (16, 1000, 10**6, "known 16 rows later, and forecasts 1,000 rows before"),
        (64, 10**6, 10**6, None),  # what `dmondrian init` proposes
        # A longer one is worth no more, and this one leaves few rows that wait.
        (1, 10**6, 10**6, "train it with delay = 254, or without drift"),
        (256, 10**6, 10**6, None),
        (1024, 10**6, 10**6, None),
        # More would leave nothing, or little, to learn.
        (1, 10**6, 800, "train it with delay = 200, or without drift"),
        (1, 1000, 799, "train it with delay = 199, or without"),
        (64, 1000, 256, None),
        (1, 1000, 3, None),
    ],
)
def test_a_delay_that_is_clearly_longer_is_warned_of(
    caplog, delay, n_rows, n_trained, words
) -> None:
    drift = None if delay is None else DriftSettings(delay=delay)
    with caplog.at_level(logging.WARNING):
        warn_of_delay(replace(PLAIN, drift=drift), n_rows, n_trained)
    assert (words in caplog.text) if words else not caplog.records
