"""Messages of a Kafka topic as batches of rows, which begin where a run has to go on.

Relies on the package `confluent-kafka`, and on brokers that keep messages until they are written to
the run's folder; where they did not, that is refused. Promises that messages of a partition come in
the order of their offsets, and that nothing is committed to the brokers: the position is the run's.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from dmondrian._optional import require
from dmondrian.data.batch_files import Position
from dmondrian.errors import DataError, OutageError, ParameterError

_TIMEOUT = 30.0  # seconds that brokers may take for an answer


class KafkaTopic:
    """A topic as a source of batches, for :func:`dmondrian.distributed.train` and ``follow``.

    The rows of each file that is written are numbered in the order in which they came: within a
    partition by offset; that order is kept, so the forest is one of those rows in that order,
    whatever is sent meanwhile. Partitions that are added to a topic are seen by the next call.

    Parameters
    ----------
    topic : str
    config : mapping
        Of ``confluent_kafka.Consumer``: at least ``bootstrap.servers``. The consumer group is not
        used; messages of aborted transactions are left out, but with another ``isolation.level``.
    schema : pyarrow.Schema or None
        Of messages that are JSON objects: columns and types. What a message lacks is null, and
        other keys are passed over.
    decode : callable or None
        In place of a schema: takes the values of messages, a list of bytes, and returns an Arrow
        record batch or table with a row for each.
    idle : float
        Seconds to wait for a message where all were read, before there is nothing now.
    batch_rows : int
        Most rows of a batch.

    Raises
    ------
    MissingPackageError
        `confluent-kafka` is not installed.
    ParameterError
        Neither or both of schema and decode were given.

    Examples
    --------
    Learn payments as they come::

        schema = pa.schema({"amount": pa.float64(), "shop": pa.string(), "is_fraud": pa.bool_()})
        topic = KafkaTopic("payments", {"bootstrap.servers": "broker:9092"}, schema=schema)
        follow(AMFClassifier(), topic, target="is_fraud", run="payments", classes=[False, True])
    """

    def __init__(
        self,
        topic: str,
        config: Mapping[str, Any],
        *,
        schema: pa.Schema | None = None,
        decode: Callable[[list[bytes]], pa.RecordBatch | pa.Table] | None = None,
        idle: float = 1.0,
        batch_rows: int = 10_000,
    ) -> None:
        require("confluent_kafka", "kafka", f"reading the Kafka topic {topic}")
        if (schema is None) == (decode is None):
            raise ParameterError(
                "expected one of schema, the columns of messages that are JSON objects, and "
                "decode, which makes rows of the bytes of messages"
            )
        self.topic, self.idle, self.batch_rows = topic, idle, batch_rows
        self._schema, self._decode = schema, decode
        self._config = {
            "group.id": "dmondrian",
            "isolation.level": "read_committed",
            **config,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
        }

    def __call__(self, position: Position) -> Iterator[tuple[int, int, pa.Table] | None]:
        """Yield partition, first offset and rows, from a position on; None where all were read.

        Raises
        ------
        DataError
            There is no such topic, messages behind the position are gone, or cannot be decoded.
        OutageError
            The brokers do not answer.
        """
        from confluent_kafka import Consumer, KafkaError, KafkaException

        consumer = Consumer(self._config)
        try:
            partitions = self._begin(consumer, position)
            read: set[int] = set()  # partitions of which all messages were read
            last = time.monotonic()
            while True:
                messages = consumer.consume(self.batch_rows, self.idle)
                values: dict[int, list[tuple[int, bytes]]] = {}
                for message in messages:
                    partition, error = int(message.partition() or 0), message.error()
                    if error is None:
                        read.discard(partition)
                        if (value := message.value()) is not None:  # else a deleted key
                            values.setdefault(partition, []).append(
                                (int(message.offset() or 0), value)
                            )
                    elif error.code() == KafkaError._PARTITION_EOF:
                        read.add(partition)
                    elif not error.retriable():
                        raise DataError(f"the Kafka topic {self.topic!r} cannot be read: {error}")
                for partition in sorted(values):
                    yield from self._batches(partition, values[partition])
                if messages or read >= partitions:
                    last = time.monotonic()
                if not values and read >= partitions:
                    yield None
                elif time.monotonic() - last > _TIMEOUT:
                    raise OutageError(
                        f"no answer of the brokers of the Kafka topic {self.topic!r} for "
                        f"{_TIMEOUT:.0f} seconds; what was written stands: run the same again"
                    )
        except KafkaException as error:
            raise OutageError(f"the Kafka topic {self.topic!r}: {error}") from error
        finally:
            consumer.close()

    def _begin(self, consumer: Any, position: Position) -> set[int]:
        """Assign all partitions from a position on; return them."""
        from confluent_kafka import OFFSET_BEGINNING, TopicPartition

        found = consumer.list_topics(self.topic, _TIMEOUT).topics[self.topic]
        if found.error is not None or not found.partitions:
            raise DataError(f"there is no Kafka topic {self.topic!r}: {found.error}")
        wanted = []
        for partition in sorted(found.partitions):
            offset = position.offsets.get(partition)
            if offset is not None:
                where = TopicPartition(self.topic, partition)
                low, high = consumer.get_watermark_offsets(where, _TIMEOUT)
                if not low <= offset <= high:
                    raise DataError(
                        f"partition {partition} of the Kafka topic {self.topic!r} has offsets "
                        f"{low} to {high}, and the run has the messages before {offset}: those "
                        "between are gone, or it is another topic. Train another run"
                    )
            start = OFFSET_BEGINNING if offset is None else offset
            wanted.append(TopicPartition(self.topic, partition, start))
        consumer.assign(wanted)
        return set(found.partitions)

    def _batches(
        self, partition: int, messages: Sequence[tuple[int, bytes]]
    ) -> Iterator[tuple[int, int, pa.Table]]:
        """Yield the batches of messages, each of consecutive offsets."""
        start = 0
        for at in range(1, len(messages) + 1):
            if at < len(messages) and messages[at][0] == messages[at - 1][0] + 1:
                continue
            part = messages[start:at]
            rows = self._rows([value for _, value in part], partition, part[0][0])
            yield partition, part[0][0], rows
            start = at

    def _rows(self, values: list[bytes], partition: int, offset: int) -> pa.Table:
        where = f"partition {partition} of the Kafka topic {self.topic!r}, from offset {offset} on"
        try:
            if self._decode is None:
                return pa.Table.from_pylist([json.loads(v) for v in values], schema=self._schema)
            found = self._decode(values)
        except (ValueError, TypeError, AttributeError, pa.ArrowException) as error:
            raise DataError(f"{where}: messages that cannot be decoded: {error}") from error
        rows = pa.Table.from_batches([found]) if isinstance(found, pa.RecordBatch) else found
        if not isinstance(rows, pa.Table) or len(rows) != len(values):
            raise DataError(f"{where}: decode should return a row for each of the messages")
        return rows
