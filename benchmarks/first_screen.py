"""A stranger's path: the README's first screen, pasted into a fresh clone, timed line by line.

Clones this repository's last commit into an empty folder, and runs there the lines of the README's
blocks of commands up to that of the tests, in one shell: an environment of its own, packages from
the index that pip is set to, no kernel compiled yet. Then, as one more line, a file is scored.

    python -m benchmarks.first_screen

Writes `results/first_screen.md`: seconds of each line on the clock and of the processors, pip's
downloads included, how busy the machine was, and what the lines said.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import tempfile
from pathlib import Path

from benchmarks.records import RESULTS, machine, table

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
    told = "\n".join(f"{{ time {{ {line}; }} 2>&1; }} 2>> ../clock" for line in commands)
    variables = {"DMONDRIAN_CACHE_DIR": str(folder / "cache"), "PIP_QUIET": "1"}
    variables["TIMEFORMAT"] = "%R %U %S"
    environment = {key: os.environ[key] for key in os.environ if not key.startswith("PYTHON")}
    done = subprocess.run(
        ["bash", "-e", "-c", f"cd clone\n{told}"],
        cwd=folder, env={**environment, **variables}, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(done.stdout)
    clock = [line.split() for line in (folder / "clock").read_text().splitlines()]
    return [[float(real), float(user) + float(system)] for real, user, system in clock], done.stdout


def main() -> None:
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    commands, before = [*lines(), SCORE], os.getloadavg()[1]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        subprocess.run(["git", "clone", "-q", str(ROOT), "clone"], cwd=folder, check=True)
        seconds, told = timed(commands, folder)
        told = told.replace(f"{folder}/", "")
    rows = [
        [f"`{line}`", *(f"{one:.0f}" for one in spent)]
        for line, spent in zip(commands, seconds, strict=True)
    ]
    whole = [f"{sum(column):.0f}" for column in zip(*seconds, strict=True)]
    text = table(["line", "seconds on the clock", "of processors"], [*rows, ["all", *whole]])
    kept = "\n".join(line for line in told.splitlines() if not line.startswith("WARNING"))
    busy = f"{before:.1f} before it, {os.getloadavg()[1]:.1f} at its end"
    about = f"{machine()['cpu']}, {machine()['cores']} cores; load {busy}."
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / "first_screen.md").write_text(f"{text}\n{about}\n\n```\n{kept}\n```\n")
    print(text)


if __name__ == "__main__":
    main()
