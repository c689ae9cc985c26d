"""Build the environments of peers that are not dmondrian's.

One virtual environment per peer under a folder of the caller's choice; a folder that already holds
a working environment is left alone. onelearn 0.3.0 pins a numba of 2020 but runs with a recent
one, so it is installed without its dependencies; NumPy 2 breaks it. Its data-set and drawing
modules import at start, hence matplotlib and seaborn. CapyMOA runs MOA in Java 17, which it
finds on the path or by ``$JAVA_HOME``; where there is no Java it is left out.

scikit-garden is compiled from its repository, with the flags of its own ``setup.py``. The
scikit-learn that it goes with has packages up to Python 3.8, so it needs such an interpreter
(``--python38``), git and a C compiler; where there is no Python 3.8 it is left out.
``--scikit-garden`` takes a clone in place of the repository's address.

    python -m benchmarks.peers.build <cache folder> [NAME ...]
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

CAPYMOA = "capymoa"
GARDEN = "scikit-garden"
GARDEN_REPOSITORY = "https://github.com/scikit-garden/scikit-garden"
# The repository's last commit, of January 2022.
GARDEN_COMMIT = "fbd9a5b5f0c0ebddd44516f28ac14c538354e549"
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
    CAPYMOA: [["capymoa==0.15.1"]],
    "lightgbm": [["lightgbm==4.6.0", "scikit-learn<1.8"]],
    "xgboost": [["xgboost-cpu==3.2.0", "scikit-learn<1.8"]],
    # Its drawing modules are not asked for here, and are larger than the rest.
    "catboost": [["--no-deps", "catboost==1.2.10"], ["numpy<3", "scipy<1.17", "pandas<3", "six"]],
    "ydf": [["ydf==0.16.1", "pandas<3", "pyarrow"]],
    "evidently": [["evidently==0.7.23", "pandas<3", "pyarrow"]],
    GARDEN: [
        ["setuptools==57.5.0", "wheel", "cython==0.29.37", "numpy==1.19.5"],
        ["numpy==1.19.5", "scipy==1.5.4", "scikit-learn==0.22.2.post1", "six"],
        # In this environment: pip would compile against the newest NumPy in one of its own.
        ["--no-build-isolation", "--no-deps", "git+{garden}@" + GARDEN_COMMIT],
    ],
}
PROOFS = {
    "onelearn": "import onelearn; onelearn.AMFClassifier(n_classes=2)",
    "river": "from river import forest; forest.AMFClassifier()",
    CAPYMOA: "from capymoa.classifier import StreamingRandomPatches",
    "lightgbm": "import lightgbm; lightgbm.LGBMClassifier()",
    "xgboost": "import xgboost; xgboost.XGBClassifier()",
    "catboost": "import catboost; catboost.CatBoostClassifier()",
    "ydf": "import ydf",
    "evidently": "from evidently.presets import ClassificationPreset",
    GARDEN: "import skgarden; skgarden.MondrianForestClassifier().partial_fit([[0], [1]], [0, 1])",
}


def build(name: str, place: Path, interpreter: str, garden: str) -> None:
    """Make one environment of the given Python and check that its peer imports."""
    subprocess.run([interpreter, "-m", "venv", "--clear", place], check=True)
    python = place / "bin" / "python"
    for reported in RECIPES[name]:
        packages = [package.replace("{garden}", garden) for package in reported]
        subprocess.run([python, "-m", "pip", "install", "--quiet", *packages], check=True)
    if not _succeeds(python, PROOFS[name]):
        sys.exit(f"{name}: installed in {place}, but `{PROOFS[name]}` fails there")
    print(f"{name}: built in {place}")


def _succeeds(python: str | Path, statement: str) -> bool:
    try:
        done = subprocess.run([python, "-c", statement], capture_output=True, check=False)
    except OSError:
        return False
    return done.returncode == 0


def is_python38(python: str | None) -> bool:
    """Whether it runs, and is Python 3.8: a name on the path may be a shim for nothing."""
    proof = "import sys; sys.exit(sys.version_info[:2] != (3, 8))"
    return python is not None and _succeeds(python, proof)


def java() -> str | None:
    """Return the Java that CapyMOA would run, if any."""
    home = os.environ.get("JAVA_HOME")
    return shutil.which(Path(home, "bin", "java") if home else "java")


def address(garden: str) -> str:
    """Return where pip's git finds the repository: a folder as an address, an address as it is."""
    return Path(garden).resolve().as_uri() if Path(garden).exists() else garden


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(RECIPES)}; all")
    parser.add_argument(
        "--python38",
        default=shutil.which("python3.8"),
        help="interpreter for scikit-garden; python3.8 of the path",
    )
    parser.add_argument(
        "--scikit-garden",
        default=GARDEN_REPOSITORY,
        metavar="CLONE_OR_URL",
        help=f"where scikit-garden is; {GARDEN_REPOSITORY}",
    )
    args = parser.parse_intermixed_args()
    for name in args.names:
        if name not in RECIPES:
            parser.error(f"no recipe for {name!r}: choose from {', '.join(RECIPES)}")
    lacking = []
    for name in args.names or RECIPES:
        place = args.folder.resolve() / name
        if _succeeds(place / "bin" / "python", PROOFS[name]):
            print(f"{name}: already in {place}")
        elif name == CAPYMOA and java() is None:
            lacking.append(f"{name}: left out. It needs Java 17, on the path or by JAVA_HOME")
        elif name != GARDEN:
            build(name, place, sys.executable, "")
        elif is_python38(args.python38):
            build(name, place, args.python38, address(args.scikit_garden))
        else:
            needs = f"{name}: left out. It needs git, a C compiler and Python 3.8"
            named = args.python38 or "python3.8"
            lacking.append(f"{needs}, and {named} is none that runs: name one with --python38")
    if lacking and args.names:
        sys.exit("\n".join(lacking))
    for line in lacking:
        print(line, file=sys.stderr)


if __name__ == "__main__":
    main()
