"""Dask's profiler does not run on a worker that holds shards, where it may freeze it."""

from __future__ import annotations

import dask
import pytest
from distributed import Client, LocalCluster

from dmondrian.distributed.worker.sampling_profiler import CAN_FREEZE
from dmondrian.distributed.worker.tasks import ShardHolder


@pytest.mark.parametrize("is_enabled", [True, False])
def test_the_profiler_of_a_worker_is_stopped_where_it_can_freeze_it(is_enabled: bool) -> None:
    with (
        dask.config.set({"distributed.worker.profile.enabled": is_enabled}),
        LocalCluster(1, processes=False, dashboard_address=None) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        (worker,) = cluster.workers.values()
        callback = worker.periodic_callbacks.get("profile")
        assert (callback is not None) == is_enabled
        client.register_plugin(ShardHolder())
        if callback is not None:
            assert callback.is_running() == (not CAN_FREEZE)
        assert ("profile" in worker.periodic_callbacks) == (is_enabled and not CAN_FREEZE)
