"""A run serves metrics over HTTP while it works, and no longer."""

from __future__ import annotations

import logging
import os
import re
import urllib.request
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from distributed import Client
from prometheus_client.parser import text_string_to_metric_families

from dmondrian import MondrianForestClassifier
from dmondrian.data import Joined
from dmondrian.distributed import Event, Learned, follow
from dmondrian.distributed.cluster.prometheus_metrics import PrometheusMetrics
from dmondrian.errors import MissingPackageError, ParameterError
from tests.distributed.conftest import ADULT, COLUMNS, ROWS, Fit, forest


class Scraper:
    """Scrapes what is served, by the address that is logged."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.INFO, "dmondrian")
        self._caplog = caplog

    @property
    def url(self) -> str:
        return re.findall(r"http://127\.0\.0\.1:\d+/metrics", self._caplog.text)[-1]

    def __call__(self) -> dict[Any, float]:
        with urllib.request.urlopen(self.url, timeout=30) as answer:
            text = answer.read().decode()
        return {
            (one.name, *sorted(one.labels.values())): one.value
            for family in text_string_to_metric_families(text)
            for one in family.samples
        }


@pytest.fixture
def scrape(caplog: pytest.LogCaptureFixture) -> Scraper:
    return Scraper(caplog)


def test_a_run_is_scraped_while_it_works(
    fit: Fit, tmp_path: Path, scrape: Scraper, talkative: None
) -> None:
    held = tmp_path / "held.parquet"
    pq.write_table(pq.read_table(ADULT, columns=COLUMNS).slice(ROWS, 300), held)
    seen: list[dict[Any, float]] = []

    def on_event(event: Event) -> None:
        if event.kind == "held_out":
            seen.append(scrape())

    run = fit(metrics_port=0, validation=held, on_event=on_event)
    assert len(seen) == 3
    last = seen[-1]
    name = "dmondrian_metric"
    assert last[("dmondrian_rows",)] == last[("dmondrian_stream_rows",)] == ROWS
    assert last[("dmondrian_durable_position",)] == ROWS
    assert last[("dmondrian_workers",)] == 2
    assert last[("dmondrian_memory_bytes",)] > 0
    assert last[("dmondrian_rows_per_second",)] > 0
    assert last[name, "log_loss", "so_far"] == run.metrics["log_loss"]
    assert last[name, "accuracy", "window"] == run.metrics["window"]["accuracy"]
    before = run.held_out["checkpoints"][-2]
    assert last[name, "held_out", "log_loss"] == before["log_loss"]
    assert last["dmondrian_events_total", "checkpoint"] == 3
    assert seen[0][("dmondrian_durable_position",)] < ROWS
    with pytest.raises(OSError, match="refused"):
        scrape()


@pytest.mark.parametrize("kind", ["files", "delta", "iceberg"])
def test_following_serves_its_lag(
    kind: str,
    client: Client,
    tmp_path: Path,
    scrape: Scraper,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = pq.read_table(ADULT, columns=COLUMNS)
    data: str | Path = tmp_path / "data"
    if kind == "iceberg":
        pytest.importorskip("pyiceberg")
        from tests.data.test_iceberg_table import new_table

        new_table(tmp_path, monkeypatch)
        data = "iceberg://years/ns.adult"

    def put(number: int) -> None:
        part = table.slice(300 * number, 300)
        if kind == "iceberg":
            from pyiceberg.catalog import load_catalog

            made = load_catalog("years").create_table_if_not_exists("ns.adult", part.schema)
            made.append(part)
            return
        if kind == "delta":
            write_deltalake(data, part, mode="append")
            return
        Path(data).mkdir(exist_ok=True)
        pq.write_table(part, tmp_path / ".part")
        (tmp_path / ".part").rename(tmp_path / f"data/{number}.parquet")

    class StopError(Exception):
        pass

    lags: list[tuple[float | None, dict[Any, float]]] = []
    while_learning: list[float] = []
    alerts: list[Event] = []

    def on_learned(learned: Learned) -> None:
        lags.append((learned.lag, scrape()))
        if len(lags) == 2:
            raise StopError
        put(1)

    def on_event(event: Event) -> None:
        if event.kind == "alert":
            alerts.append(event)
        if event.kind == "checkpoint":
            while_learning.append(scrape()[("dmondrian_lag_seconds",)])

    put(0)
    with pytest.raises(StopError):
        follow(
            forest(), data, target="income", run=tmp_path / "run", client=client,
            interval=0.1, on_learned=on_learned, on_event=on_event, metrics_port=0,
            alerts={"when": "lag > 0.00001"},
        )  # fmt: skip
    assert all(lag is not None and 0.0 < lag < 600.0 for lag, _ in lags)
    assert len(alerts) == 1
    assert [found[("dmondrian_last_lag_seconds",)] for _, found in lags] == [lag for lag, _ in lags]
    assert [found[("dmondrian_rows",)] for _, found in lags] == [300, 600]
    assert [found[("dmondrian_lag_seconds",)] for _, found in lags] == [0.0, 0.0]
    assert len(while_learning) == 2
    assert min(while_learning) > 0.0


def test_what_was_measured_after_training_is_served(
    adult: Path, client: Client, tmp_path: Path, scrape: Scraper
) -> None:
    """The one checkpoint of a run in parts of rows is measured when they are merged."""
    held = tmp_path / "held.parquet"
    pq.write_table(pq.read_table(ADULT, columns=COLUMNS).slice(ROWS, 100), held)
    served: list[tuple[Learned, dict[Any, float]]] = []
    follow(
        MondrianForestClassifier(1, domain="cube", lifetime=2.0, random_state=0),
        adult / "part-0.parquet", target="income", run=tmp_path / "run", client=client,
        validation=held, row_parts=2, once=True, metrics_port=0,
        on_learned=lambda learned: served.append((learned, scrape())),
    )  # fmt: skip
    ((learned, found),) = served
    (measured,) = learned.run.held_out["checkpoints"]
    assert found["dmondrian_metric", "held_out", "log_loss"] == measured["log_loss"]
    assert found[("dmondrian_best_position",)] == measured["position"] == 3000
    assert found[("dmondrian_rows",)] == 3000


def test_following_serves_how_late_labels_come(
    client: Client, tmp_path: Path, scrape: Scraper
) -> None:
    table = pq.read_table(ADULT, columns=COLUMNS).slice(0, 400)
    table = table.append_column("id", pa.array(range(400)))
    rows, labels = tmp_path / "rows", tmp_path / "labels"
    for folder, part in ((rows, table.drop("income")), (labels, table.select(["id", "income"]))):
        folder.mkdir()
        pq.write_table(part, folder / "0.parquet")
    os.utime(rows / "0.parquet", (1e9, 1e9))
    os.utime(labels / "0.parquet", (1e9 + 90, 1e9 + 90))
    served: list[dict[Any, float]] = []
    joined: list[Joined] = []
    follow(
        forest(), rows, target="income", run=tmp_path / "run", client=client, once=True,
        labels={"data": labels, "key": "id", "out": tmp_path / "joined"}, on_joined=joined.append,
        on_learned=lambda _: served.append(scrape()), metrics_port=0,
    )  # fmt: skip
    assert served[0][("dmondrian_label_delay_rows",)] == joined[0].rows_later == 200.5
    assert served[0][("dmondrian_label_delay_seconds",)] == joined[0].seconds_later == 90.0


def test_ports_that_cannot_be_used_are_refused(
    fit: Fit, tmp_path: Path, scrape: Scraper, monkeypatch: pytest.MonkeyPatch
) -> None:
    def again(plan: object) -> None:
        fit("other", metrics_port=int(scrape.url.split(":")[2].split("/")[0]))

    with pytest.raises(ParameterError, match="cannot be served"):
        fit(metrics_port=0, on_plan=again)
    with pytest.raises(ParameterError, match="expected a port"):
        fit(metrics_port=70_000)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingPackageError, match=r"dmondrian\[prometheus\]"):
        fit(metrics_port=0)
    assert not (tmp_path / "run" / "run.json").exists()


def test_a_run_that_has_nothing_new_is_served_as_it_stands(
    fit: Fit, scrape: Scraper, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = fit()
    seen: list[dict[Any, float]] = []
    close = PrometheusMetrics.close

    def scraped(self: PrometheusMetrics) -> None:
        seen.append(scrape())
        close(self)

    monkeypatch.setattr(PrometheusMetrics, "close", scraped)
    fit(metrics_port=0)
    (last,) = seen
    assert last[("dmondrian_rows",)] == last[("dmondrian_durable_position",)] == ROWS
    assert last["dmondrian_metric", "log_loss", "so_far"] == run.metrics["log_loss"]
