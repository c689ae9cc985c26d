"""A run folder of another job: the key that differs, in the words of the job file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from distributed import Client

from dmondrian import AMFClassifier, AMFRegressor, CheckpointError
from dmondrian.distributed import train

N = 240
Fit = Callable[..., Any]


@pytest.fixture(scope="module")
def fit(client: Client, tmp_path_factory: pytest.TempPathFactory) -> Fit:
    """`fit(**changes)` trains the same job in the same folder, but for what is changed."""
    folder = tmp_path_factory.mktemp("job")
    draw = np.random.default_rng(0)
    rows = pd.DataFrame({
        "x": draw.random(N), "whole": draw.integers(0, 9, N),
        "words": np.array(["one two", "two"])[draw.integers(0, 2, N)],
        "kind": np.array(list("abcdefgh"))[draw.integers(0, 8, N)],
        "t": pd.date_range("2024-01-01", periods=N, freq="7h"),
        "note": [f"note {number}" for number in range(N)],
        "bytes": [b"%d" % (number % 3) for number in range(N)],
        "w": np.ones(N), "z": draw.integers(0, 2, N), "y": draw.integers(0, 2, N),
    })  # fmt: skip
    rows.rename_axis("row").sample(frac=1, random_state=0).to_parquet(folder / "rows.parquet")

    def run(path: Path = folder / "rows.parquet", **changes: Any) -> Any:
        estimator = changes.pop("estimator", AMFClassifier(n_estimators=2, random_state=0))
        job = {"target": "y", "run": folder / "run", "client": client, **changes}
        return train(estimator, path, **job)

    run()
    return run


CHANGES: dict[str, dict[str, Any]] = {
    '[forest] algorithm: "amf-classifier" there, "amf-regressor" here': {
        "estimator": AMFRegressor(n_estimators=2, random_state=0)
    },
    "[forest] n_estimators: 2 there, 3 here": {
        "estimator": AMFClassifier(n_estimators=3, random_state=0)
    },
    '[forest] max_nodes: "none" there, 500 here': {
        "estimator": AMFClassifier(n_estimators=2, random_state=0, max_nodes=500)
    },
    '[forest] feature_scales: "auto" there, "none" here': {
        "estimator": AMFClassifier(n_estimators=2, random_state=0, feature_scales=None)
    },
    '[data] target: "y" there, "z" here': {"target": "z"},
    '[data] exclude: [] there, ["whole", "x"] here': {"exclude": ["x", "whole"]},
    '[data] include: [] there, ["row"] here': {"include": ["row"]},
    '[data] categorical: [] there, ["whole"] here': {"categorical": ["whole"]},
    '[data] text: [] there, ["words"] here': {"text": ["words"]},
    '[data] text: [] there, ["note"] here': {"text": ["note"]},
    '[data] categorical: [] there, ["bytes"] here': {"categorical": ["bytes"]},
    '[data] cyclic: [] there, ["t"] here': {"cyclic": ["t"]},
    '[data] weight: nothing there, "w" here': {"weight": "w"},
    "[data] shuffle: false there, true here": {"shuffle": True},
    "[data] max_categories: 8 there, 3 here": {"max_categories": 3},
    '[data] infinite: "error" there, "clip" here': {"infinite": "clip"},
    '[data] null_target: "error" there, "drop" here': {"null_target": "drop"},
    "[data] classes: [0, 1] there, [0, 1, 2] here": {"classes": [0, 1, 2]},
    "[run] progressive: true there, false here": {"progressive": False},
    "[run] first_tree: 0 there, 5 here": {"first_tree": 5},
    "[run] n_shards: 2 there, 1 here": {"n_shards": 1},
}


@pytest.mark.parametrize("line", CHANGES)
def test_the_key_that_differs_is_named(fit: Fit, line: str) -> None:
    with pytest.raises(CheckpointError, match="belongs to another job") as caught:
        fit(**CHANGES[line])
    reported = str(caught.value)
    assert f"\n  {line}\n" in reported
    assert reported.count("\n  ") == 1
    assert ("dmondrian grow" in reported) == ("n_estimators" in line)
