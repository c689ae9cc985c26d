"""Numbers of things."""

from __future__ import annotations

from dmondrian.wording import counted


def test_one_is_singular() -> None:
    told = [counted(n, "row") for n in (0, 1, 2, 1_000)]
    assert told == ["0 rows", "1 row", "2 rows", "1,000 rows"]
    assert counted(2, "class", "classes") == "2 classes"
