"""Progress where people look: notebooks, and the names of tasks on Dask's dashboard."""

from __future__ import annotations

import dask.array as da
import nbformat
import numpy as np
import pytest
from nbclient import NotebookClient

from dmondrian.distributed import predict, score
from dmondrian.distributed.progress import Progress, Timeline
from tests.distributed.conftest import Fit, forest

CELL = """
from dask.distributed import Client
from dmondrian import AMFClassifier
from dmondrian.distributed import train
with Client(n_workers=1, processes=False, dashboard_address=None) as client:
    forest = AMFClassifier(n_estimators=1, alpha=0.5, charge_opening=True, feature_scales=None)
    train(forest, {data!r}, target="income", run={run!r}, client=client, progress=True)
"""


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what runs the notebook
def test_a_notebook_shows_one_bar_that_moves(adult, tmp_path) -> None:
    cell = CELL.format(data=str(adult / "part-0.parquet"), run=str(tmp_path / "run"))
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell)])
    NotebookClient(notebook, timeout=200, resources={"metadata": {"path": "."}}).execute()
    shown = [out for out in notebook.cells[0].outputs if out.output_type == "display_data"]
    assert len(shown) == 1
    assert "3,000 of 3,000 rows (100%)" in shown[0].data["text/plain"]
    assert '<progress value="1.0000"' in shown[0].data["text/html"]


def test_tasks_say_what_they_do(fit: Fit, client, adult, tmp_path) -> None:
    run = fit(estimator=forest(n_estimators=1), data=adult / "part-0.parquet")
    score(run.run_url, adult / "part-1.parquet", tmp_path / "scores", client=client)
    X = da.from_array(np.zeros((10, run.to_local().n_features_in_), np.float32), chunks=5)
    client.compute(predict(run.run_url, X), sync=True)
    told = set(client.cluster.scheduler.task_prefixes)
    names = {"dmondrian-restore", "dmondrian-step", "dmondrian-output-file", "dmondrian-predict"}
    assert names <= told


def test_a_timeline_is_thinned_and_ends_now(monkeypatch) -> None:
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    timeline = Timeline()
    for second in range(1000):
        now[0] = float(second)
        timeline.add(Progress(second, 1000, 1.0, 0, None, 2, second // 500))
    told = timeline.told()
    assert len(told) <= Timeline.most + 1
    assert told[0] == [0.0, 0, 2, 0, 0]
    assert told[-1] == [999.0, 999, 2, 1, 0]
    gaps = np.diff([point[0] for point in told[:-1]])
    assert gaps.min() >= 8.0
    assert gaps.max() <= 17.0
