"""Build the environments of peers that are not dmondrian's: onelearn, river and LightGBM.

One virtual environment per peer under a folder of the caller's choice; a folder that already holds
a working environment is left alone. onelearn 0.3.0 pins a numba of 2020 but runs with a recent
one, so it is installed without its dependencies; NumPy 2 breaks it. Its data-set and drawing
modules import at start, hence matplotlib and seaborn. scikit-garden is not built: its
``partial_fit`` needs Python 3.8 and a compiler.

    python -m benchmarks.peers.build <cache folder> [onelearn] [river] [lightgbm]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import venv
from pathlib import Path

# One inner list per call of pip, in order.
RECIPES: dict[str, list[list[str]]] = {
    "onelearn": [
        ["--no-deps", "onelearn==0.3.0"],
        [
            "numpy==1.26.4",
            "numba==0.68.1",
            "scipy<1.17",
            "scikit-learn<1.10",
            "pandas<3",
            "tqdm",
            "matplotlib",
            "seaborn",
        ],
    ],
    "river": [["river==0.26.1"]],
    "lightgbm": [["lightgbm==4.6.0", "scikit-learn<1.8"]],
}
PROOFS = {
    "onelearn": "import onelearn; onelearn.AMFClassifier(n_classes=2)",
    "river": "from river import forest; forest.AMFClassifier()",
    "lightgbm": "import lightgbm; lightgbm.LGBMClassifier()",
}


def build(name: str, folder: Path) -> None:
    """Make one environment and check that its peer imports."""
    place = folder / name
    python = place / "bin" / "python"
    if python.exists() and _works(name, python):
        print(f"{name}: already in {place}")
        return
    venv.create(place, with_pip=True, clear=True)
    for packages in RECIPES[name]:
        subprocess.run([python, "-m", "pip", "install", "--quiet", *packages], check=True)
    if not _works(name, python):
        sys.exit(f"{name}: installed in {place}, but `{PROOFS[name]}` fails there")
    print(f"{name}: built in {place}")


def _works(name: str, python: Path) -> bool:
    proof = subprocess.run([python, "-c", PROOFS[name]], capture_output=True, check=False)
    return proof.returncode == 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", default=list(RECIPES), metavar="NAME")
    args = parser.parse_args()
    for name in args.names:
        if name not in RECIPES:
            parser.error(f"no recipe for {name!r}: choose from {', '.join(RECIPES)}")
        build(name, args.folder.resolve())


if __name__ == "__main__":
    main()
