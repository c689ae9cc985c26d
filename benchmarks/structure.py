"""How is the package laid out at a commit? Counts of its imports, its files and its lines.

Of the files of each commit, as git has them, without running them:

* parts: files and folders at the top level of the package;
* imports: pairs of parts, one of which imports the other, in functions and for types too;
* the longest chain of imports, of parts and of modules; a circle counts as one link;
* circles: sets of parts, or of modules, each of which imports all others, if by way of others;
* imports that run up, against the order in which the map in the package's docstring names parts;
* lines of `MACHINERY`, what only saves time or memory, and of the files of each mechanism.

Then, in a process that compiles nothing, the Python files of the package that are entered while a
small block is read from Parquet, learned by a forest, and saved.

    python -m benchmarks.structure
    python -m benchmarks.structure --commits v1 v2
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Iterator
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

from benchmarks.pages import Figure, Number, Page, publish
from benchmarks.records import RESULTS, Records, table

ROOT = Path(__file__).parents[1]
PACKAGE = "dmondrian"
BEFORE = "da1a38b"  # the last commit before the packages were laid out anew

# Files that only save time or memory: by what they are for, with the names before and since.
MACHINERY = {
    "compiling, cache of kernels": (
        "_compilers.py _jit.py _cache.py",
        "_numba/cache.py _numba/jit.py _numba/kernel_cache.py _numba/llvm.py _numba/mechanisms.py"
        " _numba/mode.py _numba/pipeline.py _numba/stock.py _numba/tuned.py _numba/uncounted.py"
        " _numba/__init__.py",
    ),
    "intrinsics": ("_memory.py", "_numba/intrinsics.py"),
    "vector instructions": (
        "core/bounds.py core/rough.py core/lanes.py core/arithmetic.py",
        "tree/simd/box_distance.py tree/simd/box_distance_bound.py tree/simd/lanes.py"
        " tree/simd/exp.py tree/simd/__init__.py",
    ),
    "memory of nodes": ("core/room.py core/table.py", "tree/memory.py tree/address_table.py"),
    "order of nodes": ("core/heavy.py placing.py", ""),
    "paths walked ahead": ("core/ahead.py core/upward.py", "tree/prefetch.py tree/backward.py"),
    "encoding of boxes and rows": (
        "layout.py core/columns.py core/steps.py units.py arranged.py",
        "tree/box_encoding_choice.py tree/box_encoding.py tree/quantization.py"
        " ensemble/settings/feature_units.py ensemble/rows/encoded_rows.py",
    ),
    "one row alone": (
        "single.py estimators/plain.py core/admit.py",
        "estimators/single_row.py estimators/single_row_kernels.py estimators/plain_rows.py",
    ),
    "flat predictor": (
        "frozen.py core/frozen.py",
        "ensemble/predictor/predictor.py ensemble/predictor/predictor_kernels.py"
        " ensemble/predictor/__init__.py rules/large_shares.py",
    ),
}
# Files of code and of tests that would go with a mechanism (`benchmarks.mechanisms`), or mostly.
MECHANISMS = {
    "look_ahead": ("dmondrian/tree/prefetch.py", "tests/tree/test_prefetch.py"),
    "speculation": ("dmondrian/tree/backward.py", "tests/tree/test_backward.py"),
    "simd": ("dmondrian/tree/simd", "tests/tree/simd"),
    "int16": ("dmondrian/tree/quantization.py", "tests/tree/test_quantization.py"),
    "bits": (
        "dmondrian/tree/box_encoding.py", "dmondrian/tree/box_encoding_choice.py",
        "tests/tree/test_box_encoding.py",
    ),
    "single_row": (
        "dmondrian/estimators/single_row.py", "dmondrian/estimators/single_row_kernels.py",
        "tests/estimators/test_single_row.py", "tests/estimators/test_single_row_refused.py",
    ),
    "flat": ("dmondrian/ensemble/predictor", "tests/ensemble/predictor"),
    "passes": (
        "dmondrian/_numba/pipeline.py", "dmondrian/_numba/tuned.py",
        "dmondrian/_numba/kernel_cache.py", "dmondrian/_numba/uncounted.py",
        "tests/_numba/test_reference_counts.py",
    ),
}  # fmt: skip
STEPS = {
    "read": "a block is read from Parquet",
    "update": "a forest learns it",
    "save": "the model is saved",
}
WALK = """
import inspect, json, sys, warnings
warnings.simplefilter("ignore")
import numpy, pyarrow, pyarrow.parquet
import dmondrian
from dmondrian import AMFClassifier
from dmondrian.data import make_plan, read_block
base = dmondrian.__file__.rpartition("/")[0] + "/"
folder = sys.argv[1]
X = numpy.random.default_rng(0).random((140, 4), dtype=numpy.float32)
y = (X[:, 0] > 0.5).astype(int)
columns = {"x%d" % j: X[:, j] for j in range(4)}
pyarrow.parquet.write_table(pyarrow.table({**columns, "y": y}), folder + "/rows.parquet")
plan = make_plan(folder + "/rows.parquet", target="y", task="classification")
given = {"random_state": 0, "feature_scales": None, "n_jobs": 1}
if "calibrate" in AMFClassifier().get_params():
    given["calibrate"] = False  # as it was before there was a choice
model = AMFClassifier(2, **given).fit(X[:120], y[:120])
model.predict(X[:4])
model.save(folder + "/first")  # which imports what it needs
rows, labels = numpy.ascontiguousarray(X[120:]), y[120:].astype(float)
found = {}
def walk(step, work):
    files = set()
    def entered(frame, event, argument):
        code = frame.f_code
        is_function = code.co_flags & inspect.CO_OPTIMIZED  # neither a module nor a class
        if event == "call" and is_function and code.co_filename.startswith(base):
            files.add(code.co_filename[len(base):])
    sys.setprofile(entered)
    work()
    sys.setprofile(None)
    found[step] = sorted(files)
walk("read", lambda: read_block(plan, plan.blocks[0]))
walk("update", lambda: model.forest_.update(rows, labels))
walk("save", lambda: model.save(folder + "/model"))
print(json.dumps(found))
"""

Graph = dict[str, set[str]]


def git(*words: str) -> bytes:
    """Return what git prints of this repository."""
    return subprocess.run(["git", *words], cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout


def modules_of(package: Path) -> dict[str, Path]:
    """Return the files of a package by their dotted names below it, without its own."""
    found = {}
    for path in sorted(package.rglob("*.py")):
        words = path.relative_to(package).with_suffix("").parts
        found[".".join(words[:-1] if words[-1] == "__init__" else words)] = path
    found.pop("", None)
    return found


def imported(node: ast.AST, everywhere: bool) -> Iterator[str]:
    """Dotted names that are imported below a node: as it is loaded alone, or everywhere."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            yield from (f"{child.module}.{alias.name}" for alias in child.names)
        elif everywhere or not is_later(child):
            yield from imported(child, everywhere)


def is_later(node: ast.AST) -> bool:
    """Return whether what is in a statement is not run as the module is loaded."""
    functions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
    of_types = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
    return isinstance(node, functions) or of_types


def graph_of(package: Path, everywhere: bool) -> Graph:
    """Return which modules each module of a package imports."""
    modules = modules_of(package)
    found: Graph = {}
    for name, path in modules.items():
        found[name] = set()
        for full in imported(ast.parse(path.read_text()), everywhere):
            library, _, rest = full.partition(".")
            target = rest if rest in modules else rest.rpartition(".")[0]
            if library == package.name and target in modules and target != name:
                found[name].add(target)
    return found


def parts_of(graph: Graph) -> Graph:
    """Return which parts each part imports: files and folders at the top."""
    found: Graph = {name.partition(".")[0]: set() for name in graph}
    for name, targets in graph.items():
        own = name.partition(".")[0]
        found[own] |= {target.partition(".")[0] for target in targets} - {own}
    return found


def reached(graph: Graph, start: str) -> set[str]:
    """Return what a node imports, if by way of others."""
    found, ahead = set(), [start]
    while ahead:
        new = graph[ahead.pop()] - found
        found |= new
        ahead += new
    return found


def circles_of(graph: Graph) -> set[frozenset[str]]:
    """Return the sets of nodes that reach each other, of at least two nodes."""
    after = {name: reached(graph, name) for name in graph}
    found = {frozenset(o for o in after[n] if n in after[o]) for n in graph if n in after[n]}
    return {circle for circle in found if len(circle) > 1}


def longest_chain(graph: Graph) -> int:
    """Return the nodes of the longest chain of imports; a circle counts as one."""
    one = {name: min(circle) for circle in circles_of(graph) for name in circle}
    merged: Graph = {}
    for name, targets in graph.items():
        own = one.get(name, name)
        merged.setdefault(own, set()).update({one.get(t, t) for t in targets} - {own})
    length: dict[str, int] = {}
    for name in TopologicalSorter(merged).static_order():
        length[name] = 1 + max((length[target] for target in merged[name]), default=0)
    return max(length.values(), default=0)


def map_of(package: Path) -> list[str]:
    """Return the parts in the order of the package's docstring, the lowest first."""
    text = ast.get_docstring(ast.parse((package / "__init__.py").read_text())) or ""
    lines = [line for line in text.splitlines() if line.startswith("``")]
    return [name for line in lines for name in re.findall(r"``(\w+)``", line)]


def upward(parts: Graph, order: list[str]) -> list[tuple[str, str]]:
    """Return the pairs of parts, both on the map, where the lower one imports the upper one."""
    place = {name: i for i, name in enumerate(order)}
    named = [(a, b) for a in parts for b in parts[a] if a in place and b in place]
    return [(a, b) for a, b in named if place[b] > place[a]]


def lines(files: Iterable[Path]) -> int:
    """Return the lines of some files."""
    return sum(len(file.read_text().splitlines()) for file in files)


def figures_of(package: Path) -> dict[str, int]:
    """Return the counts of a package's files and imports, by what is counted."""
    loaded, everywhere = graph_of(package, False), graph_of(package, True)
    parts = parts_of(everywhere)
    order = map_of(package)
    distributed = package / "distributed"
    return {
        "parts: files and folders at the top level": len(parts),
        "parts that the map names": len(set(order) & set(parts)),
        "files and folders in `distributed/`": len(parts_of(modules_graph(distributed))),
        "modules": len(everywhere),
        "lines": lines(modules_of(package).values()),
        "modules with compiled code": sum(map(is_compiled, modules_of(package).values())),
        "imports between parts": sum(map(len, parts.values())),
        "imports that run up the map": len(upward(parts, order)),
        "circles of parts": len(circles_of(parts)),
        "circles of modules": len(circles_of(everywhere)),
        "longest chain of parts, as they are loaded": longest_chain(parts_of(loaded)),
        "longest chain of parts, with functions and types": longest_chain(parts),
        "longest chain of modules, as they are loaded": longest_chain(loaded),
        "longest chain of modules, with functions and types": longest_chain(everywhere),
    }


def modules_graph(package: Path) -> Graph:
    """Return the modules of a package, or of none, without their imports."""
    return {name: set() for name in modules_of(package)}


def is_compiled(path: Path) -> bool:
    """Return whether a file imports the decorators of compiled functions."""
    return (
        re.search(r"^from dmondrian\.(_jit|_numba\.jit) import", path.read_text(), re.M) is not None
    )


def files_at(root: Path, names: Iterable[str]) -> list[Path]:
    """Return the Python files of those names, or in folders of those names, that are there."""
    places = [root / name for name in names]
    return [
        file
        for place in places
        for file in ([place] if place.is_file() else sorted(place.glob("*.py")))
    ]


def machinery_of(package: Path) -> dict[str, int]:
    """Return the lines of the machinery by what they are for; a commit has one of the names."""
    return {
        about: lines(files_at(package, " ".join(names).split()))
        for about, names in MACHINERY.items()
    }


def mechanisms_of(root: Path) -> dict[str, list[int]]:
    """Return lines of code, and of tests, of each mechanism."""
    return {
        name: [
            lines(files_at(root, [file for file in files if file.startswith(folder)]))
            for folder in (f"{PACKAGE}/", "tests/")
        ]
        for name, files in MECHANISMS.items()
    }


def walks_of(root: Path) -> dict[str, int]:
    """Return how many files of the package are entered by each of `STEPS`."""
    own = {k: v for k, v in os.environ.items() if not k.startswith("DMONDRIAN_")}
    own |= {"PYTHONPATH": str(root), "NUMBA_DISABLE_JIT": "1"}
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", WALK, folder]
        done = subprocess.run(command, cwd=folder, env=own, stdout=subprocess.PIPE, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    return {step: len(found[step]) for step in STEPS} | {
        "all": len({file for files in found.values() for file in files})
    }


def measure(commit: str) -> dict[str, Any]:
    """Return the record of a commit."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        with tarfile.open(fileobj=io.BytesIO(git("archive", commit, PACKAGE, "tests"))) as archive:
            archive.extractall(root, filter="data")
        package = root / PACKAGE
        return {
            "of": git("rev-parse", "--short=8", commit).decode().strip(),
            "day": git("show", "-s", "--format=%cs", commit).decode().strip(),
            "figures": figures_of(package),
            "machinery": machinery_of(package),
            "mechanisms": mechanisms_of(root),
            "walks": walks_of(root),
        }


def newest(records: Records) -> dict[str, Any]:
    """Return the record of the latest day.

    Raises
    ------
    LookupError
        If there is none.
    """
    return sorted(records.where(), key=lambda record: record["day"])[-1]


def report(records: Records) -> str:
    """Markdown: a column per commit, the earliest first."""
    found = sorted(records, key=lambda record: record["day"])
    heads = [f"`{record['of']}`, {record['day']}" for record in found]

    def rows(part: str, names: Iterable[str]) -> list[list[Any]]:
        return [[name, *(f"{record[part][name]:,}" for record in found)] for name in names]

    machinery = [
        *rows("machinery", MACHINERY),
        ["all of it", *(f"{sum(record['machinery'].values()):,}" for record in found)],
    ]
    walks = [[about, *(record["walks"][step] for record in found)] for step, about in STEPS.items()]
    walks.append(["all three", *(record["walks"]["all"] for record in found)])
    files = [
        [about, *(" ".join(f"`{name}`" for name in names.split()) or "-" for names in both)]
        for about, both in MACHINERY.items()
    ]
    names = found[0]["figures"] if found else []
    return (
        "## Files and imports\n\n"
        "A chain is counted in parts, or in modules, and a circle in it as one.\n\n"
        + table(["", *heads], rows("figures", names))
        + "\n## Files that a row passes\n\nPython files of the package that are entered while\n\n"
        + table(["", *heads], walks)
        + "\n## Lines of the machinery\n\n"
        "Lines of the files that only save time or memory, by what they are for.\n\n"
        + table(["", *heads], machinery)
        + "\nThese are, in the package's folder:\n\n"
        + table(["", "before", "since"], files)
    )


def figure(part: str, name: str, is_first: bool) -> Figure:
    """Return what finds a count of the earliest, or of the latest commit."""

    def find(records: Records) -> Number:
        record = sorted(records.where(), key=lambda record: record["day"])[0 if is_first else -1]
        counts = record[part]
        value = sum(counts.values()) if name == "sum" else counts[name]
        return Number(f"{value:,}", "", frozenset([record["run"]]))

    return find


COUNTS = {
    "parts": ("figures", "parts: files and folders at the top level"),
    "circles": ("figures", "circles of parts"),
    "up": ("figures", "imports that run up the map"),
    "chain": ("figures", "longest chain of parts, as they are loaded"),
    "modules": ("figures", "longest chain of modules, as they are loaded"),
    "saved": ("walks", "save"),
    "machinery": ("machinery", "sum"),
    "compiled": ("figures", "modules with compiled code"),
    "compiling": ("machinery", "compiling, cache of kernels"),
    "single": ("machinery", "one row alone"),
    "memory": ("machinery", "memory of nodes"),
    "order": ("machinery", "order of nodes"),
}
PAGE = Page(
    title="Structure of the package",
    question="Is the package simpler than before its folders were laid out anew?",
    identity=("of",),
    body=report,
    numbers={
        f"{name}_{side}": figure(part, counted, side == "before")
        for name, (part, counted) in COUNTS.items()
        for side in ("before", "now")
    },
    sentences=(
        "From above it is: {parts_now} parts at the top level for {parts_before}, a longest chain"
        " of {chain_now} of them for {chain_before}, {circles_now} circles of them for"
        " {circles_before}, and {up_now} imports up the map for {up_before}.",
        "Within it is not: the longest chain of modules has {modules_now} for {modules_before}, and"
        " a model is saved by {saved_now} files for {saved_before}.",
        "The machinery was to have less than half of its {machinery_before} lines, which is missed:"
        " it has {machinery_now}, for {compiled_now} modules with compiled code where there were"
        " {compiled_before}; the order of nodes is gone ({order_before} lines) and their memory"
        " takes {memory_now} for {memory_before}, but compiling takes {compiling_now} for"
        " {compiling_before}, with a mode that uses Numba's public interface alone, and one row"
        " alone {single_now} for {single_before}.",
    ),
)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--commits", nargs="+", default=[BEFORE, "HEAD"], help="commits to count")
    args = parser.parse_args()
    records = Records(RESULTS / "structure.json", PAGE.identity, fresh=True)
    for commit in args.commits:
        records.add(measure(commit))
    publish("structure", records)


if __name__ == "__main__":
    main()
