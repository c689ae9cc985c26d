"""A stranger's path: the README's first screen, pasted into a fresh clone, timed line by line.

Clones this repository's last commit into an empty folder, and runs there the lines of the README's
blocks of commands up to that of the tests, in one shell: an environment of its own, packages from
the index that pip is set to, no kernel compiled yet. Then, as one more line, a file is scored.

    python -m benchmarks.first_screen

Stores the seconds of each line on the clock and of the processors, pip's downloads included, how
busy the machine was, and what the lines wrote.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import tempfile
from pathlib import Path

from benchmarks.pages import Page, cell, publish
from benchmarks.records import RESULTS, Records, show_tables, tabled

ROOT = Path(__file__).parents[1]
SCORE = "dmondrian score runs/adult jobs/data/adult/part-0001-test.parquet scores"


def lines() -> list[str]:
    """Return the commands of the README's first section, those of the tests left out."""
    (section,) = re.findall(
        r"^## See it work\n(.*?)^## ", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE
    )
    blocks = re.findall(r"```bash\n(.*?)```", section, flags=re.DOTALL)
    wanted = [block.splitlines() for block in blocks if "pytest" not in block]
    return [line for block in wanted for line in block]


def timed(commands: list[str], folder: Path) -> tuple[list[list[float]], str]:
    """Run commands in one shell; return the seconds of each, and all that they wrote."""
    reported = "\n".join(f"{{ time {{ {line}; }} 2>&1; }} 2>> ../clock" for line in commands)
    variables = {"DMONDRIAN_CACHE_DIR": str(folder / "cache"), "PIP_QUIET": "1"}
    variables["TIMEFORMAT"] = "%R %U %S"
    environment = {key: os.environ[key] for key in os.environ if not key.startswith("PYTHON")}
    done = subprocess.run(
        ["bash", "-e", "-c", f"cd clone\n{reported}"],
        cwd=folder, env={**environment, **variables}, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(done.stdout)
    clock = [line.split() for line in (folder / "clock").read_text().splitlines()]
    return [[float(real), float(user) + float(system)] for real, user, system in clock], done.stdout


def body(records: Records) -> str:
    """Return Markdown: the table of lines, and what they wrote."""
    tables = show_tables(records.where(part="lines"))
    output = records.only(part="output")
    return f"{tables}\n```\n{output['text']}\n```"


PAGE = Page(
    title="The first screen",
    question="How long do the README's first commands take in a fresh clone, packages and"
    " compilation included?",
    identity=("part",),
    body=body,
    numbers={"all": cell("lines", {"line": "all"}, "seconds on the clock", ".0f")},
    sentences=("All lines together take {all} seconds on the clock.",),
)


def main() -> None:
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    commands, before = [*lines(), SCORE], os.getloadavg()[1]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        subprocess.run(["git", "clone", "-q", str(ROOT), "clone"], cwd=folder, check=True)
        seconds, reported = timed(commands, folder)
        reported = reported.replace(f"{folder}/", "")
    rows = [
        [f"`{line}`", *map(round, spent)] for line, spent in zip(commands, seconds, strict=True)
    ]
    whole = [round(sum(column)) for column in zip(*seconds, strict=True)]
    kept = "\n".join(line for line in reported.splitlines() if not line.startswith("WARNING"))
    busy = f"Load of the machine: {before:.1f} before, {os.getloadavg()[1]:.1f} at the end."
    records = Records(RESULTS / "first_screen.json", PAGE.identity)
    head = ["line", "seconds on the clock", "of processors"]
    records.add(tabled("lines", "", head, [*rows, ["all", *whole]], busy))
    records.add({"part": "output", "text": kept})
    publish("first_screen", records)


if __name__ == "__main__":
    main()
