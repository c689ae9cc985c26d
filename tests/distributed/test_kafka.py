"""A Kafka topic is learned as files with its messages are; the broker is librdkafka's own."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from distributed import Client

from dmondrian import DataError, ParameterError
from dmondrian.data import Position
from dmondrian.distributed import KafkaTopic, train
from tests.distributed.conftest import digests, forest

confluent_kafka = pytest.importorskip("confluent_kafka")
SCHEMA = pa.schema({"x": pa.float64(), "k": pa.int64(), "y": pa.string()})


@pytest.fixture(scope="module")
def broker() -> Iterator[tuple[Any, dict[str, str]]]:
    """A producer, in whose process a broker runs, and how a consumer finds that."""
    config = {"bootstrap.servers": "127.0.0.1:1", "test.mock.num.brokers": 1, "log_level": 0}
    producer = confluent_kafka.Producer(config)
    brokers = producer.list_topics(timeout=30.0).brokers.values()
    yield producer, {"bootstrap.servers": ",".join(f"{b.host}:{b.port}" for b in brokers)}
    producer.flush(30.0)


def message(i: int) -> dict[str, Any]:
    return {"x": i * 7 % 100 / 100, "k": i % 3, "y": "ab"[i * 7 % 100 > 50], "other": i}


def send(producer: Any, topic: str, numbers: range, partitions: int = 2) -> None:
    for i in numbers:
        producer.produce(topic, json.dumps(message(i)).encode(), partition=i % partitions)
    assert producer.flush(30.0) == 0


class Recorded:
    """A topic, with a copy of the rows that came."""

    def __init__(self, topic: KafkaTopic) -> None:
        self.topic = topic
        self.rows: list[pa.Table] = []
        self.asked: list[Position] = []

    def __call__(self, position: Position) -> Iterator[Any]:
        self.asked.append(position)
        for item in self.topic(position):
            if item is not None:
                self.rows.append(item[2])
            yield item


def test_a_topic_is_learned_once_over_restarts(
    broker: tuple[Any, dict[str, str]], client: Client, tmp_path: Path
) -> None:
    producer, config = broker
    source = Recorded(KafkaTopic("rows", config, schema=SCHEMA, idle=0.2, batch_rows=70))
    options: dict[str, Any] = {"target": "y", "client": client}
    (tmp_path / "files").mkdir()
    for number, numbers in enumerate((range(300), range(300, 500))):
        send(producer, "rows", numbers)
        run = train(forest(), source, run=tmp_path / "run", **options)
        assert run.plan.n_rows == numbers.stop
        rows = pa.concat_tables(source.rows)
        pq.write_table(rows, tmp_path / f"files/{number}.parquet")
        source.rows.clear()
        by_files = train(forest(), tmp_path / "files", run=tmp_path / "by_files", **options)
        assert digests(run) == digests(by_files)
    assert source.asked == [Position(), Position(300, {0: 150, 1: 150})]


def learned_rows(run: Path) -> int:
    return max((int(path.stem) for path in (run / "manifests").glob("*.json")), default=0)


def wait_for(rows: int, run: Path, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + 120.0
    while learned_rows(run) < rows:
        assert process.poll() is None
        assert time.monotonic() < until
        time.sleep(0.01)


@pytest.mark.thorough
def test_a_follower_that_is_killed_learns_each_message_once(
    broker: tuple[Any, dict[str, str]], client: Client, tmp_path: Path
) -> None:
    producer, config = broker
    run = tmp_path / "run"
    words = [sys.executable, "-m", "tests.distributed.kafka_follower", config["bootstrap.servers"]]
    send(producer, "kills", range(100), 1)
    for sent, more in ((100, 300), (400, 0)):
        process = subprocess.Popen([*words, str(run)])
        try:
            wait_for(sent, run, process)
            if more:
                send(producer, "kills", range(sent, sent + more), 1)
                wait_for(sent + 1, run, process)  # amid the messages that came
        finally:
            process.kill()
            process.wait()
    (tmp_path / "files").mkdir()
    rows = pa.Table.from_pylist([message(i) for i in range(400)], SCHEMA)
    for number, part in enumerate((rows.slice(0, 100), rows.slice(100))):
        pq.write_table(part, tmp_path / f"files/{number}.parquet")
        by_files = train(forest(), tmp_path / "files", target="y", run=tmp_path / "by_files",
                         client=client)  # fmt: skip
    assert digests(run) == digests(by_files)


def test_what_a_topic_lacks_is_refused(broker: tuple[Any, dict[str, str]]) -> None:
    producer, config = broker
    send(producer, "few", range(10))
    topic = KafkaTopic("few", config, schema=SCHEMA, idle=0.1)
    with pytest.raises(DataError, match=r"partition 1 .* has offsets 0 to 5, .* before 6"):
        next(topic(Position(10, {0: 5, 1: 6})))
    with pytest.raises(ParameterError, match="one of schema"):
        KafkaTopic("few", config)
    wrong = pa.schema({"y": pa.int64()})
    with pytest.raises(DataError, match=r"partition [01] .*, offset 0: .* not of the schema"):
        list(KafkaTopic("few", config, schema=wrong)(Position()))
    one = KafkaTopic("few", config, decode=lambda values: pa.table({"n": [len(values)]}))
    with pytest.raises(DataError, match="a row for each"):
        list(one(Position()))


@pytest.mark.parametrize(
    ("text", "words"), [(b"null", "a JSON object"), (b"[1, 2]", "a JSON object"), (b"{", "no JSON")]
)
def test_a_message_that_is_no_row_is_named(
    broker: tuple[Any, dict[str, str]], text: bytes, words: str
) -> None:
    producer, config = broker
    name = f"wrong{len(text)}"
    for value in (b'{"x": 1}', text):
        producer.produce(name, value, partition=0)
    assert producer.flush(30.0) == 0
    with pytest.raises(DataError, match=rf"partition 0 .*, offset 1: .*{words}"):
        list(KafkaTopic(name, config, schema=SCHEMA)(Position()))
    failing = KafkaTopic(name, config, decode=lambda values: pa.table({"x": [{}["x"]]}))
    with pytest.raises(DataError, match=r"partition 0 .*decode failed .* offset 0 on: KeyError"):
        list(failing(Position()))


@pytest.mark.parametrize(
    "wrong",
    [
        {"idle": -1}, {"idle": 0}, {"idle": float("inf")}, {"batch_rows": 0},
        {"batch_rows": 10**7}, {"schema": {"x": pa.int64()}}, {"config": {}}, {"topic": ""},
    ],
)  # fmt: skip
def test_parameters_of_a_topic_are_checked(wrong: dict[str, Any]) -> None:
    given = {"topic": "rows", "config": {"bootstrap.servers": "127.0.0.1:1"}, "schema": SCHEMA}
    with pytest.raises(ParameterError, match=next(iter(wrong))):
        KafkaTopic(**{**given, **wrong})


def test_an_unknown_name_in_the_config_is_refused() -> None:
    config = {"bootstrap.servers": "127.0.0.1:1", "no.such.name": 1}
    with pytest.raises(ParameterError, match=r"no\.such\.name"):
        next(KafkaTopic("rows", config, schema=SCHEMA)(Position()))
