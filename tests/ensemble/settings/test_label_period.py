"""Lengths of time as text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dmondrian.ensemble.settings.drift_settings import DriftSettings
from dmondrian.ensemble.settings.label_period import Period, period_of
from dmondrian.errors import CorruptError, ParameterError


@pytest.mark.parametrize(
    ("text", "length", "words"),
    [
        ("7 days", 6.048e11, "7 days"),
        ("7D", 6.048e11, "7 days"),
        ("3 d", 2.592e11, "3 days"),
        ("12 h", 4.32e10, "12 hours"),
        ("36h", 1.296e11, "36 hours"),
        ("1.5 hours", 5.4e9, "1.5 hours"),
        ("30min", 1.8e9, "30 minutes"),
        (" 90 s ", 9e7, "90 seconds"),
        ("7 \u03bcs", 7.0, "7 microseconds"),
        ("2 weeks", 1.2096e12, "2 weeks"),
        ("1500 ms", 1.5e6, "1500 milliseconds"),
        ("1 us", 1.0, "1 microsecond"),
        ("1 Day", 8.64e10, "1 day"),
    ],
)
def test_times_are_read(text: str, length: float, words: str) -> None:
    period = period_of(text)
    assert period == Period(length, True, words)


@pytest.mark.parametrize(
    ("text", "length", "words"),
    [("500", 500.0, "500"), ("0.25", 0.25, "0.25"), ("1e3", 1e3, "1000")],
)
def test_numbers_are_read(text: str, length: float, words: str) -> None:
    assert period_of(text) == Period(length, False, words)


@given(st.floats(1e-6, 1e4), st.sampled_from(["", " s", " min", " h", " days", " weeks"]))
def test_words_are_read_as_the_same_length(amount: float, unit: str) -> None:
    period = period_of(f"{amount!r}{unit}")
    assert period_of(period.in_words) == period


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "expected a whole number of rows"),
        ("days", '"7 days", "12 h"'),
        ("7 fortnights", '"7 days", "12 h"'),
        ("-7 days", '"7 days", "12 h"'),
        ("0 days", '"7 days", "12 h"'),
        ("0", '"500"'),
        ("nan", '"500"'),
        ("1e999 days", '"500"'),
        ("0.1 us", '"500"'),
        ("1 day 12 h", '"7 days"'),
        ("5m", "minutes are min, and months have no fixed length: say days"),
        ("2 months", "months have no fixed length"),
        ("1 year", "years have no fixed length"),
    ],
)
def test_other_texts_are_refused(text: str, why: str) -> None:
    with pytest.raises(ParameterError, match="is no length of time") as raised:
        period_of(text)
    assert why in str(raised.value)


def test_settings_hold_the_words() -> None:
    settings = DriftSettings(period="7 days")
    assert settings.to_json() == {"first": 5, "last": 15, "delay": 1, "period": "7 days"}
    assert DriftSettings.from_json(settings.to_json()) == settings
    assert "period" not in DriftSettings().to_json()
    for bad in ("7 d", "", None, 7, "a week"):
        with pytest.raises(CorruptError, match="settings of a forest"):
            DriftSettings.from_json({**settings.to_json(), "period": bad})
