"""Messages about parameters read as a job file is written."""

from __future__ import annotations

import pytest

from dmondrian.cli.toml_words import in_toml


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("leave it", "leave it"),
        ('use drift=None, not drift="follow"', 'use drift = "none", not drift = "follow"'),
        ("clip=True; calibrate=False.", "clip = true; calibrate = false."),
        ("loss='hinge' at 1e-3", 'loss = "hinge" at 1e-3'),
        ("delay=64 or rate=1.5e-3, x=-2", "delay = 64 or rate = 1.5e-3, x = -2"),
        ("a str among {'follow'} or None", "a str among {'follow'} or \"none\""),
        ("e=('a', 'b'): leave it at ('a',)", 'e = ["a", "b"]: leave it at ["a"]'),
        ("Nonesuch and n=3rd stay", "Nonesuch and n=3rd stay"),
        ("target_range=(0, 1) stays", "target_range=(0, 1) stays"),
    ],
)
def test_python_values_become_those_of_toml(text: str, expected: str) -> None:
    assert in_toml(text) == expected
