"""The notebooks run, have no outputs stored, and are listed in the manual."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

PROJECT = Path(__file__).parents[1]
NOTEBOOKS = sorted((PROJECT / "jobs/notebooks").glob("*.ipynb"))


def test_outputs_are_stripped() -> None:
    assert len(NOTEBOOKS) == 5
    for path in NOTEBOOKS:
        notebook = nbformat.read(path, as_version=4)
        nbformat.validate(notebook)
        assert notebook.cells[0].cell_type == "markdown"
        for cell in notebook.cells:
            if cell.cell_type == "code":
                assert (cell.outputs, cell.execution_count) == ([], None), path.name


def test_the_manual_lists_them() -> None:
    page = (PROJECT / "jobs/manual/notebooks.md").read_text()
    listed = re.findall(r"\(\.\./notebooks/(\w+)\.ipynb\)", page)
    assert sorted(listed) == [path.stem for path in NOTEBOOKS]


# The two others, of a cluster and of drift, take most of the time.
QUICK = ("first_forest", "kernel_and_density", "quantiles_and_intervals")


@pytest.mark.slow
@pytest.mark.parametrize(
    "names",
    [QUICK, pytest.param([path.stem for path in NOTEBOOKS], marks=pytest.mark.thorough)],
    ids=["quick", "all"],
)
def test_they_run(names: Sequence[str], tmp_path: Path) -> None:
    """All of them in one kernel, whose names are forgotten between two: imports are most of it."""
    joint = nbformat.v4.new_notebook()
    for path in (each for each in NOTEBOOKS if each.stem in names):
        cells = nbformat.read(path, as_version=4).cells
        joint.cells += [cell for cell in cells if cell.cell_type == "code"]
        joint.cells.append(nbformat.v4.new_code_cell("%reset -f"))
    # Without a limit of a cell: the first one compiles. `tests/silence.py` ends what hangs.
    client = NotebookClient(joint, timeout=None, kernel_name="python3")
    client.execute(cwd=str(tmp_path))
    shown = [cell.outputs for cell in joint.cells if "Display" in cell.source]
    pictures = [out for outputs in shown for out in outputs if "image/png" in out.get("data", {})]
    assert len(pictures) >= len(names)
