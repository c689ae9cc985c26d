"""Pages of the benchmarks: each is generated from the records of one results file.

A script has in its ``PAGE`` what question it answers and how its records become tables; its
numbers are what sentences of the page and rows of `SUMMARY.md` may cite, so that no number is
written by hand. Nothing is measured here.

    python -m benchmarks.pages [name ...]

Writes `reports/<name>.md` for the named scripts, or for all.
"""

from __future__ import annotations

import argparse
import importlib
import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.__main__ import RUNS
from benchmarks.records import MACHINE, REPORTS, RESULTS, Records, show_tables, table

# Scripts without a page, and why.
WITHOUT_PAGE = {
    "history": "asv keeps and draws its own results",
}
# Pages of a script that has several, with the command for each.
COMMANDS = {
    "encoding": "python -m benchmarks.encoding --data data",
    "figures": "python -m benchmarks.figures --data data m17",
    "figures_m21": "python -m benchmarks.figures --data data m21",
    "figures_d13": "python -m benchmarks.figures --data data d13",
    "figures_z24": "python -m benchmarks.figures --data data z24",
}
SENTENCES = 3  # at most, on a page


class Number(NamedTuple):
    """A number that a sentence may cite, its interval, and the runs it was measured in."""

    value: str
    interval: str
    runs: frozenset[int]

    def __str__(self) -> str:
        return f"{self.value} ({self.interval})" if self.interval else self.value


Figure = Callable[[Records], Number]


class Page(NamedTuple):
    """What a page has besides the command, the machines and the commits.

    Parameters
    ----------
    title, question
        Of the page.
    body
        Returns the tables of some records.
    numbers
        What may be cited, by name. Each raises LookupError where its records are missing.
    sentences
        At most `SENTENCES`, without digits: numbers are fields ``{name}``.
    identity
        Keys that identify a record, see :class:`benchmarks.records.Records`.
    pictures
        Files beside the page that its script draws, shown after the tables.
    """

    title: str
    question: str
    identity: Sequence[str]
    body: Callable[[Records], str] = show_tables
    numbers: Mapping[str, Figure] = {}
    sentences: Sequence[str] = ()
    pictures: Sequence[str] = ()


def names() -> list[str]:
    """Return the names of all scripts that have a page."""
    scripts = [run.script for run in RUNS if run.script not in WITHOUT_PAGE]
    return list(dict.fromkeys([*scripts, *COMMANDS]))


def page_of(name: str) -> Page:
    """Return the page of a script."""
    found: Page = importlib.import_module(f"benchmarks.{name}").PAGE
    return found


def stem(name: str) -> str:
    """Return the name of a script's files."""
    return name.replace(".", "_")


def stored(name: str, folder: Path = RESULTS) -> Records:
    """Return the stored records of a script."""
    return Records(folder / f"{stem(name)}.json", page_of(name).identity)


def newest(page: Page, records: Records) -> Records:
    """Return the records that numbers are taken from: of the newest machine, if by machine."""
    if MACHINE in page.identity and len(records):
        return records.of_machine(records.machines()[0])
    return records


def numbers_of(page: Page, records: Records) -> dict[str, Number]:
    """Return the numbers whose records are there."""
    found = {}
    for name, figure in page.numbers.items():
        try:
            found[name] = figure(newest(page, records))
        except LookupError:
            continue
    return found


def show(name: str, records: Records) -> str:
    """Return the page of a script with these records."""
    page = page_of(name)
    parts = [f"# {page.title}", page.question, f"    {command(name)}"]
    found = numbers_of(page, records)
    wanted = [re.findall(r"{(\w+)}", sentence) for sentence in page.sentences]
    sentences = [
        sentence.format(**found)
        for sentence, fields in zip(page.sentences, wanted, strict=True)
        if set(fields) <= set(found)
    ]
    parts += ["\n".join(sentences)] if sentences else []
    if MACHINE in page.identity:
        for cpu in records.machines():
            text = page.body(records.of_machine(cpu))
            parts.append(f"## On {cpu}\n\n{re.sub('^#', '##', text, flags=re.MULTILINE)}".strip())
    else:
        parts.append(page.body(records).strip())
    parts += [f"![{page.title}]({picture})" for picture in page.pictures]
    parts.append(f"## Measured on\n\n{measured_on(records)}".strip())
    return "\n\n".join(parts) + "\n"


def command(name: str) -> str:
    """Return the command of the reported run."""
    if name in COMMANDS:
        return COMMANDS[name]
    (run,) = (run for run in RUNS if run.script == name)
    words = ["python", "-m", f"benchmarks.{name}"]
    words += ["--data", "data"] if run.takes_data else []
    words += ["--peers", "peers"] if run.takes_peers else []
    return " ".join([*words, run.whole]).strip()


def measured_on(records: Records) -> str:
    """Return a table of runs: machine, versions, commit, arguments, and how many records."""
    counts = {i: sum(r["run"] == i for r in records) for i in range(len(records.runs))}
    rows = []
    for i, run in reversed(list(enumerate(records.runs))):
        versions = ", ".join(f"{k} {v}" for k, v in run["packages"].items()) or "-"
        given = f"`{run['arguments']}`" if run["arguments"] else "-"
        about = [run["cpu"], run["cores"], run["python"], versions, run["commit"]]
        rows.append([*about, given, counts[i]])
    head = ["machine", "cores", "Python", "packages", "commit", "arguments", "records"]
    return table(head, rows)


def publish(name: str, records: Records) -> None:
    """Write the page of a script that has measured its records, and print it."""
    folder = REPORTS if records.path.parent == RESULTS else records.path.parent
    text = show(name, records)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{stem(name)}.md").write_text(text)
    print(text)


def runs_of(found: Iterable[dict[str, Any]]) -> frozenset[int]:
    """Return the runs of some records."""
    return frozenset(record["run"] for record in found)


def middle(values: Iterable[float], form: str, of: Iterable[dict[str, Any]]) -> Number:
    """Return the median of some values, with the least and the greatest as its interval."""
    own = sorted(values)
    if not own:
        raise LookupError("no values")
    low, high = (format(value, form) for value in (own[0], own[-1]))
    return Number(format(statistics.median(own), form), f"{low} to {high}", runs_of(of))


def range_of(values: Iterable[float], form: str, of: Iterable[dict[str, Any]]) -> Number:
    """Return the range of some values as one number, without an interval."""
    own = sorted(values)
    if not own:
        raise LookupError("no values")
    low, high = (format(value, form) for value in (own[0], own[-1]))
    return Number(low if low == high else f"{low} to {high}", "", runs_of(of))


def single(
    value: float | list[float], form: str, record: dict[str, Any], scale: float = 1.0
) -> Number:
    """Return a number of one record; ``[least, median, greatest]`` has an interval.

    ``[mean, deviation]`` has the interval of one deviation to both sides.
    """
    runs = frozenset([record["run"]])
    if not isinstance(value, list):
        return Number(format(scale * value, form), "", runs)
    if len(value) == 2:
        mean, wide = (scale * one for one in value)
        ends = [format(mean - wide, form), format(mean + wide, form)]
        return Number(format(mean, form), " to ".join(ends), runs)
    low, mid, high = (format(scale * one, form) for one in value)
    return Number(mid, f"{low} to {high}", runs)


def cell(part: str, row: Mapping[str, Any], column: str, form: str, scale: float = 1.0) -> Figure:
    """Return what finds a cell of a table (`records.tabled`): by part, row and column."""

    def find(records: Records) -> Number:
        record = records.only(part=part)
        return single(look_up(record, row, column), form, record, scale)

    return find


def look_up(record: dict[str, Any], row: Mapping[str, Any], column: str) -> Any:
    """Return the cell of a table in the row with these values, by the names of the columns."""
    head = record["head"]
    if missing := {column, *row} - set(head):
        raise LookupError(f"{record['part']} has no column {', '.join(sorted(missing))}")
    places = {name: head.index(name) for name in row}
    for cells in record["rows"]:
        if all(cells[place] == row[name] for name, place in places.items()):
            return cells[head.index(column)]
    raise LookupError(f"{record['part']} has no row with {dict(row)}")


def column_of(record: dict[str, Any], name: str) -> list[Any]:
    """Return a column of a table."""
    if name not in record["head"]:
        raise LookupError(f"{record['part']} has no column {name}")
    place = record["head"].index(name)
    return [cells[place] for cells in record["rows"]]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="name", help=f"of {', '.join(names())}; all")
    args = parser.parse_args()
    if unknown := sorted(set(args.names) - set(names())):
        parser.error(f"there is no page of {', '.join(unknown)}")
    REPORTS.mkdir(parents=True, exist_ok=True)
    for name in args.names or names():
        (REPORTS / f"{stem(name)}.md").write_text(show(name, stored(name)))


if __name__ == "__main__":
    main()
