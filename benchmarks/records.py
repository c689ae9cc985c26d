"""Results as JSON records that a run can be stopped and taken up at, and Markdown tables of them.

A file holds ``{"about": {...}, "records": [...]}``; a record is identified by the keys that the
benchmark names (its `identity`). Promises that a record is on disk once `add` returns, that the
file is replaced in one step, and that ``about`` names all machines that records may be of. The
folder is ``results``, or that of ``$DMONDRIAN_RESULTS``.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

RESULTS_VARIABLE = "DMONDRIAN_RESULTS"
RESULTS = Path(os.environ.get(RESULTS_VARIABLE) or Path(__file__).with_name("results"))
PACKAGES = ("numpy", "numba", "scikit-learn", "pandas", "pyarrow")


class Records:
    """The records of one results file."""

    def __init__(self, path: Path, identity: Sequence[str], fresh: bool = False) -> None:
        self.path = path
        self.identity = tuple(identity)
        is_new = fresh or not path.exists()
        found = {"records": []} if is_new else json.loads(path.read_text())
        self._records = {self.key(record): record for record in found["records"]}
        about = found.get("about", {"machine": machine()})
        self._machines = {about["machine"]["cpu"], *about.get("also", ())}

    def key(self, record: dict[str, Any]) -> str:
        """Return the record's identity as text."""
        return json.dumps([record.get(name) for name in self.identity])

    def __contains__(self, record: dict[str, Any]) -> bool:
        return self.key(record) in self._records

    def __iter__(self):
        return iter(self._records.values())

    def add(self, record: dict[str, Any]) -> None:
        """Put a record in and write the file."""
        self._records[self.key(record)] = record
        self.path.parent.mkdir(parents=True, exist_ok=True)
        about = {"machine": machine(), "packages": packages()}
        if others := sorted(self._machines - {machine()["cpu"]}):
            about["also"] = others  # of which records are that were not measured again
        rows = ",\n".join(json.dumps(record) for record in self._records.values())
        text = f'{{"about": {json.dumps(about)},\n"records": [\n{rows}\n]}}\n'
        unfinished = self.path.with_suffix(".partial")
        unfinished.write_text(text)
        os.replace(unfinished, self.path)


def machine() -> dict[str, Any]:
    """Return what the times were measured on."""
    model = platform.processor()
    cpus = Path("/proc/cpuinfo")
    if cpus.exists():
        lines = (line.split(":") for line in cpus.read_text().splitlines())
        model = next((line[1].strip() for line in lines if "model name" in line[0]), model)
    return {"cpu": model, "cores": os.cpu_count(), "python": platform.python_version()}


def packages() -> dict[str, str]:
    """Versions of what the results depend on."""
    return {name: metadata.version(name) for name in PACKAGES}


def table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return a Markdown table; floats with three decimals, None as a dash."""
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(_cell(value) for value in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.3f}" if isinstance(value, float) else str(value)
