"""Structure of the package: counts of a small package that was made by hand, and of this one."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import structure
from dmondrian._numba.mechanisms import MECHANISMS

ROOT = Path(__file__).parents[2]
MAP = '''"""A package.

``low``
    The lowest.
``middle``, ``high``
    What stands on it.
"""
'''
# The lower part imports the upper one for types alone, and within a function.
SMALL = {
    "__init__.py": MAP,
    "low.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from small import high\n",
    "middle/__init__.py": "from small.middle.a import work\n",
    "middle/a.py": "import small.middle.b\nimport numpy\n\ndef work():\n    import small.high\n",
    "middle/b.py": "from small.low import nothing\n",
    "high.py": "from small.middle import work\n",
}


@pytest.fixture
def small(tmp_path: Path) -> Path:
    for name, text in SMALL.items():
        path = tmp_path / "small" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "small"


def test_imports_of_a_small_package(small: Path) -> None:
    loaded, everywhere = structure.graph_of(small, False), structure.graph_of(small, True)
    assert loaded == {
        "low": set(),
        "middle": {"middle.a"},
        "middle.a": {"middle.b"},
        "middle.b": {"low"},
        "high": {"middle"},
    }
    assert {name for name in loaded if loaded[name] != everywhere[name]} == {"low", "middle.a"}
    assert structure.longest_chain(loaded) == 5
    assert structure.circles_of(loaded) == set()
    assert structure.circles_of(everywhere) == {frozenset(everywhere)}
    assert structure.longest_chain(everywhere) == 1
    parts = structure.parts_of(everywhere)
    assert parts == {"low": {"high"}, "middle": {"low", "high"}, "high": {"middle"}}
    assert structure.map_of(small) == ["low", "middle", "high"]
    assert set(structure.upward(parts, ["low", "middle", "high"])) == {
        ("low", "high"),
        ("middle", "high"),
    }
    assert structure.upward(parts, ["low"]) == []  # the others are on no map


def test_the_files_of_each_mechanism_and_of_the_machinery_are_there() -> None:
    named = [name for files in structure.MECHANISMS.values() for name in files]
    named += [
        f"dmondrian/{name}" for _, since in structure.MACHINERY.values() for name in since.split()
    ]
    assert [name for name in named if not (ROOT / name).exists()] == []
    assert set(structure.MECHANISMS) <= {*MECHANISMS, "passes"}


def test_files_that_a_row_passes() -> None:
    found = structure.walks_of(ROOT)
    assert set(found) == {*structure.STEPS, "all"}
    assert all(found["all"] >= found[step] > 5 for step in structure.STEPS)
