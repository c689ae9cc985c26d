"""Which worker holds which shard.

Promises that what the coordinator asks for at each turn (the shards of a worker, those without one,
how many each has) takes no walk over all shards.
"""

from __future__ import annotations

from collections.abc import Iterable

from dmondrian.distributed.training.shard_state import ShardState


class ShardPlaces:
    """Shards by worker; `ShardState.address` is changed here alone.

    Parameters
    ----------
    states : iterable of ShardState
        Of all shards, in order.

    Attributes
    ----------
    by_worker : dict of str to dict of int to ShardState
        Shards of each worker that has some, by number.
    unplaced : dict of int to ShardState
        Shards without a worker, by number.
    """

    def __init__(self, states: Iterable[ShardState]) -> None:
        self.by_worker: dict[str, dict[int, ShardState]] = {}
        self.unplaced: dict[int, ShardState] = {}
        for state in states:
            self._there(state.address)[state.shard] = state

    def move(self, state: ShardState, address: str | None) -> None:
        """Give a shard to another worker, or to none."""
        there = self._there(state.address)
        del there[state.shard]
        if not there and state.address is not None:
            del self.by_worker[state.address]
        state.address = address
        self._there(address)[state.shard] = state

    def load(self) -> dict[str, int]:
        """Return the number of shards of each worker that has some."""
        return {address: len(held) for address, held in self.by_worker.items()}

    def _there(self, address: str | None) -> dict[int, ShardState]:
        return self.unplaced if address is None else self.by_worker.setdefault(address, {})
