"""Colours of reports: text stands out on a screen, light or dark, and paper is light."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest

import dmondrian.report

STYLE = Path(dmondrian.report.__file__).parent / "templates/style.css"
LEAST = 4.5  # WCAG 2.2, success criterion 1.4.3


def palettes() -> dict[str, dict[str, str]]:
    """Colours by name, for light and for dark screens."""
    css = STYLE.read_text()
    light, dark = re.findall(r":root \{(.*?)\}", css, re.DOTALL)
    assert "@media screen and (prefers-color-scheme: dark) { :root" in css  # no dark ink on paper
    return {
        name: dict(re.findall(r"--(\w+): (#[0-9a-f]{6})", text))
        for name, text in (("light", light), ("dark", dark))
    }


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    low, high = sorted([luminance(one), luminance(other)])
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("screen", ["light", "dark"])
def test_text_stands_out(screen: str) -> None:
    colours = palettes()[screen]
    for ink, ground in itertools.product(("ink", "soft"), ("page", "card")):
        assert contrast(colours[ink], colours[ground]) >= LEAST, (ink, ground)


def test_contrast_is_that_of_black_on_white() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21.0)
