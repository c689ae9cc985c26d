"""A listener gets a run's windows, checkpoints and alerts; what it raises ends the call."""

from __future__ import annotations

from pathlib import Path

import pytest

from dmondrian.checkpoint import Run
from dmondrian.checkpoint.raised_alerts import read_alerts
from dmondrian.distributed import Event, TrainedRun
from dmondrian.errors import ParameterError
from tests.distributed.conftest import OFTEN, Fit, digests


def test_windows_and_checkpoints_come_in_order(
    fit: Fit, undisturbed: TrainedRun, talkative: None
) -> None:
    seen: list[Event] = []
    run = fit(on_event=seen.append, **OFTEN)
    assert digests(run) == digests(undisturbed)
    saved = [event.values for event in seen if event.kind == "checkpoint"]
    assert [one["position"] for one in saved] == [1000, 2000, 3000, 4000, 5000, 6000]
    assert [one["is_final"] for one in saved] == [False] * 5 + [True]
    windows = [event.values for event in seen if event.kind == "window"]
    assert [one["row"] for one in windows] == [1500, 2500, 3500, 4500, 5500, 6000]
    newest = undisturbed.metrics["window"]
    for name in ("rows", "log_loss", "accuracy"):
        assert windows[-1]["metrics"][name] == newest[name]


def test_what_a_listener_raises_ends_the_call_and_the_run_goes_on(
    fit: Fit, undisturbed: TrainedRun
) -> None:
    class EnoughError(Exception):
        pass

    def stop(event: Event) -> None:
        if event.kind == "checkpoint" and event.values["position"] == 2000:
            raise EnoughError

    with pytest.raises(EnoughError):
        fit(on_event=stop)
    assert digests(fit()) == digests(undisturbed)


def test_alerts_are_raised_once_and_stored(
    fit: Fit, undisturbed: TrainedRun, talkative: None
) -> None:
    seen: list[Event] = []
    alerts = {"when": ["accuracy_window > 0.5", "log_loss < 0.0"]}
    run = fit(on_event=seen.append, alerts=alerts)
    assert digests(run) == digests(undisturbed)
    raised = [event for event in seen if event.kind == "alert"]
    assert [event.values["when"] for event in raised] == ["accuracy_window > 0.5"]
    known = read_alerts(Run.open(run.run_url).store)
    assert [one["when"] for one in known["on"]] == ["accuracy_window > 0.5"]
    assert known["on"] == known["raised"]


def test_conditions_of_another_task_are_refused_before_the_run_begins(
    fit: Fit, tmp_path: Path
) -> None:
    with pytest.raises(ParameterError, match="rmse"):
        fit(alerts={"when": "rmse > 1"})
    assert not (tmp_path / "run" / "run.json").exists()
