"""A schedule: which faults a run meets, drawn from a seed.

Promises that a seed always gives the same schedule, and that a schedule leaves at least one worker
of three that lives or comes back.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from tests.store.proxy import FAULTS as STORE

KILL = "kill"  # SIGKILL from outside; the nanny starts another process
KILL_AT = ("kill at update", "kill at read", "kill at upload", "kill after upload")
KILL_IN_RESTORE = "kill in restore"  # a second worker dies while it takes over from the first
MEMORY = "memory"  # more than the limit: the nanny ends the process
RAISE = "raise"  # an exception half way through a step
LEAVE = "leave"  # SIGKILL, and nobody comes back
RETIRE = "retire"
STOP = "stop"  # SIGSTOP past the silence, then SIGCONT
JOIN = "join"
COORDINATOR = ("coordinator now", "coordinator before commit", "coordinator after commit")

REMOVING = (LEAVE, RETIRE, STOP)
MOST_REMOVED = 2  # of three workers
KINDS = (
    KILL, *KILL_AT, KILL_IN_RESTORE, MEMORY, RAISE, *REMOVING, JOIN, *COORDINATOR,
    *(f"store {fault}" for fault in STORE),
)  # fmt: skip
KILLS = (KILL, *KILL_AT, KILL_IN_RESTORE, MEMORY, LEAVE, STOP)
"""Kinds that lose a worker without a word."""


@dataclass(frozen=True)
class Fault:
    """One fault and its moment."""

    kind: str
    share: float  # of the stream's rows that are settled when it strikes
    victim: int  # which worker: an index into those that live, in order of address, modulo
    nth: int  # which call of the hooked function, from this moment on
    delay: float  # seconds into that call
    seconds: float  # how long a store or a stopped worker suffers


def draw(seed: int, most: int = 4, kinds: tuple[str, ...] = KINDS) -> list[Fault]:
    """Return the faults of a seed, two to `most`, in order of their moments."""
    chance = random.Random(seed)
    faults: list[Fault] = []
    for share in sorted(chance.uniform(0.02, 0.75) for _ in range(chance.randint(2, most))):
        removed = sum(fault.kind in REMOVING for fault in faults)
        allowed = [k for k in kinds if k not in REMOVING or removed < MOST_REMOVED]
        faults.append(
            Fault(
                kind=chance.choice(allowed),
                share=share,
                victim=chance.randrange(3),
                nth=chance.randint(1, 3),
                delay=chance.choice((0.0, chance.uniform(0.0, 0.02))),
                seconds=chance.uniform(0.5, 2.0),
            )
        )
    return faults
