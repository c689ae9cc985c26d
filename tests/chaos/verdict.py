"""The verdict: what a run through faults did otherwise than the run without them.

Promises an empty list for a run that kept every promise, and a sentence for each broken one.
"""

from __future__ import annotations

from tests.chaos.harness import Outcome


def complaints(outcome: Outcome, calm: Outcome, interval: int) -> list[str]:
    """Return what is wrong.

    Parameters
    ----------
    outcome, calm : Outcome
        With and without faults.
    interval : int
        Rows between two checkpoints: the most that a shard learns again after a loss.
    """
    found = []
    if outcome.manifests.keys() != calm.manifests.keys():
        found.append(f"checkpoints {[*outcome.manifests]} instead of {[*calm.manifests]}")
    for position, manifest in calm.manifests.items():
        if outcome.manifests.get(position, manifest) != manifest:
            found.append(f"another forest or other metrics at position {position}")
    if outcome.metrics != calm.metrics:
        found.append("other metrics")
    found += _replays(outcome, interval)
    if any(outcome.left_behind):
        tasks, holders = outcome.left_behind
        found.append(f"{tasks} tasks were left at the scheduler, shards at {holders} workers")
    return found


def _replays(outcome: Outcome, interval: int) -> list[str]:
    found = []
    for loss in outcome.losses:
        if not loss["is_move"] and loss["address"] not in outcome.victims:
            found.append(f"shard {loss['lost']} was lost at {loss['address']}, which was not hurt")
        if loss["rows"] > interval:
            found.append(f"shard {loss['lost']} learned {loss['rows']} rows again")
    counted = [loss for loss in outcome.last_losses if loss["is_held"] and not loss["is_move"]]
    there = len(counted), sum(loss["rows"] for loss in counted)
    reported = outcome.summary["recoveries"], outcome.summary["rows_replayed"]
    if reported != there:
        found.append(f"the summary counts {reported} recoveries and rows, there were {there}")
    return found
