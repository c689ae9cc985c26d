"""The map of the package holds: what is in it, who imports whom, and where a name may stand."""

from __future__ import annotations

import ast
import re
import tomllib
from collections import defaultdict
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import dmondrian
from dmondrian._numba.cache import kernel_files
from tests.sources import parsed

ROOT = Path(dmondrian.__file__).parent
PROJECT = Path(__file__).parents[1]
FILES = sorted(ROOT.rglob("*.py"))
# Packages and modules as the docstring names them, from the bottom up: each is a layer.
LAYERS = tuple(
    name
    for line in (dmondrian.__doc__ or "").splitlines()
    if line.startswith("``")
    for name in re.findall(r"``(\w+)``", line)
)
PUBLIC = {"__version__", "load", *dmondrian.__all__}
# Libraries that not everybody may use, and the lowest layer that may.
LIBRARIES = {
    "numba": "_numba",
    "llvmlite": "_numba",
    "obstore": "store",
    "pyarrow": "checkpoint",
    "sklearn": "data",
    "joblib": "estimators",
    "onnx": "export",
    "dask": "distributed",
    "distributed": "distributed",
}
# The one package that imports a library.
ONLY_IN = {"numba": "_numba", "llvmlite": "_numba"}
PRIVATE_IN = "estimators/_sklearn_private.py"
# File names that occur twice: one is the public face of the other.
FACES = {
    "custom_loss": {"estimators", "forest"},
    "density": {"estimators", "uncertainty"},
    "depth": {"displays", "losses"},
    "feature_scales": {"estimators", "tuning"},
    "score": {"cli", "distributed/scoring"},
    "train": {"cli", "distributed/training"},
}
# Where policies and settings of systems are defined.
CHOICES = tuple(
    f"dmondrian.{name}" for name in ("growth", "stats", "losses", "rules", "ensemble.settings")
)
COMPILED = {"allocating", "noinline", "hook", "implements", "inline", "intrinsic", "kernel"}
# Settings of forests that follow the stream, and the packages that are these forests.
FOLLOWING, FOLLOWERS = ("drift", "boosted"), ("drift", "boosting")
# Folders of tests that are about a way to test, or about another folder of the repository.
TECHNIQUES = {"benchmarks", "chaos", "cluster", "contracts", "laws", "reference", "resources"}


def name_of(path: Path) -> str:
    """Dotted name below dmondrian, "__init__" for the package itself."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if len(parts) > 1 and parts[-1] == "__init__" else parts)


MODULES = {name_of(path): path for path in FILES}


def layer_of(module: str) -> int:
    """Layer of a dotted name below dmondrian; the package itself is above all."""
    first = module.split(".")[0]
    if first in ("__init__", "__main__"):
        return len(LAYERS)
    assert first in LAYERS, (
        f"{module} belongs to no layer: name it in the map of dmondrian/__init__.py"
    )
    return LAYERS.index(first)


def imports(path: Path) -> list[str]:
    """Dotted names that a file imports, also within functions and for types alone."""
    found: list[str] = []
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            assert node.module is not None
            found += [f"{node.module}.{alias.name}" for alias in node.names]
    return found


def module_in(imported: str) -> str | None:
    """Module below dmondrian of an imported name; None for another library."""
    library, _, rest = imported.partition(".")
    if library != "dmondrian":
        return None
    if rest == "" or rest in PUBLIC:
        return "estimators"  # who asks the package asks for these
    if rest in MODULES:
        return rest
    return rest.rpartition(".")[0]


def circle(graph: dict[str, set[str]]) -> list[str]:
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_the_map_names_each_package_and_module_once() -> None:
    there = {path.name.removesuffix(".py") for path in ROOT.iterdir()}
    assert sorted(LAYERS) == sorted(there - {"__init__", "__main__", "__pycache__", "py.typed"})
    assert len(LAYERS) <= 34


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_go_down_only(path: Path) -> None:
    name = name_of(path)
    own = layer_of(name)
    for imported in imports(path):
        module = module_in(imported)
        if module is not None:
            assert layer_of(module) <= own, f"{name} imports {imported} from above"
        library = imported.partition(".")[0]
        if library in LIBRARIES:
            assert LAYERS.index(LIBRARIES[library]) <= own, f"{name} imports {library}"
        if library in ONLY_IN:
            assert name.split(".")[0] == ONLY_IN[library], (
                f"{name} imports {library} outside of {ONLY_IN[library]}"
            )


def distinguished(path: Path) -> list[str]:
    """Return where a file distinguishes policies or settings, by class or by an absent part.

    Classes of values that users give as parameters are not among them.
    """
    source = parsed(path)
    own = {
        alias.asname or alias.name
        for node in ast.walk(source)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(CHOICES)
        for alias in node.names
        if alias.name[0].isupper() and alias.name not in PUBLIC
    }
    found = []
    for node in ast.walk(source):
        kinds: list[ast.expr] = []
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in (
            "isinstance",
            "issubclass",
        ):
            kinds = node.args[1:]
        elif isinstance(node, ast.Compare) and any(
            isinstance(side, ast.Call) and getattr(side.func, "id", "") == "type"
            for side in (node.left, *node.comparators)
        ):
            kinds = [node.left, *node.comparators]
        elif isinstance(node, ast.MatchClass):
            kinds = [node.cls]
        names = {n.id for kind in kinds for n in ast.walk(kind) if isinstance(n, ast.Name)}
        found += [f"line {node.lineno}: {name}" for name in sorted(names & own)]  # type: ignore[attr-defined]
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Is | ast.IsNot):
            part, of = getattr(node.left, "attr", ""), getattr(node.left, "value", None)
            # An estimator's own parameter, or a part of an object that has it or not.
            is_own = isinstance(of, ast.Name) and of.id == "self"
            is_own |= path.parent.name in FOLLOWERS
            if part in ("cost", "joint", "fringe") or (part in FOLLOWING and not is_own):
                found.append(f"line {node.lineno}: .{part} is None")
    return found


@pytest.mark.parametrize(
    "path",
    [path for path in FILES if name_of(path) != "__init__"
     and layer_of(name_of(path)) > LAYERS.index("ensemble")],
    ids=lambda path: str(path.relative_to(ROOT)),
)  # fmt: skip
def test_no_policy_or_system_is_distinguished_above_the_ensemble(path: Path) -> None:
    assert distinguished(path) == [], "ask a property of ForestParameters"


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("isinstance(rule, Aggregate)", ["line 2: Aggregate"]),
        ("isinstance(rule, int | Aggregate)", ["line 2: Aggregate"]),
        ("issubclass(kind, (int, Aggregate))", ["line 2: Aggregate"]),
        ("type(rule) is Aggregate", ["line 2: Aggregate"]),
        ("its.cost is not None", ["line 2: .cost is None"]),
        ("forest.parameters.drift is None", ["line 2: .drift is None"]),
        ("its.drift.boosted is None or self.drift is None", ["line 2: .boosted is None"]),
        ("Aggregate(True), isinstance(rule, int)", []),
    ],
)
def test_what_is_distinguished_is_found(tmp_path: Path, line: str, found: list[str]) -> None:
    file = tmp_path / "source.py"
    file.write_text(f"from dmondrian.rules.aggregate import Aggregate\n{line}\n")
    assert distinguished(file) == found


def test_a_folder_has_no_circle_of_imports() -> None:
    folders: defaultdict[str, dict[str, set[str]]] = defaultdict(dict)
    for name, path in MODULES.items():
        for imported in imports(path):
            module = module_in(imported)
            if module is None or name == "__init__":
                continue
            own, other = name.split("."), module.split(".")
            shared = 0
            while own[: shared + 1] == other[: shared + 1] and shared < min(len(own), len(other)):
                shared += 1
            if shared < min(len(own), len(other)):
                graph = folders[".".join(own[:shared])]
                graph.setdefault(own[shared], set()).add(other[shared])
    assert len(folders) > 15
    for folder, graph in folders.items():
        assert circle(graph) == [], f"a circle in dmondrian/{folder.replace('.', '/')}"


def test_a_circle_is_seen() -> None:
    assert set(circle({"a": {"b"}, "b": {"c"}, "c": {"a"}})) == {"a", "b", "c"}
    assert circle({"a": {"b", "c"}, "b": {"c"}}) == []


def test_a_file_name_occurs_once_unless_one_is_the_face_of_the_other() -> None:
    folders: defaultdict[str, set[str]] = defaultdict(set)
    for path in FILES:
        if path.name not in ("__init__.py", "__main__.py"):
            folders[path.stem].add(path.parent.relative_to(ROOT).as_posix())
    assert {name: found for name, found in folders.items() if len(found) > 1} == FACES


def test_private_names_of_scikit_learn_are_imported_in_one_module() -> None:
    for path in FILES:
        for imported in imports(path):
            library, *parts = imported.split(".")
            if library == "sklearn" and path.relative_to(ROOT).as_posix() != PRIVATE_IN:
                private = [part for part in parts if part.startswith("_")]
                assert not private, (
                    f"{path.relative_to(ROOT)} imports {imported} outside of {PRIVATE_IN}"
                )


def test_compiled_code_is_where_the_cache_looks_for_it() -> None:
    known = set(kernel_files())
    found = {
        path
        for path in FILES
        if any(name.startswith("dmondrian._numba.jit.") and name.split(".")[-1] in COMPILED
               for name in imports(path))
    }  # fmt: skip
    assert len(found) > 50
    assert found <= known


def test_types_are_asked_of_all_but_compiled_code() -> None:
    settings = tomllib.loads((PROJECT / "pyproject.toml").read_text())["tool"]["mypy"]
    (exempt,) = (o["module"] for o in settings["overrides"] if "disallow_untyped_defs" in o)
    kernels = {f"dmondrian.{name_of(p)}" for p in FILES if p.stem.endswith("_kernels")}
    folders = {f"dmondrian.{name}.*" for name in ("tree", "stats", "losses", "rules", "growth")}
    assert set(exempt) == kernels | folders


def test_folders_of_tests_mirror_the_package() -> None:
    tests = PROJECT / "tests"
    for path in tests.rglob("test_*.py"):
        folder = path.parent.relative_to(tests)
        is_package = (ROOT / folder / "__init__.py").exists()
        assert is_package or folder.parts[0] in TECHNIQUES, f"{path.relative_to(PROJECT)}"


def test_each_package_with_code_has_tests_of_its_own() -> None:
    for path in ROOT.rglob("__init__.py"):
        folder = path.parent.relative_to(ROOT)
        has_code = any(file.name != "__init__.py" for file in path.parent.glob("*.py"))
        has_tests = any((PROJECT / "tests" / folder).glob("test_*.py"))
        assert has_tests or not has_code, f"tests/{folder.as_posix()} has no test file"


def test_no_test_stops_the_clock_of_all_threads() -> None:
    """The reason is at `set_clock` of tests/conftest.py."""
    patched = re.compile(r"""time, "monotonic"|"time\.monotonic"|time\.monotonic = """)
    found = [path for path in (PROJECT / "tests").rglob("*.py") if patched.search(path.read_text())]
    assert found == [Path(__file__)]  # whose pattern it is


def test_what_contributors_are_pointed_to_is_there() -> None:
    page = (PROJECT / "CONTRIBUTING.md").read_text()
    paths = re.findall(r"`((?:dmondrian|tests|benchmarks|\.ci)/[\w./]+)`", page)
    assert len(paths) > 30
    assert [path for path in paths if not (PROJECT / path).exists()] == []
