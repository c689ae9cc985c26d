"""What does an installation take on disk? Megabytes of each package, without and with extras.

Runs `.ci/footprint`, which builds sdist and wheel, checks them, installs the wheel where no package
may need a compiler, and adds up the files of each package, without bytecode.

    python -m benchmarks.footprint

Needs a package index. Stores the megabytes of sdist and wheel, of the packages of at least one
megabyte, and of all packages with each extra.
"""

from __future__ import annotations

import argparse
import re
import subprocess
from pathlib import Path

from benchmarks.pages import Page, cell, publish
from benchmarks.records import RESULTS, Records, show_tables, tabled

ROOT = Path(__file__).parents[1]
# The extras that people install to work with, not those of the tests.
EXTRAS = ("serve", "prometheus", "onnx", "lake", "kafka", "plots")
TOTAL = "in all, without bytecode"
TRIMMED = (
    "Trimmed: pandas, Matplotlib, ONNX, servers and table formats are extras, Dask comes without "
    "what its own extras add, MLflow as `mlflow-skinny`, the HTTP server has no web framework; the "
    "wheel has the package alone, no tests, data or benchmarks."
)


def megabytes(*extras: str) -> dict[str, float]:
    """Install with extras; return what `.ci/footprint` prints, by the words behind each number."""
    command = [str(ROOT / ".ci/footprint"), *extras]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    found = re.findall(r"^ *([\d.]+) MB  (.+)$", done.stdout, flags=re.MULTILINE)
    return {name: float(size) for size, name in found}


PAGE = Page(
    title="Footprint",
    question="What does an installation take on disk, and which packages take most of it?",
    identity=("part",),
    body=lambda records: f"{TRIMMED}\n\n{show_tables(records)}",
    numbers={
        "all": cell("packages", {"package": TOTAL}, "MB", ".0f"),
        "llvmlite": cell("packages", {"package": "llvmlite"}, "MB", ".0f"),
        "pyarrow": cell("packages", {"package": "pyarrow"}, "MB", ".0f"),
        "scipy": cell("packages", {"package": "scipy"}, "MB", ".0f"),
        "own": cell("packages", {"package": "dmondrian"}, "MB", ".1f"),
    },
    sentences=(
        "An installation without extras takes {all} MB: the compiler of the kernels, llvmlite,"
        " {llvmlite}, pyarrow {pyarrow}, SciPy, which scikit-learn needs, {scipy}.",
        "Of these {own} MB are this package.",
    ),
)


def main() -> None:
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    alone = megabytes()
    built = {name: size for name, size in alone.items() if name.endswith((".whl", ".tar.gz"))}
    packages = {name: size for name, size in alone.items() if name not in built}
    records = Records(RESULTS / "footprint.json", PAGE.identity)
    for part, title, sizes in (
        ("built", "sdist and wheel", built),
        ("packages", "installed, without extras", packages),
    ):
        head = ["file" if part == "built" else "package", "MB"]
        records.add(tabled(part, title, head, [[*one] for one in sizes.items()], digits=1))
    more = [[f"`{extra}`", megabytes(extra)[TOTAL] - alone[TOTAL]] for extra in EXTRAS]
    title = "what an extra adds"
    records.add(tabled("extras", title, ["extra", "MB"], more, digits=1))
    publish("footprint", records)


if __name__ == "__main__":
    main()
