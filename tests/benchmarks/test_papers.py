"""What `benchmarks/papers.md` names is there: files, tests, and parameters of estimators."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tests.sources import parsed

PROJECT = Path(__file__).parents[2]
PAGE = (PROJECT / "benchmarks" / "papers.md").read_text()
PAPERS = ("M17", "M21", "Z24", "D13", "B16")
CODE = r"`([^`]+)`"
PATH = r"[\w./-]+/[\w./-]*"


def named(page: str) -> list[str]:
    """Return what is named as code, ``::test`` with the file named before it."""
    found: list[str] = []
    for code in re.findall(CODE, page):
        is_short = code.startswith("::")
        found.append(found[-1].partition("::")[0] + code if is_short else code)
    return found


@cache
def functions_of(file: Path) -> set[str]:
    return {node.name for node in parsed(file).body if isinstance(node, ast.FunctionDef)}


def lost_files(page: str) -> list[str]:
    """Return the names of files and of tests that are not there."""
    lost = []
    for name in named(page):
        path, _, test = name.partition("::")
        if not re.fullmatch(PATH, path) and not test:
            continue
        file = PROJECT / path
        if not file.exists() or (test and test not in functions_of(file)):
            lost.append(name)
    return lost


def calls(page: str) -> list[str]:
    return [name for name in named(page) if re.fullmatch(r"[A-Z]\w+\(.*\)", name)]


@cache
def parameters_of(estimator: str) -> dict[str, ast.expr | None]:
    """Return the parameters of an estimator with their types, as its file tells them."""
    for file in sorted((PROJECT / "dmondrian" / "estimators").glob("*.py")):
        for kind in parsed(file).body:
            if isinstance(kind, ast.ClassDef) and kind.name == estimator:
                (make,) = (f for f in ast.walk(kind) if getattr(f, "name", "") == "__init__")
                assert isinstance(make, ast.FunctionDef)
                return {
                    each.arg: each.annotation for each in make.args.args[1:] + make.args.kwonlyargs
                }
    return {}


def is_taken(text: str) -> bool:
    """Say whether an estimator has these parameters; and these words, where its type lists them."""
    call = ast.parse(text, mode="eval").body
    assert isinstance(call, ast.Call)
    assert isinstance(call.func, ast.Name)
    assert not call.args
    types = parameters_of(call.func.id)
    for given in call.keywords:
        kind, value = types.get(str(given.arg)), ast.literal_eval(given.value)
        if kind is None:
            return False
        inside = list(ast.walk(kind))
        words = [n.value for n in inside if isinstance(n, ast.Constant) and n.value is not None]
        is_free = not words or any(isinstance(n, ast.Name) and n.id == "str" for n in inside)
        if isinstance(value, str) and value not in words and not is_free:
            return False
    return bool(types)


def rows(section: str) -> list[list[str]]:
    """Return the cells of a section's table, without its head."""
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line[1:-1].split(" | ")] for line in lines[2:]]


def test_files_and_tests_that_are_named_exist() -> None:
    assert lost_files(PAGE) == []
    assert sum("::" in name for name in named(PAGE)) > 100
    in_code = " ".join(re.findall(CODE, PAGE))
    assert len(re.findall(r"\.py\b", PAGE)) == len(re.findall(r"\.py\b", in_code))


@pytest.mark.parametrize(
    "wrong",
    [
        "`dmondrian/growth/cubes.py`",
        "`tests/laws/test_regrets.py::test_an_empty_cell_forecasts_0_where_the_prior_does`",
        "`tests/laws/test_regret.py::test_an_empty_cell_forecasts_0`",
        "`tests/laws/test_regret.py`, `::test_an_empty_cell_forecasts_0`",
        "`AMFRegressor()`, `::test_an_empty_cell_forecasts_0_where_the_prior_does`",
    ],
)
def test_what_does_not_exist_is_seen(wrong: str) -> None:
    assert len(lost_files(wrong)) == 1


def test_estimators_take_the_parameters_that_are_named() -> None:
    assert len(calls(PAGE)) > 50
    assert [text for text in calls(PAGE) if not is_taken(text)] == []
    for wrong in ("AMFClassifier(alphas=0.5)", 'AMFClassifier(domain="square")', "AMF()"):
        assert not is_taken(wrong)


def test_each_paper_has_a_table_without_gaps() -> None:
    sections = re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:]
    assert [section[:3] for section in sections] == list(PAPERS)
    for section in sections:
        for cells in rows(section):
            assert len(cells) == 4, cells
            assert all(cells), cells
            assert all("`" in cell or cell == "none" for cell in cells[1:3]), cells
