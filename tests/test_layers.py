"""Imports go down only: each layer knows those below it, and the libraries it was given."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import dmondrian
from tests.sources import parsed

ROOT = Path(dmondrian.__file__).parent
LAYERS = (
    {
        "_cache",
        "_compilers",
        "_jit",
        "_kernel_cache",
        "_memory",
        "_numba_mode",
        "_stock",
        "_tuned",
        "_uncounted",
        "errors",
        "extras",
        "files",
        "terminal",
        "toml_text",
        "wording",
    },
    {"core"},
    {"growth", "stats", "losses", "rules"},
    {
        "arranged",
        "cost",
        "domain",
        "fixed_point",
        "forecast_lag",
        "fringe",
        "frozen",
        "joint",
        "layout",
        "lifetime",
        "limits",
        "pairwise",
        "parameters",
        "sums",
        "threads",
        "units",
    },
    {"density_risk", "placing", "predicting", "selection", "single"},
    {
        "ensemble",
        "prequential",
        "sampled",
        "calibration",
        "importances",
        "progressive",
        "inference",
        "mixture",
    }
    | {"scales", "warmup", "forest", "state", "merge", "density", "own_loss", "conformal", "kernel"}
    | {"label_mixture", "dispersion"},
    {"checkpoint", "store", "data"},
    {"estimators"},
    {"export", "frames"},
    {"distributed"},
    {"displays", "mlflow", "report"},
    {"cli", "__init__"},
)
# Libraries that not everybody may use, and the lowest layer that may.
LIBRARIES = {
    "pyarrow": 6,
    "obstore": 6,
    "sklearn": 7,
    "joblib": 7,
    "onnx": 8,
    "dask": 9,
    "distributed": 9,
}
FILES = sorted(ROOT.rglob("*.py"))


def layer_of(module: str) -> int:
    """Layer of a dotted name below dmondrian."""
    first = module.split(".")[0]
    found = [number for number, names in enumerate(LAYERS) if first in names]
    assert found, f"{module} belongs to no layer: give it one"
    return found[0]


def imports(path: Path) -> list[str]:
    """Dotted names that a file imports, also within functions."""
    found: list[str] = []
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports by a relative name"
            assert node.module is not None
            found += [f"{node.module}.{alias.name}" for alias in node.names]
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_go_down_only(path: Path) -> None:
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    own = layer_of(name)
    for imported in imports(path):
        library, _, rest = imported.partition(".")
        if library == "dmondrian":
            public = {"__version__", "load", *dmondrian.__all__}
            below = layer_of("estimators" if rest in public else rest)
            assert below <= own, f"{name} imports {imported} from above"
        assert LIBRARIES.get(library, 0) <= own, f"{name} imports {library}"


def test_the_core_knows_no_policy() -> None:
    for path in (ROOT / "core").glob("*.py"):
        for imported in imports(path):
            assert not imported.startswith(tuple(f"dmondrian.{name}" for name in LAYERS[2])), (
                f"{path.name} imports {imported}"
            )
