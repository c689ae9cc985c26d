"""References in docstrings, comments and documents name things that exist."""

from __future__ import annotations

import ast
import functools
import importlib
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import dmondrian
from tests.sources import parsed

ROOT = Path(dmondrian.__file__).parent
PROJECT = Path(__file__).parents[1]
FILES = sorted(ROOT.rglob("*.py"))
DOCUMENTS = sorted(
    path
    for folder in (".", "benchmarks", "cluster", "jobs")
    for path in (PROJECT / folder).glob("*.md")
    if path.name != "CHANGELOG.md"  # which names files as they were then
)
ROLE = re.compile(r":(?:func|class|mod|meth|attr|data|exc|obj):`~?([\w.]+)`")
# Names of this package in backticks without a role: `dmondrian.data.Plan`, `Forest.update`.
PLAIN = re.compile(r"(?<!:)`{1,2}((?:dmondrian(?:\.\w+)+)|(?:[A-Z]\w*\.\w+))(?:\(\))?`{1,2}")
WORD = re.compile(r"(?<!:)`{1,2}([A-Za-z_]\w*)(?:\(\))?`{1,2}")
# Numbered files are those of run folders.
FILE = re.compile(r"(?<![\w./<>*-])((?:[\w-]+/)+(?!\d)[\w-]+\.(?:py|md|json|toml|txt))\b(?![\w*<])")
# Folders that a path in a docstring may be relative to.
BASES = (PROJECT, ROOT, ROOT / "distributed")
# Keys of file metadata and tags, which look like names of this package.
KEYS = re.compile(r"dmondrian\.(?:score|run|plan)\b")
# Names in backticks that are of other programs or of files.
OTHERS = {
    "BayesianRidge", "ExplainerError", "GaussianProcessRegressor", "LinearSVC",  # classes
    "NUMBA_CPU_FEATURES", "NUMBA_CPU_NAME", "model_uri", "nohup",  # of Numba, MLflow, Unix
    "_SUCCESS", "_committed_ID", "_started_ID",  # files of Spark and Databricks
    "s1",  # a class of CSS
}  # fmt: skip


def module_of(path: Path) -> ModuleType:
    """Import the module of a file."""
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return importlib.import_module(".".join(parts[:-1] if parts[-1] == "__init__" else parts))


def found(target: str) -> bool:
    """Whether a dotted name can be imported."""
    parts = target.split(".")
    for n in range(len(parts), 0, -1):
        try:
            thing: Any = importlib.import_module(".".join(parts[:n]))
        except ImportError:
            continue
        return has(thing, parts[n:])
    return False


def has(thing: Any, parts: list[str]) -> bool:
    """Whether attributes of attributes exist; those of instances by their annotation."""
    for part in parts:
        if isinstance(thing, type) and not hasattr(thing, part):
            return part in own_names(thing)
        if not hasattr(thing, part):
            return False
        thing = getattr(thing, part)
    return True


def own_names(kind: type) -> set[str]:
    """Names of attributes that instances of a class get: annotated, or set by its methods."""
    names: set[str] = set()
    for base in kind.__mro__:
        names.update(getattr(base, "__annotations__", ()))
        code = [getattr(value, "__code__", None) for value in vars(base).values()]
        names.update(name for one in code if one is not None for name in one.co_names)
    return names


def resolves(target: str, module: ModuleType) -> bool:
    """Whether a reference in a docstring of a module names something."""
    first, *rest = target.split(".")
    kinds = [value for value in vars(module).values() if isinstance(value, type)]
    if hasattr(module, first) and has(getattr(module, first), rest):
        return True
    if not rest and any(has(kind, [first]) for kind in kinds):
        return True
    return found(target) or any(
        isinstance(value, type) and has(value, rest) for value in CLASSES.get(first, ())
    )


def classes() -> dict[str, list[type]]:
    """All classes of the package by name."""
    by_name: dict[str, list[type]] = {}
    for path in FILES:
        for value in vars(module_of(path)).values():
            if isinstance(value, type) and value.__module__.startswith("dmondrian"):
                by_name.setdefault(value.__name__, []).append(value)
    return by_name


CLASSES = classes()


@functools.cache
def nodes_of(path: Path) -> list[ast.AST]:
    """All nodes of the syntax tree of a file."""
    return list(ast.walk(parsed(path)))


@functools.cache
def tokens_of(path: Path) -> list[tokenize.TokenInfo]:
    """All tokens of a file."""
    return list(tokenize.generate_tokens(io.StringIO(path.read_text()).readline))


def docstrings(path: Path) -> Iterator[str]:
    """Docstrings of a file, those of attributes included."""
    for node in nodes_of(path):
        value = node.value if isinstance(node, ast.Expr) else None
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            yield value.value


def comments(path: Path) -> Iterator[str]:
    """Comments of a file."""
    for token in tokens_of(path):
        if token.type == tokenize.COMMENT:
            yield token.string


@functools.cache
def texts(path: Path) -> str:
    """Docstrings and comments of a file."""
    return "\n".join([*docstrings(path), *comments(path)])


def is_there(name: str) -> bool:
    """Whether a file exists, relative to the project, the package, or its distributed part."""
    return any((base / name).is_file() for base in BASES)


def known_words() -> set[str]:
    """Names and words of strings in the code, docstrings excepted, and names of modules."""
    words = {path.stem for path in FILES} | {path.parent.name for path in FILES}
    for path in FILES:
        own = set(docstrings(path))
        for node in nodes_of(path):
            value = node.value if isinstance(node, ast.Constant) else None
            if isinstance(value, (str, bytes)) and value not in own:
                words.update(re.findall(r"\w+", str(value)))
        for token in tokens_of(path):
            if token.type == tokenize.NAME:
                words.add(token.string)
    return words


@pytest.fixture(scope="module", autouse=True)
def kept_for_this_module() -> Iterator[None]:
    """Let the syntax trees go at the end: they are a million objects."""
    yield
    for kept in (nodes_of, tokens_of, texts):
        kept.cache_clear()


def test_names_with_dots_exist() -> None:
    missing = {
        f"{path.relative_to(PROJECT)}: {name}"
        for path in FILES
        for text in (texts(path),)
        for name in {*ROLE.findall(text), *PLAIN.findall(text)}
        if not KEYS.match(name) and not resolves(name, module_of(path))
    }
    assert not missing


def test_words_in_backticks_are_in_the_code() -> None:
    known = known_words() | OTHERS
    missing = {
        f"{path.relative_to(PROJECT)}: {name}"
        for path in FILES
        for name in WORD.findall(texts(path))
        if name not in known
    }
    assert not missing


def test_files_exist() -> None:
    missing = {
        f"{path.relative_to(PROJECT)}: {name}"
        for path in FILES
        for name in FILE.findall(texts(path))
        if not is_there(name)
    }
    assert not missing


def test_files_in_documents_exist() -> None:
    ours = ("dmondrian/", "tests/", "benchmarks/", "cluster/", "jobs/")
    missing = {
        f"{path.relative_to(PROJECT)}: {name}"
        for path in DOCUMENTS
        for quoted in re.findall(r"`([^`\n]+)`", path.read_text())
        for name in FILE.findall(quoted)
        if name.startswith(ours) and not is_there(name)
    }
    assert not missing


def test_parameters_in_docstrings_are_those_of_the_function() -> None:
    missing = {
        f"{path.relative_to(PROJECT)}:{node.lineno}: {name}"
        for path in FILES
        for node in nodes_of(path)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
        for name in documented(ast.get_docstring(node) or "")
        if name not in arguments(node)
    }
    assert not missing


def documented(docstring: str) -> list[str]:
    """Names in the section of parameters of a docstring."""
    match = re.search(r"^Parameters\n-+\n(.*?)(?=^\w[\w ]*\n-+$|\Z)", docstring, re.S | re.M)
    lines = match[1].splitlines() if match else []
    names = [line.split(" : ")[0] for line in lines if line and not line.startswith(" ")]
    return [name.strip().lstrip("*") for listed in names for name in listed.split(",")]


def arguments(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> set[str]:
    """Names of the arguments of a function, or of a class as it is made."""
    if not isinstance(node, ast.ClassDef):
        given = node.args
        listed = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
        return {one.arg for one in listed if one is not None}
    names: set[str] = set()
    for part in node.body:
        if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
            names.add(part.target.id)
        elif isinstance(part, ast.FunctionDef) and part.name == "__init__":
            names |= arguments(part)
    return names
