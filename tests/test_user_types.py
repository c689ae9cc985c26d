"""Type checkers see that the package has types; `.ci/run` checks a user's program."""

from __future__ import annotations

import tomllib
from importlib.resources import files
from pathlib import Path

PROJECT = Path(__file__).parents[1]


def test_type_checkers_find_types_and_a_program() -> None:
    assert files("dmondrian").joinpath("py.typed").is_file()
    settings = tomllib.loads((PROJECT / "pyproject.toml").read_text())["tool"]
    program = "tests/user_types.py"
    assert program in settings["mypy"]["files"]
    assert settings["mypy"]["strict"]
    assert settings["basedpyright"]["include"] == [program]
    assert (PROJECT / program).is_file()
    assert "\n(mypy && basedpyright) >" in (PROJECT / ".ci/run").read_text()
