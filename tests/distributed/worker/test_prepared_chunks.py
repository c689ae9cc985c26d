"""A worker prepares each chunk once, however many of its shards learn and forecast the rows."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dmondrian import AMFClassifier, MondrianForestClassifier
from dmondrian.distributed import train
from dmondrian.distributed.worker import tasks
from dmondrian.ensemble import tree_store
from dmondrian.ensemble.rows import prepared_rows
from dmondrian.ensemble.rows.prepared_rows import Preparation, PreparedRows
from tests.distributed.conftest import SETTLED, digests, worker_threads

CASES: dict[str, Any] = {
    # Rounded to units, and forecast just before they are learned.
    "rows": AMFClassifier(12, random_state=7, **SETTLED),
    # Forecast in the same way, by boxes.
    "boxes": AMFClassifier(12, random_state=7, predict_extension="expected", **SETTLED),
    # Not rounded.
    "mondrian": MondrianForestClassifier(12, lifetime=4.0, random_state=7, feature_units=None),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.thorough(but="rows")
def test_a_chunk_is_prepared_once_for_twelve_shards(
    case: str, adult: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: Counter[str] = Counter()

    def count(module: Any, name: str) -> None:
        function = getattr(module, name)

        def counted(*given: Any, **options: Any) -> Any:
            if not any(isinstance(each, np.ndarray) and len(each) == 2 for each in given):
                calls[name] += 1  # these two rows are there to have kernels compiled
            return function(*given, **options)

        monkeypatch.setattr(module, name, counted)

    def prepare(self: Preparation, X: Any) -> PreparedRows:
        if len(X) > 2:
            calls["prepare"] += not isinstance(X, PreparedRows)
        return prepared(self, X)

    def fit(run: str, n_shards: int) -> dict[int, str]:
        calls.clear()
        made = train(
            CASES[case], adult, target="income", run=tmp_path / run, client=client,
            n_shards=n_shards, checkpoint_every="1000 rows",
        )  # fmt: skip
        return digests(made)

    prepared = Preparation.prepare
    with worker_threads(1, threads=2) as (_, client):
        expected = fit("before", 12)
        count(tasks, "read_chunk")
        monkeypatch.setattr(Preparation, "prepare", prepare)
        for name in ("round_rows", "rows_of", "fitted"):
            count(prepared_rows, name)
        count(tree_store, "suited")
        fit("one", 1)
        alone = calls.copy()
        assert fit("twelve", 12) == expected
    assert calls == alone
    assert calls["prepare"] == calls["read_chunk"] == 6
    assert calls["fitted"] == 1  # for trees without rows
    assert calls["rows_of"] == 5  # the other chunks
    assert calls["round_rows"] == (0 if case == "mondrian" else 6)
