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
_MOST_ROWS = 1_000_000  # what one call of a consumer may return


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
        Seconds to wait for a message where all were read, before there is nothing now; more than 0
        and at most 3600.
    batch_rows : int
        Most rows of a batch, at most 1,000,000.

    Raises
    ------
    MissingPackageError
        `confluent-kafka` is not installed.
    ParameterError
        Neither or both of schema and decode were given, or one of the others cannot be used, such
        as an unknown name in `config`.

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
        _check(topic, config, schema, decode, idle, batch_rows)
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
        from confluent_kafka import KafkaError, KafkaException

        consumer = self._consumer()
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

    def _consumer(self) -> Any:
        from confluent_kafka import Consumer, KafkaException

        try:
            return Consumer(self._config)
        except (KafkaException, TypeError, ValueError) as error:
            raise ParameterError(
                f"config of the Kafka topic {self.topic!r} cannot be used: {error}"
            ) from error

    def _begin(self, consumer: Any, position: Position) -> set[int]:
        """Assign all partitions from a position on; return them."""
        from confluent_kafka import OFFSET_BEGINNING, TopicPartition

        metadata = consumer.list_topics(self.topic, _TIMEOUT).topics[self.topic]
        if metadata.error is not None or not metadata.partitions:
            raise DataError(f"there is no Kafka topic {self.topic!r}: {metadata.error}")
        wanted = []
        for partition in sorted(metadata.partitions):
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
        return set(metadata.partitions)

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
        where = f"partition {partition} of the Kafka topic {self.topic!r}"
        if self._decode is None:
            return self._rows_of_json(values, where, offset)
        try:
            decoded = self._decode(values)
        except Exception as error:  # of a function of the caller
            raise DataError(
                f"{where}: decode failed on the {len(values)} messages from offset {offset} on: "
                f"{type(error).__name__}: {error}"
            ) from error
        rows = pa.Table.from_batches([decoded]) if isinstance(decoded, pa.RecordBatch) else decoded
        if not isinstance(rows, pa.Table) or len(rows) != len(values):
            raise DataError(
                f"{where}, from offset {offset} on: decode should return a row for each of the "
                "messages"
            )
        return rows

    def _rows_of_json(self, values: list[bytes], where: str, offset: int) -> pa.Table:
        messages = []
        for number, value in enumerate(values):
            try:
                message = json.loads(value)
            except ValueError as error:
                raise DataError(f"{where}, offset {offset + number}: no JSON: {error}") from error
            if not isinstance(message, dict):
                raise DataError(
                    f"{where}, offset {offset + number}: expected a JSON object, got {value[:60]!r}"
                )
            messages.append(message)
        try:
            return pa.Table.from_pylist(messages, schema=self._schema)
        except (ValueError, TypeError, AttributeError, OverflowError, pa.ArrowException):
            pass
        for number, message in enumerate(messages):
            try:
                pa.Table.from_pylist([message], schema=self._schema)
            except (ValueError, TypeError, AttributeError, OverflowError, pa.ArrowException) as e:
                raise DataError(
                    f"{where}, offset {offset + number}: values that are not of the schema: {e}"
                ) from e
        raise DataError(f"{where}, from offset {offset} on: messages that are not of the schema")


def _check(topic: Any, config: Any, schema: Any, decode: Any, idle: Any, batch_rows: Any) -> None:
    """Refuse parameters of a topic that cannot be used."""
    if not isinstance(topic, str) or not topic:
        raise ParameterError(f"topic is {topic!r}; expected a name")
    if not isinstance(config, Mapping) or "bootstrap.servers" not in config:
        raise ParameterError('config lacks "bootstrap.servers"; expected a mapping with it')
    if schema is not None and not isinstance(schema, pa.Schema):
        raise ParameterError(
            f"schema is {schema!r}; expected a pyarrow.Schema, such as pa.schema({{...}})"
        )
    if decode is not None and not callable(decode):
        raise ParameterError(f"decode is {decode!r}; expected a function of a list of bytes")
    is_number = isinstance(idle, int | float) and not isinstance(idle, bool)
    if not is_number or not 0.0 < idle <= 3600.0:
        raise ParameterError(f"idle is {idle!r}; expected seconds, more than 0 and at most 3600")
    is_count = isinstance(batch_rows, int) and not isinstance(batch_rows, bool)
    if not is_count or not 1 <= batch_rows <= _MOST_ROWS:
        raise ParameterError(
            f"batch_rows is {batch_rows!r}; expected a number of rows from 1 to {_MOST_ROWS:,}"
        )
