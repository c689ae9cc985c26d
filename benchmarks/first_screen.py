"""A stranger's path: the README's first screen, pasted into a fresh clone, timed line by line.

Clones this repository's last commit into an empty folder, and runs there the lines of the README's
blocks of commands up to that of the tests, in one shell: an environment of its own, packages from
the index that pip is set to, no kernel compiled yet. Then, as one more line, a file is scored.

    python -m benchmarks.first_screen

Writes `results/first_screen.md`: seconds of each line on the clock, pip's downloads included, and
what the lines said.
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


def timed(commands: list[str], folder: Path) -> tuple[list[float], str]:
    """Run commands in one shell; return the seconds of each, and all that they wrote."""
    told = "\n".join(f"{line}\necho $EPOCHREALTIME >> ../clock" for line in commands)
    variables = {"DMONDRIAN_CACHE_DIR": str(folder / "cache"), "PIP_QUIET": "1"}
    environment = {key: os.environ[key] for key in os.environ if not key.startswith("PYTHON")}
    done = subprocess.run(
        ["bash", "-e", "-c", f"cd clone\necho $EPOCHREALTIME > ../clock\n{told}"],
        cwd=folder, env={**environment, **variables}, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(done.stdout)
    clock = [float(moment) for moment in (folder / "clock").read_text().split()]
    return [clock[k + 1] - clock[k] for k in range(len(commands))], done.stdout


def main() -> None:
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    commands = [*lines(), SCORE]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        subprocess.run(["git", "clone", "-q", str(ROOT), "clone"], cwd=folder, check=True)
        seconds, told = timed(commands, folder)
        told = told.replace(f"{folder}/", "")
    rows = [[f"`{line}`", f"{spent:.0f}"] for line, spent in zip(commands, seconds, strict=True)]
    text = table(["line", "seconds"], [*rows, ["all", f"{sum(seconds):.0f}"]])
    kept = "\n".join(line for line in told.splitlines() if not line.startswith("WARNING"))
    about = f"{machine()['cpu']}, {machine()['cores']} cores"
    (RESULTS / "first_screen.md").write_text(f"{text}\n{about}\n\n```\n{kept}\n```\n")
    print(text)


if __name__ == "__main__":
    main()
