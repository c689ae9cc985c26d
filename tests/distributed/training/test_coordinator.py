"""Answers may come in any order, and a run that goes on asks for nothing it has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dmondrian.distributed import TrainedRun
from dmondrian.distributed.cluster.results import FinishedTask, LostResultError, ResultQueue
from dmondrian.distributed.training.coordinator import Coordinator
from dmondrian.distributed.training.order_sizes import OrderSizes
from tests.distributed.conftest import OFTEN, Fit, digests


@pytest.mark.usefixtures("talkative")
def test_an_answer_lost_after_a_later_one_that_saved_is_asked_for_again(
    fit: Fit, undisturbed: TrainedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    take, held = ResultQueue.take, []
    seen: list[int] = []
    # A step at a time, so that a unit's answer can be lost and a later one's not.
    monkeypatch.setattr(OrderSizes, "steps", lambda self, *about: 1)

    def lose_unit_2(results: ResultQueue, timeout: float) -> FinishedTask | None:
        finished = take(results, timeout)
        if finished is None:
            return None
        state, unit = finished.context.shard_units[0]
        if state.shard == 4 and unit == 2 and not held:
            held.append(finished)
            return take(results, timeout)
        if state.shard == 4 and unit == 3 and held and not seen:
            assert finished.result.answers[0].saved is not None
            seen.append(unit)
            lost = FinishedTask(held[0].key, held[0].context, None, LostResultError("lost"))
            again = results.take

            def once(timeout: float) -> FinishedTask | None:
                results.take = again  # type: ignore[method-assign]  # for one call
                return lost

            results.take = once  # type: ignore[method-assign]  # for one call
        return finished

    monkeypatch.setattr(ResultQueue, "take", lose_unit_2)
    run = fit(window=8)
    assert seen == [3]
    assert digests(run) == digests(undisturbed)
    assert run.metrics == undisturbed.metrics


def test_a_run_that_goes_on_asks_for_nothing_that_is_learned(
    fit: Fit, undisturbed: TrainedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = fit()
    for manifest in sorted(Path(run.run_url, "manifests").iterdir())[1:]:
        manifest.unlink()
    step, units = Coordinator._order_to_step, []

    def note(self: Coordinator, state: Any, unit: Any, n_threads: int) -> Any:
        units.append(unit.start)
        return step(self, state, unit, n_threads)

    monkeypatch.setattr(Coordinator, "_order_to_step", note)
    assert digests(fit(**OFTEN)) == digests(undisturbed)
    assert sorted(set(units)) == [2000, 3000, 4000, 5000]
    assert len(units) == 4 * 6
