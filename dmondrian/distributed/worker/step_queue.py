"""Queue of the steps that a worker was asked for, of all bundles of a run.

Relies on shards whose position changes only while a step of this queue runs. Promises that a step
begins only when its shard is idle and at the step's start, or past it; that steps begin in stream
order, as many at once as the worker has threads; that a step which can never begin is refused with
the reason, and soon; that neither a failed step nor a missing one delays other shards; and that the
states that wait to be stored while their shards learn on have a bounded size.
"""

from __future__ import annotations

import threading
import time
from bisect import insort
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from dmondrian.distributed.worker.messages import DIRTY, GAP, GONE, HALTED, LOST, OK, Answer, Step
from dmondrian.distributed.worker.shard import Shard

STORING = 512 << 20
"""Most bytes of encoded states that a worker stores while their shards learn on."""


@dataclass(frozen=True)
class Storing:
    """State of a step whose shard can learn on: what is left is to store it.

    Parameters
    ----------
    store : callable
        Stores the state, and returns the step's answer.
    n_bytes : int
        Held until then.
    """

    store: Callable[[], Answer]
    n_bytes: int


@dataclass(eq=False)
class _Waiting:
    """A step that has not begun, or is not answered yet."""

    step: Step
    since: float  # monotonic seconds
    answer: Answer | None = None
    is_stored_beside: bool = False  # it has learned, and takes no thread of the worker any more


class StepQueue:
    """Steps of a run's shards on one worker.

    Parameters
    ----------
    shards : mapping of int to Shard
        Held now; others may be added and removed under `changed`.
    learn : callable
        ``learn(shard, step) -> Answer or Storing`` carries out a step whose shard is at its start
        or past it.

    Attributes
    ----------
    changed : threading.Condition
        Protects the shards' flags and the fields here; notified when one changes.
    generation : int
        Steps of earlier generations are not begun.
    """

    def __init__(
        self, shards: Mapping[int, Shard], learn: Callable[[Shard, Step], Answer | Storing]
    ) -> None:
        self.changed = threading.Condition()
        self.generation = 0
        self._shards, self._learn = shards, learn
        self._waiting: list[_Waiting] = []  # in the order in which they begin
        self._n_running = 0
        self._n_threads = 1
        self._n_storing = 0  # bytes

    def run(
        self,
        steps: Sequence[Step],
        n_threads: int,
        patience: float,
        learned: Callable[[], None] = lambda: None,
    ) -> list[Answer]:
        """Carry out steps; return their answers when all are answered.

        Parameters
        ----------
        steps : sequence of Step
            In stream order for each shard.
        n_threads : int
            Steps that may run at once, those of other calls counted.
        patience : float
            Seconds that a step waits for the one before it to arrive.
        learned : callable
            Called where some states are still to be stored, when that is all that is left.
        """
        now = time.monotonic()
        entries = [_Waiting(step, now) for step in steps]
        with self.changed:
            self._n_threads = n_threads
            for waiting in entries:
                insort(self._waiting, waiting, key=_place)
            self._begin()
            self._wait(
                entries, patience, lambda entry: entry.is_stored_beside or entry.answer is not None
            )
        if any(waiting.is_stored_beside for waiting in entries):
            learned()
            with self.changed:
                self._wait(entries, patience, lambda entry: entry.answer is not None)
        return [waiting.answer for waiting in entries if waiting.answer is not None]

    def _wait(
        self, entries: Sequence[_Waiting], patience: float, is_so: Callable[[_Waiting], bool]
    ) -> None:
        """Wait until something is so of all steps; holds `changed`."""
        # Those that begin are answered in the end: a step that runs may take long.
        while not all(map(is_so, entries)):
            self.changed.wait(timeout=patience)
            self._refuse_overdue(entries, time.monotonic() - patience)

    def look_again(self) -> None:
        """Refuse or begin what waits, after shards or the generation changed; holds `changed`."""
        self._begin()
        self.changed.notify_all()

    def _begin(self) -> None:
        """Begin steps while there are threads for them."""
        while self._n_running < self._n_threads and (next_step := self._next()) is not None:
            self._n_running += 1
            name = "dmondrian-step"
            threading.Thread(target=self._work, args=next_step, name=name, daemon=True).start()

    def _next(self) -> tuple[_Waiting, Shard] | None:
        """Return the first step that can begin, marked as running; refuse those that never can."""
        for waiting in list(self._waiting):
            step, shard = waiting.step, self._shards.get(waiting.step.shard)
            status = self._refusal(shard, step)
            if status is not None:
                self._answer(waiting, Answer(status, step.shard, step.address, _position(shard)))
            elif shard is not None and not shard.is_running and shard.position >= step.start:
                shard.is_running, shard.end = True, max(step.stop, shard.position)
                self._waiting.remove(waiting)
                return waiting, shard
        return None

    def _refusal(self, shard: Shard | None, step: Step) -> str | None:
        """Return the status of a step that will not begin, else None."""
        if shard is None:
            return LOST
        if shard.is_dirty:
            return DIRTY
        if step.generation < self.generation:
            return HALTED
        if step.recalls and step.recalls == shard.failed_recalls:
            return GAP
        return None

    def _refuse_overdue(self, entries: Sequence[_Waiting], oldest: float) -> None:
        """Refuse steps of which none before them runs, waits or came since `oldest`."""
        for waiting in entries:
            step, shard = waiting.step, self._shards.get(waiting.step.shard)
            is_behind = shard is not None and shard.position < step.start and not shard.is_running
            if waiting.answer is None and waiting.since <= oldest and is_behind:
                first = next(w for w in self._waiting if w.step.shard == step.shard)
                if first is waiting:
                    self._answer(waiting, Answer(GAP, step.shard, step.address, _position(shard)))

    def _answer(self, waiting: _Waiting, answer: Answer) -> None:
        waiting.answer = answer
        self._waiting.remove(waiting)
        self.changed.notify_all()

    def _work(self, waiting: _Waiting | None, shard: Shard) -> None:
        """Carry out a step, and then others while there are any that can begin."""
        while waiting is not None:
            started = time.perf_counter()
            done = self._carry_out(waiting.step, partial(self._learn, shard, waiting.step))
            seconds = time.perf_counter() - started  # that no other step could run
            if isinstance(done, Storing) and not self._store_beside(waiting, shard, done, seconds):
                done = self._carry_out(waiting.step, done.store)
                seconds = time.perf_counter() - started
            with self.changed:
                shard.is_running = False
                if isinstance(done, Answer):
                    self._note(waiting, shard, done, seconds)
                next_step = self._next()
                waiting, shard = (None, shard) if next_step is None else next_step
                self._n_running -= waiting is None
                self._begin()
                self.changed.notify_all()

    def _store_beside(
        self, waiting: _Waiting, shard: Shard, storing: Storing, seconds: float
    ) -> bool:
        """Store a state in a thread of its own, unless too much is being stored."""
        with self.changed:
            if self._n_storing and self._n_storing + storing.n_bytes > STORING:
                return False
            self._n_storing += storing.n_bytes
            waiting.is_stored_beside = True
        threading.Thread(
            target=self._store, args=(waiting, shard, storing, seconds), name="dmondrian-store",
            daemon=True,
        ).start()  # fmt: skip
        return True

    def _store(self, waiting: _Waiting, shard: Shard, storing: Storing, seconds: float) -> None:
        """Store a state while its shard learns on, and answer the step."""
        answer = self._carry_out(waiting.step, storing.store)
        with self.changed:
            self._n_storing -= storing.n_bytes
            assert isinstance(answer, Answer)
            self._note(waiting, shard, answer, seconds)
            self.changed.notify_all()

    def _note(self, waiting: _Waiting, shard: Shard, answer: Answer, seconds: float) -> None:
        """Note the answer of a step; holds `changed`."""
        if answer.status == OK:
            answer.seconds = seconds
        else:
            shard.failed_recalls = waiting.step.recalls
        waiting.answer = answer

    def _carry_out(self, step: Step, part: Callable[[], Answer | Storing]) -> Answer | Storing:
        """Return what a part of a step returns, and of one that raises an answer."""
        try:
            return part()
        except Exception as error:  # noqa: BLE001 - the coordinator has this thread's order answered
            about = type(error).__name__, str(error)
            return Answer(GONE, step.shard, step.address, error=about)


def _place(waiting: _Waiting) -> tuple[int, int]:
    return waiting.step.start, waiting.step.shard


def _position(shard: Shard | None) -> int:
    return -1 if shard is None else shard.position
