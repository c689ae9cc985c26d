"""Answers may come in any order, and a run that goes on asks for nothing it has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dmondrian.distributed import TrainedRun
from dmondrian.distributed.cluster.results import Arrival, Inbox, LostResultError
from dmondrian.distributed.training.coordinator import Coordinator
from tests.distributed.conftest import Fit, digests


@pytest.mark.usefixtures("talkative")
def test_an_answer_lost_after_a_later_one_that_saved_is_asked_for_again(
    fit: Fit, undisturbed: TrainedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    take, held = Inbox.take, []
    seen: list[int] = []

    def lose_unit_2(inbox: Inbox, timeout: float) -> Arrival | None:
        arrival = take(inbox, timeout)
        if arrival is None:
            return None
        track, unit = arrival.about
        if track.shard == 4 and unit == 2 and not held:
            held.append(arrival)
            return take(inbox, timeout)
        if track.shard == 4 and unit == 3 and held and not seen:
            assert arrival.result.saved is not None
            seen.append(unit)
            lost = Arrival(held[0].key, held[0].about, None, LostResultError("lost"))
            again = inbox.take

            def once(timeout: float) -> Arrival | None:
                inbox.take = again  # type: ignore[method-assign]  # for one call
                return lost

            inbox.take = once  # type: ignore[method-assign]  # for one call
        return arrival

    monkeypatch.setattr(Inbox, "take", lose_unit_2)
    run = fit(window=8)
    assert seen == [3]
    assert digests(run) == digests(undisturbed)
    assert run.metrics == undisturbed.metrics


def test_a_run_that_goes_on_asks_for_nothing_that_is_learned(
    fit: Fit, undisturbed: TrainedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = fit()
    for manifest in sorted(Path(run.run_url, "manifests").iterdir())[3:]:
        manifest.unlink()
    step, units = Coordinator._step, []

    def note(self: Coordinator, track: Any, unit: Any, load: Any) -> None:
        units.append(unit.start)
        step(self, track, unit, load)

    monkeypatch.setattr(Coordinator, "_step", note)
    assert digests(fit()) == digests(undisturbed)
    assert sorted(set(units)) == [3000, 4000, 5000]
    assert len(units) == 3 * 6
