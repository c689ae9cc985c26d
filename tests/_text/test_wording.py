"""Numbers of things."""

from __future__ import annotations

from dmondrian._text.wording import counted, size


def test_one_is_singular() -> None:
    reported = [counted(n, "row") for n in (0, 1, 2, 1_000)]
    assert reported == ["0 rows", "1 row", "2 rows", "1,000 rows"]
    assert counted(2, "class", "classes") == "2 classes"


def test_bytes_have_the_unit_that_fits() -> None:
    reported = [size(n) for n in (0, 999, 1_000, 938_900, 124_800_000, 1.35e9)]
    assert reported == ["0 B", "999 B", "1 kB", "939 kB", "125 MB", "1.35 GB"]
