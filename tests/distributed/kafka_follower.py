"""A process that follows a Kafka topic until it is killed; its arguments are servers and run."""

from __future__ import annotations

import sys

from dmondrian.distributed import KafkaTopic, follow
from dmondrian.distributed.cluster.client import connected
from tests.distributed.conftest import forest
from tests.distributed.test_kafka import SCHEMA


def main(servers: str, run: str) -> None:
    topic = KafkaTopic(
        "kills", {"bootstrap.servers": servers}, schema=SCHEMA, idle=0.2, batch_rows=70
    )
    with connected(None, n_workers=1, threads=1, processes=False) as client:
        follow(
            forest(), topic, target="y", run=run, interval=0.1, client=client,
            checkpoint_every="50 rows",
        )  # fmt: skip


if __name__ == "__main__":
    main(*sys.argv[1:])
