"""Pruning: old checkpoints of a run are deleted, and the blobs that no checkpoint names any more.

Relies on the run's lease, so that nobody writes meanwhile. Promises to keep the newest checkpoints
of the run and of each of its parts, in all of them; the one that is the model now; the best one by
held-out data, where there are such; and every blob that any manifest names; and to delete a
manifest before its blobs, so that one which can be read is whole at any moment. Where the newest
checkpoints are all differences from one whole state, the newest one that does without it stays too:
a damaged blob leaves a checkpoint to go on from.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from dmondrian.checkpoint.held_out import read_record
from dmondrian.checkpoint.lease import Lease
from dmondrian.checkpoint.manifest import manifest_name
from dmondrian.checkpoint.parts import model_parts, newest_final, parts_of
from dmondrian.checkpoint.run import BLOBS, Run
from dmondrian.errors import CorruptError, NotFoundError, ParameterError


@dataclass(frozen=True)
class Pruned:
    """Checkpoints and bytes that were deleted of a run or part, or would be."""

    url: str
    positions: list[int]  # of manifests
    blobs: list[str]  # names of objects
    n_bytes: int  # of these blobs
    kept: list[int]  # positions

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return dict(vars(self))


def prune(run: Run, keep: int, dry_run: bool = False) -> list[Pruned]:
    """Delete old checkpoints of a run and of its parts.

    Parameters
    ----------
    run : Run
    keep : int
        Newest checkpoints to keep; at least 1. The one before a damaged one may be all that is
        left of a run, so keep two or more.
    dry_run : bool
        Delete nothing, and hold nothing.

    Returns
    -------
    list of Pruned
        Of the run, then of its parts.

    Raises
    ------
    FencedError
        The run is being worked on.
    CorruptError
        A manifest is damaged, so that what it names cannot be known.
    """
    if isinstance(keep, bool) or not isinstance(keep, int) or keep < 1:
        raise ParameterError(f"keep is {keep!r}; expected an integer of at least 1")
    with ExitStack() as stack:
        if not dry_run:  # before anything is looked at: it may just be coming to its end
            for part in (run, *parts_of(run)):
                stack.enter_context(Lease.take(part.store)).end("pruned")
        return [_prune(part, kept, not dry_run) for part, kept in _keep(run, keep)]


LEAST = 2
"""Fewest checkpoints that a run in work keeps: the newest may turn out to be damaged."""


def prune_while_training(
    run: Run, position: int, keep: int, needed: Iterable[str], stay: Collection[int] = ()
) -> list[int]:
    """Delete checkpoints but the newest; the caller trains the run and holds its lease.

    Those after `position` are not counted and stay, as do blobs that no checkpoint names: some may
    be of the next one.

    Parameters
    ----------
    run : Run
        Without parts.
    position : int
        The newest checkpoint.
    keep : int
        How many stay, this one counted.
    needed : iterable of str
        Digests of other blobs that stay.
    stay : collection of int
        Positions of other checkpoints that stay: the best one, say.

    Returns
    -------
    list of int
        Positions of those deleted; none if one that stays cannot be read, as what it needs is not
        known then.
    """
    everything = run.manifests()
    old = [p for p in everything if p <= position][:-keep]
    old = [p for p in old if p not in stay]
    if old and (apart := position_apart(run, position)) is not None:
        old = [p for p in old if p != apart]
    named: dict[int, set[str]] = {}
    for checkpoint in everything if old else ():
        try:
            named[checkpoint] = _named(run, [checkpoint])
        except CorruptError:
            if checkpoint not in old:
                return []
    old = [checkpoint for checkpoint in old if checkpoint in named]
    in_use = {f"{BLOBS}/{digest}" for digest in needed}
    in_use = in_use.union(*(names for checkpoint, names in named.items() if checkpoint not in old))
    run.store.delete(manifest_name(checkpoint) for checkpoint in old)
    run.store.delete(sorted(set().union(*(named[checkpoint] for checkpoint in old)) - in_use))
    return old


def position_apart(run: Run, position: int | None = None) -> int | None:
    """Return the newest checkpoint that one damaged blob does not spoil along with another one.

    Parameters
    ----------
    run : Run
        Without parts.
    position : int or None
        Of that other one; by default the newest checkpoint.

    Returns
    -------
    int or None
        None where there is no such checkpoint before it.
    """
    shared: set[str] | None = None
    for checkpoint in reversed(run.manifests()):
        if position is not None and checkpoint > position:
            continue
        try:
            manifest = run.manifest(checkpoint)
        except (CorruptError, NotFoundError):
            if shared is None:  # what it needs is not known: that may be anything
                return None
            continue
        if shared is None:
            shared = set(manifest.blobs)
        elif shared.isdisjoint(manifest.blobs):
            return checkpoint
    return None


def _keep(run: Run, keep: int) -> list[tuple[Run, set[int]]]:
    """Return the run and its parts, each with the positions to keep."""
    everything = [run, *parts_of(run)]
    shared = {position for part in everything for position in part.manifests()[-keep:]}
    if keep >= LEAST:
        apart = [position_apart(part) for part in everything]
        shared |= {position for position in apart if position is not None}
    if run.manifests():
        shared.add(model_parts(run)[0][1].position)  # what the model is now
    record = read_record(run.store)
    if record is not None and (best := record.best(run.manifests())) is not None:
        shared.add(best.position)
    final = {part: newest_final(part) for part in everything[1:]}
    return [
        (part, shared | {position for position in (final.get(part),) if position is not None})
        for part in everything
    ]


def _prune(run: Run, kept: set[int], is_real: bool) -> Pruned:
    positions = run.manifests()
    old = [position for position in positions if position not in kept]
    named = _named(run, (position for position in positions if position in kept))
    spare = [name for name in run.store.list(BLOBS) if name not in named]
    sizes = [run.store.size(name) or 0 for name in spare]
    if is_real:
        run.store.delete(manifest_name(position) for position in old)
        run.store.delete(spare)
    left = [position for position in positions if position in kept]
    return Pruned(run.url, old, spare, sum(sizes), left)


def _named(run: Run, positions: Iterable[int]) -> set[str]:
    """Return the blobs that manifests name."""
    named = set()
    for position in positions:
        try:
            manifest = run.manifest(position)
        except CorruptError as error:
            raise CorruptError(
                f"nothing was deleted, because what a damaged checkpoint needs is not known: "
                f"{error} Or delete that manifest."
            ) from error
        named |= {f"{BLOBS}/{digest}" for digest in manifest.blobs}
    return named
