"""The place of chaos: worker processes, and a bucket behind a proxy with the data in it.

Relies on moto's S3 server and boto3. Promises that the workers inherit credentials for that
bucket alone, and that nothing of it is left when the block ends.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from dmondrian.store import open_store
from tests.chaos import harness
from tests.chaos.schedule import Fault
from tests.chaos.workers import Workers, workers
from tests.store.proxy import Proxy, proxy
from tests.store.servers import BUCKET, moto_server, set_credentials


@dataclass
class Place:
    """Workers, and the proxy between them and the bucket."""

    workers: Workers
    proxy: Proxy
    options: dict[str, Any]  # of every job
    limit: float  # seconds for one run

    def run(self, name: str, faults: list[Fault]) -> harness.Outcome:
        """Train through faults, in a folder of that name."""
        url = f"s3://{BUCKET}"
        return harness.run(
            self.workers, self.proxy, faults, f"{url}/data", f"{url}/{name}", self.options,
            self.limit,
        )  # fmt: skip


@contextmanager
def place(
    files: Mapping[str, bytes], options: dict[str, Any], limit: float, n_workers: int = 3
) -> Iterator[Place]:
    """Set the place up, with Parquet files by name."""
    import boto3

    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # moto's line for every request
    with pytest.MonkeyPatch.context() as patch, moto_server() as end, proxy(end) as front:
        set_credentials(patch, front.endpoint)  # before the workers start: they inherit it
        boto3.client("s3", endpoint_url=front.endpoint).create_bucket(Bucket=BUCKET)
        store = open_store(f"s3://{BUCKET}/data")
        for name, content in files.items():
            store.put(name, content)
        with workers(n_workers) as found:
            yield Place(found, front, options, limit)
