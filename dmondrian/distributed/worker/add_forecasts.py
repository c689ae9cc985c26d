"""Forecasts of the shards of one worker, added there: one array goes to the coordinator.

Relies on sums that are the same to the last bit in whatever order they are added
(:mod:`dmondrian.ensemble.sums`). Promises not to change the answers that shards keep for orders
that are repeated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dmondrian.distributed.worker.messages import OK, AddedForecasts, Answer, Reply, Step
from dmondrian.prequential.forecasts import added


def add_forecasts(orders: Sequence[Step], answers: Sequence[Answer]) -> Reply:
    """Return answers with the forecasts of the same rows added over shards.

    Only forecasts that were asked for and whose order was carried out are among the sums. Those of
    a row that one shard alone forecast stay in its answer.
    """
    by_rows: dict[tuple[int, int], list[int]] = {}
    for place, (order, answer) in enumerate(zip(orders, answers, strict=True)):
        if (
            answer.status == OK
            and order.forecasts
            and all(b.total is not None for b in answer.blocks)
        ):
            by_rows.setdefault((order.start, order.stop), []).append(place)
    reply = Reply(list(answers))
    for places in by_rows.values():
        if len(places) > 1:
            by_block = zip(*(answers[place].blocks for place in places), strict=True)
            totals = [added([b.total for b in some if b.total is not None]) for some in by_block]
            reply.added.append(AddedForecasts(places, totals))
            for place in places:
                blocks = [replace(block, total=None) for block in answers[place].blocks]
                reply.answers[place] = replace(answers[place], blocks=blocks)
    return reply
