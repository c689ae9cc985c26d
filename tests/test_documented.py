"""Every public parameter is documented, by the name that it has."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterator
from typing import Any

import pytest

import dmondrian
import dmondrian.displays
import dmondrian.distributed
import dmondrian.export
import dmondrian.frames
import dmondrian.mlflow
import dmondrian.report
import dmondrian.river

MODULES = (dmondrian, dmondrian.displays, dmondrian.distributed, dmondrian.export, dmondrian.report)
ALONE = (
    dmondrian.frames.FrameModel,
    dmondrian.mlflow.LiveLog,
    dmondrian.mlflow.log_run,
    dmondrian.river.RiverClassifier,
    dmondrian.river.RiverRegressor,
)
ELSEWHERE = re.compile(r"[Pp]arameters (as|are) (in|of|those)")


def public() -> Iterator[tuple[str, Any]]:
    """Names and things of the public interface, methods of classes too; each once."""
    found = {name: getattr(module, name) for module in MODULES for name in module.__all__}
    found |= {thing.__name__: thing for thing in ALONE}
    for name, thing in found.items():
        yield name, thing
        if not inspect.isclass(thing) or issubclass(thing, Exception):
            continue
        for method in dir(thing):
            own = inspect.getattr_static(thing, method)
            function = inspect.unwrap(getattr(thing, method, lambda: None))
            is_ours = str(getattr(function, "__module__", "")).startswith("dmondrian.")
            is_call = callable(function) and not isinstance(own, property)
            if not method.startswith("_") and is_ours and is_call:
                yield f"{name}.{method}", function


def documented(doc: str, section: str = "Parameters") -> set[str]:
    """Names in a section of a numpydoc string."""
    found: set[str] = set()
    for part in re.findall(section + r"\n-+\n(.*?)(?=\n\w[^\n]*\n-{3,}|\Z)", doc, re.DOTALL):
        for line in part.splitlines():
            if re.match(r"[\w*]", line):
                names = line.partition(" :")[0]
                found |= {name.strip().lstrip("*") for name in names.split(",")}
    return found


def parameters(thing: Any) -> list[str]:
    if inspect.isclass(thing) and issubclass(thing, Exception):
        return []
    names = inspect.signature(thing).parameters
    return [name for name in names if name not in ("self", "cls")]


THINGS = dict(public())


@pytest.mark.parametrize("name", THINGS)
def test_each_parameter_is_documented(name: str) -> None:
    thing = THINGS[name]
    doc = inspect.getdoc(thing) or ""
    assert doc, f"{name} has no description"
    reported = documented(doc, "Attributes" if dataclasses.is_dataclass(thing) else "Parameters")
    if not ELSEWHERE.search(doc):
        missing = [name for name in parameters(thing) if name not in reported]
        assert not missing, f"{name} does not document {missing}"
    unknown = reported - set(parameters(thing))
    assert not unknown, f"{name} documents {sorted(unknown)}, which it does not take"


def test_the_reading_of_docstrings_sees_what_is_there() -> None:
    def example(X: int, *, left: int, right: int, **options: int) -> None:
        """Do.

        Parameters
        ----------
        X : array
            Rows.
        left, right
            Sides.
        **options
            More.

        Returns
        -------
        nothing : at all
        """

    assert documented(inspect.getdoc(example)) == {"X", "left", "right", "options"}
    assert len(THINGS) > 120
