"""Fixtures of the store tests: one S3 server for all of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.store.servers import BUCKET, moto_server, set_credentials


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    with moto_server() as endpoint:
        yield endpoint


@pytest.fixture
def s3_url(
    s3_endpoint: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> str:
    """A prefix of its own in a bucket that exists; credentials are in the environment."""
    import boto3

    set_credentials(monkeypatch, s3_endpoint)
    boto3.client("s3", endpoint_url=s3_endpoint).create_bucket(Bucket=BUCKET)
    return f"s3://{BUCKET}/{abs(hash(request.node.nodeid)):x}"
