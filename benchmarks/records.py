"""Results as JSON records, each with the machine and the commit that it was measured on.

A file holds ``{"runs": [{...}], "records": [{..., "run": 0}, ...]}``: a run is a machine, versions
of packages, a commit and arguments, and each record names the run that it is of, the newest run
last. A record is identified by the keys that the benchmark names (its `identity`); with the key
``cpu`` among them, results of several machines are kept side by side, else a new result replaces
that of any machine. The commit of a run is the one that was checked out; of results that are older
than this format, the one that brought them in.

Promises that a record is on disk once `add` returns, and that the file is replaced in one step, so
that a stopped run can be continued. The folder is ``results``, or that of ``$DMONDRIAN_RESULTS``;
pages go into ``reports``, or into that same folder.
"""

from __future__ import annotations

import copy
import json
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

RESULTS_VARIABLE = "DMONDRIAN_RESULTS"
OTHER_FOLDER = os.environ.get(RESULTS_VARIABLE)
RESULTS = Path(OTHER_FOLDER or Path(__file__).with_name("results"))
REPORTS = Path(OTHER_FOLDER or Path(__file__).with_name("reports"))
PACKAGES = ("numpy", "numba", "scikit-learn", "pandas", "pyarrow")
MACHINE = "cpu"
UNKNOWN = "unknown"
FOLDERS = ("--data", "--peers", "--out", "--results")


class Records:
    """The records of one results file.

    Parameters
    ----------
    path
        The file; read if it exists.
    identity
        Keys whose values identify a record. ``cpu`` is the machine of its run.
    fresh
        Forget earlier records; with ``cpu`` in the identity only those of this machine.
    """

    def __init__(self, path: Path, identity: Sequence[str], fresh: bool = False) -> None:
        self.path = path
        self.identity = tuple(identity)
        found = json.loads(path.read_text()) if path.exists() else {"runs": [], "records": []}
        self.runs: list[dict[str, Any]] = found["runs"]
        self._records = {self.key(record): record for record in found["records"]}
        if fresh:
            self._records = {
                key: record
                for key, record in self._records.items()
                if MACHINE in self.identity and self.cpu(record) != machine()["cpu"]
            }

    def cpu(self, record: dict[str, Any]) -> str:
        """Return the machine of a record; one without a run is of this machine."""
        name: str = (self.runs[record["run"]] if "run" in record else machine())["cpu"]
        return name

    def key(self, record: dict[str, Any]) -> str:
        """Return the record's identity as text."""
        names = self.identity
        return json.dumps([self.cpu(record) if n == MACHINE else record.get(n) for n in names])

    def __contains__(self, record: dict[str, Any]) -> bool:
        return self.key(record) in self._records

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self._records.values())

    def __len__(self) -> int:
        return len(self._records)

    def add(self, record: dict[str, Any]) -> None:
        """Add a record of this run, or replace the one of its identity, and write the file."""
        run = {**machine(), "packages": packages(), "commit": commit(), "arguments": arguments()}
        if run not in self.runs:
            self.runs.append(run)
        self._records[self.key(record)] = {**record, "run": self.runs.index(run)}
        self.write()

    def write(self) -> None:
        """Write the file in one step; drop the runs that no record is of, here too."""
        used = sorted({record["run"] for record in self})
        self.runs = [self.runs[run] for run in used]
        self._records = {
            key: {**record, "run": used.index(record["run"])}
            for key, record in self._records.items()
        }
        runs, rows = ",\n".join(map(json.dumps, self.runs)), ",\n".join(map(json.dumps, self))
        text = f'{{"runs": [\n{runs}\n],\n"records": [\n{rows}\n]}}\n'
        self.path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = self.path.with_suffix(".partial")
        unfinished.write_text(text)
        os.replace(unfinished, self.path)

    def where(self, **wanted: Any) -> list[dict[str, Any]]:
        """Return the records with these values.

        Raises
        ------
        LookupError
            If there is none.
        """
        found = [r for r in self if all(r.get(key) == value for key, value in wanted.items())]
        if not found:
            raise LookupError(f"{self.path.name} has no record with {wanted}")
        return found

    def only(self, **wanted: Any) -> dict[str, Any]:
        """Return the one record with these values.

        Raises
        ------
        LookupError
            If there is none, or more than one.
        """
        found = self.where(**wanted)
        if len(found) > 1:
            raise LookupError(f"{self.path.name} has {len(found)} records with {wanted}")
        return found[0]

    def machines(self) -> list[str]:
        """Return the machines that records are of, the one of the newest run first."""
        newest = sorted(self, key=lambda record: -record["run"])
        return list(dict.fromkeys(self.cpu(record) for record in newest))

    def of_machine(self, cpu: str) -> Records:
        """Return the records of one machine."""
        found = copy.copy(self)
        found._records = {key: r for key, r in self._records.items() if self.cpu(r) == cpu}
        return found


def machine() -> dict[str, Any]:
    """Return the processor, the number of its cores, and the version of Python."""
    model = platform.processor()
    cpus = Path("/proc/cpuinfo")
    if cpus.exists():
        lines = (line.split(":") for line in cpus.read_text().splitlines())
        model = next((line[1].strip() for line in lines if "model name" in line[0]), model)
    return {"cpu": model, "cores": os.cpu_count(), "python": platform.python_version()}


def packages() -> dict[str, str]:
    """Return the versions of the packages that results depend on."""
    return {name: metadata.version(name) for name in PACKAGES}


def arguments() -> str:
    """Return the arguments of the command, without those that name folders."""
    words, kept = iter(sys.argv[1:]), []
    for word in words:
        if word in FOLDERS:
            next(words, None)
        else:
            kept.append(word)
    return shlex.join(kept)


def commit() -> str:
    """Return the commit that is checked out, with ``+`` where the package differs from it."""
    root = Path(__file__).parents[1]

    def git(*words: str) -> str:
        done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    try:
        return git("rev-parse", "--short=8", "HEAD") + (
            "+" if git("status", "--porcelain", "dmondrian") else ""
        )
    except (OSError, subprocess.CalledProcessError):
        return UNKNOWN


def tabled(
    part: str,
    title: str,
    head: Sequence[str],
    rows: Iterable[Sequence[Any]],
    note: str = "",
    digits: int = 3,
    picture: str | None = None,
) -> dict[str, Any]:
    """Return a record that holds a table of numbers and names, identified by its part.

    Parameters
    ----------
    part
        Identifies the table within its file.
    title, note
        Printed above it.
    head, rows
        Cells are text, numbers or None; ``[mean, deviation]``; ``[least, median, greatest]``.
    digits
        Decimals of floats on the page; the record keeps all.
    picture
        Name of a file beside the page.
    """
    cells = [[_plain(cell) for cell in row] for row in rows]
    record = {"part": part, "title": title, "note": note, "digits": digits}
    return {**record, "picture": picture, "head": list(head), "rows": cells}


def _plain(value: Any) -> Any:
    """Return a value as JSON holds it; what is not a number as None."""
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    value = value.item() if hasattr(value, "item") else value
    return None if isinstance(value, float) and value != value else value


def show_tables(records: Iterable[dict[str, Any]]) -> str:
    """Return Markdown: each table under its title, in the order of the records."""
    texts = []
    for record in records:
        text = f"## {record['title']}\n\n" if record["title"] else ""
        text += f"{record['note']}\n\n" if record["note"] else ""
        text += table(record["head"], record["rows"], record["digits"])
        if record["picture"]:
            text += f"\n![{record['title']}]({record['picture']})\n"
        texts.append(text)
    return "\n".join(texts)


def table(head: Sequence[str], rows: Iterable[Sequence[Any]], digits: int = 3) -> str:
    """Return a Markdown table; floats with some decimals, None as a dash, lists as spreads."""
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(_cell(value, digits) for value in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def _cell(value: Any, digits: int) -> str:
    if value is None:
        return "-"
    if isinstance(value, list | tuple):
        parts = [_cell(one, digits) for one in value]
        return "{} ({})".format(*parts) if len(parts) == 2 else "{1} ({0} to {2})".format(*parts)
    return f"{value:.{digits}f}" if isinstance(value, float) else str(value)
