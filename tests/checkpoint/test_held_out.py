"""Held-out metrics of checkpoints: which is the best, and what is kept of those that are gone."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from dmondrian.checkpoint import document, held_out
from dmondrian.checkpoint.held_out import (
    NAME,
    Evaluated,
    HeldOutRecord,
    plain_metrics,
    read_record,
    write_record,
)
from dmondrian.errors import CorruptError
from dmondrian.store import open_store


def record(*losses: float | None, name: str = "log_loss") -> HeldOutRecord:
    """Metrics of checkpoints at 10, 20, ..."""
    rows = [Evaluated(10 * (i + 1), 3, {name: loss}) for i, loss in enumerate(losses)]
    return HeldOutRecord("d", ("a.parquet",), 5, tuple(rows))


@pytest.mark.parametrize(
    ("losses", "name", "best"),
    [
        ((0.3, 0.2, 0.2, 0.4), "rmse", 20),
        ((0.3, None, 0.4), "log_loss", 10),
        ((-3.0, -1.0, -2.0), "log_likelihood", 20),
        ((None,), "log_loss", None),
        ((), "log_loss", None),
    ],
)
def test_the_best_is_the_first_of_the_least_loss(
    losses: tuple[float | None, ...], name: str, best: int | None
) -> None:
    found = record(*losses, name=name).best(range(0, 100, 10))
    assert (None if found is None else found.position) == best


def test_checkpoints_that_are_gone_are_not_the_best_and_not_kept_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(held_out, "MOST", 2)
    known = record(0.1, 0.2, 0.3, 0.4)
    assert known.best([20, 40]) == known.evaluated[1]
    longer = known.with_one(Evaluated(50, 3, {"log_loss": 0.5}), [20, 50])
    assert [one.position for one in longer.evaluated] == [20, 30, 40, 50]
    again = longer.with_one(Evaluated(20, 4, {"log_loss": 0.9}), [20, 50])
    assert (again.evaluated[0].position, again.evaluated[0].n_trees) == (20, 4)
    assert not again.has(20, 3)


def test_it_is_read_as_it_was_written_or_refused(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    assert read_record(store) is None
    write_record(store, record(0.1, None))
    assert read_record(store) == record(0.1, None)
    for evaluated in ([{"position": -1, "trees": 1, "metrics": {}}], [{}], 3, [{"position": 1}]):
        data = {"digest": "d", "files": [], "rows": 1}
        store.put(NAME, document.seal({"data": data, "evaluated": evaluated}))
        with pytest.raises(CorruptError, match="Delete it"):
            read_record(store)


def test_metrics_that_are_no_numbers_are_left_out() -> None:
    given = {"rows": 5, "log_loss": math.inf, "auc": 0.5, "reliability": [{}], "forecast": "x"}
    assert plain_metrics(given) == {"log_loss": None, "auc": 0.5}
