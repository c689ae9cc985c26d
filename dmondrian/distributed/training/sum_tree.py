"""Bundles of many workers that are answered as one: their replies are joined on the workers.

Relies on Dask for the tasks that join: one runs on a worker that holds some of the replies, and if
that is lost, again elsewhere from the same replies. Promises that a worker is sent its bundles in
the order in which they were made.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from dask.highlevelgraph import HighLevelGraph, MaterializedLayer
from distributed import Client, Future

from dmondrian._numba.mechanisms import uses
from dmondrian.distributed.training.shard_state import SentBundle
from dmondrian.distributed.worker.add_forecasts import FAN_IN, join_replies
from dmondrian.distributed.worker.messages import Bundle, Order, Reply

LEAST = 8
"""Workers from which on their replies are joined."""

_FIRST = 1  # priority of what joins, above that of all steps


class Outgoing(NamedTuple):
    """A bundle that is to be sent."""

    sent: SentBundle  # the coordinator's record of it
    task: Callable[[Any], Reply]
    bundle: Bundle[Order]
    rank: int  # lower ones are carried out first


def are_joined(n_workers: int) -> bool:
    """Return whether the replies of ``n_workers`` workers are joined."""
    return n_workers >= LEAST and uses("sum_tree")


def in_groups(outgoing: Sequence[Outgoing]) -> list[list[Outgoing]]:
    """Return bundles that are sent at the same time, by those that are answered as one."""
    places: Counter[str] = Counter()  # of each worker's bundles
    groups: dict[tuple[int, bool], list[Outgoing]] = {}
    alone: list[tuple[int, list[Outgoing]]] = []
    for item in outgoing:
        address = item.sent.address
        place, places[address] = places[address], places[address] + 1
        if item.sent.is_apart:
            alone.append((place, [item]))
        else:
            groups.setdefault((place, item.sent.saves), []).append(item)
    for (place, _), group in groups.items():
        # Neighbours are joined: of partial sums of numbers fewer are left.
        group.sort(key=lambda item: item.bundle.orders[0].shard)
        alone += [(place, group)] if are_joined(len(group)) else [(place, [item]) for item in group]
    return [group for _, group in sorted(alone, key=lambda pair: pair[0])]


def submit(client: Client, some: Sequence[Outgoing]) -> Future:
    """Send bundles; return the future of the reply to all of them."""
    if len(some) > 1:
        return _submit_joined(client, some)
    (only,) = some
    return client.submit(
        only.task,
        only.bundle,
        key=only.sent.key,
        # Pinned, as an idle worker would steal it. If its worker is lost it waits until the
        # next poll of the workers cancels it.
        workers=[only.bundle.address],
        allow_other_workers=False,
        pure=False,
        retries=0,
        priority=-only.rank,
    )


def _submit_joined(client: Client, some: Sequence[Outgoing]) -> Future:
    """Send bundles in one graph, with tasks that join the replies to `FAN_IN` at a time."""
    steps = {item.sent.key: (item.task, replace(item.bundle, adds=True)) for item in some}
    places = {item.sent.key: [item.bundle.address] for item in some}  # pinned, as above
    ranks = {item.sent.key: -item.rank for item in some}
    joins: dict[str, tuple[Any, list[str]]] = {}
    level = list(steps)
    while len(level) > 1:
        parts = [level[i : i + FAN_IN] for i in range(0, len(level), FAN_IN)]
        level = [f"dmondrian-add-forecasts-{uuid.uuid4().hex}" for _ in parts]
        joins |= {key: (join_replies, part) for key, part in zip(level, parts, strict=True)}
    layers = {
        "steps": MaterializedLayer(steps, {"workers": places.get, "priority": ranks.get}),
        "joins": MaterializedLayer(joins, {"priority": _FIRST}),
    }
    graph = HighLevelGraph(layers, {"steps": set(), "joins": {"steps"}})
    (future,) = client.get(graph, level, sync=False, fifo_timeout="100 ms")
    return future
