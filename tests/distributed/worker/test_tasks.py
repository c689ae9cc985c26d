"""Orders on a real worker: whatever is repeated, late, early or misdirected does no harm."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from distributed import Client, Future, get_worker

from dmondrian.checkpoint import Run, decode_forest
from dmondrian.data import Plan, read_block, read_chunk
from dmondrian.distributed import TrainedRun
from dmondrian.distributed.cluster.code_version import code_digest
from dmondrian.distributed.worker import step_queue, tasks
from dmondrian.distributed.worker.messages import (
    DIRTY,
    FAILED,
    GAP,
    HALTED,
    LOST,
    MOVED,
    OK,
    Answer,
    Bundle,
    Order,
    Reply,
    Restore,
    Step,
)
from dmondrian.distributed.worker.tasks import PLUGIN, ShardHolder, forget, halt, restore, step
from dmondrian.distributed.worker.work_units import Unit, cut
from dmondrian.ensemble.settings.parameters import ForestParameters
from dmondrian.ensemble.sums.exact_sums import finest_one
from dmondrian.errors import OutageError
from dmondrian.forest.forest import Forest
from tests.distributed.conftest import PATIENCE, worker_threads, workers_of


class Worker:
    """One worker, and orders for shard 0 of a run that others trained."""

    def __init__(self, client: Client, run: Run) -> None:
        self.client, self.run = client, run
        self.address = workers_of(client)[0]
        self.plan = Plan.from_parquet(run.stream.read())
        self.units = cut(self.plan.chunks, max_rows=1000)
        self.attempt = "first"

    def ask(self, task: Any, order: Order) -> Answer:
        (answer,) = self.ask_together(task, [order])
        return answer

    def ask_together(self, task: Any, orders: Sequence[Order]) -> list[Answer]:
        return self.reply(task, orders).answers

    def reply(self, task: Any, orders: Sequence[Order]) -> Reply:
        return self.send(task, orders).result(timeout=PATIENCE)

    def send(self, task: Any, orders: Sequence[Order]) -> Future:
        bundle = Bundle(self.run.url, orders[0].attempt, orders[0].address, tuple(orders))
        return self.client.submit(task, bundle, pure=False)

    def order_to_restore(self, shard: int, position: int = 0, digest: str | None = None) -> Restore:
        return Restore(
            self.run.url, self.attempt, shard, self.address, position, digest, code_digest()
        )

    def restore(self, position: int = 0, digest: str | None = None) -> Answer:
        return self.ask(restore, self.order_to_restore(0, position, digest))

    def order(self, unit: Unit, **options: Any) -> Step:
        order = Step(
            self.run.url, self.attempt, 0, self.address, unit.start, unit.stop, with_labels=True
        )
        return replace(order, **options)

    def step(self, unit: int, **options: Any) -> Answer:
        return self.ask(step, self.order(self.units[unit], **options))


@pytest.fixture
def worker(undisturbed: TrainedRun) -> Iterator[Worker]:
    with worker_threads(1, threads=2) as (_, client):
        client.register_plugin(ShardHolder())
        yield Worker(client, Run.open(undisturbed.run_url))


def learned(worker: Worker, stop: int, shard: int = 0) -> tuple[Forest, list[np.ndarray]]:
    """A shard learned here, in one piece per block, and its forecasts before each row."""
    about = worker.run.run_json
    numbers = range(*about["shards"][shard])
    forest = Forest(ForestParameters.from_json(about["parameters"]), numbers)
    blocks = [block for block in worker.plan.blocks if block.position < stop]
    forecasts = []
    for block in blocks:
        encoded = read_block(worker.plan, block)
        forecasts.append(encoded)
        forest.update(encoded.X, encoded.y, encoded.weight)
    return forest, forecasts


def test_steps_learn_what_a_forest_learns_and_save_it(worker: Worker) -> None:
    assert worker.restore().status == OK
    assert worker.step(0).status == OK
    answer = worker.step(1, save=True)
    assert answer.status == OK
    assert answer.position == 2000
    assert answer.saved is not None
    expected, _ = learned(worker, 2000)
    header, trees = Forest.from_state(*decode_forest(worker.run.get_blob(answer.saved[0]))).state()
    assert header == expected.state()[0]
    for there, here in zip(trees, expected.state()[1], strict=True):
        assert all(np.array_equal(there[name], here[name]) for name in here)


def test_each_row_is_forecast_by_the_forest_that_has_learned_the_rows_before_it(
    worker: Worker,
) -> None:
    worker.restore()
    first = worker.step(0).chunks[0]
    about, chunk = worker.run.run_json, worker.plan.chunks[0]
    forest = Forest(ForestParameters.from_json(about["parameters"]), range(*about["shards"][0]))
    encoded = read_chunk(worker.plan, chunk)
    assert isinstance(first.total, np.ndarray)
    assert first.start == chunk.start
    wanted = []
    for row in range(len(first.total)):
        X, y = encoded.X[row : row + 1], encoded.y[row : row + 1]
        wanted.append(forest.predict_sums(X).total[0])
        forest.update(X, y)
    assert len(wanted) >= 500
    one = finest_one(about["n_estimators"])
    assert np.array_equal(first.total, np.rint(np.array(wanted) * one))


def test_a_repeated_step_answers_the_same_and_learns_nothing(worker: Worker) -> None:
    worker.restore()
    first, second = worker.step(0), worker.step(0)
    assert second.status == OK
    for a, b in zip(first.chunks, second.chunks, strict=True):
        assert np.array_equal(a.total, b.total)
        assert np.array_equal(a.y, b.y)
    once = worker.step(1, save=True)
    again = worker.step(1, save=True)
    assert once.saved == again.saved
    assert again.position == 2000


def test_a_step_too_early_is_a_gap(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dmondrian.distributed.worker.tasks.PATIENCE", 0.1)
    worker.restore()
    assert worker.step(1).status == GAP
    assert worker.step(0).status == OK
    assert worker.step(1).status == OK


def test_a_step_sent_together_with_the_one_before_waits_for_it(worker: Worker) -> None:
    worker.restore()
    orders = [worker.order(worker.units[i]) for i in (1, 0)]
    futures = [worker.send(step, [order]) for order in orders]
    assert [future.result(timeout=PATIENCE).answers[0].status for future in futures] == [OK, OK]


def test_without_the_shard_a_step_is_lost(worker: Worker) -> None:
    assert worker.step(0).status == LOST


def test_on_another_worker_than_meant_nothing_happens(worker: Worker) -> None:
    worker.restore()
    assert worker.step(0, address="tcp://127.0.0.1:1").status == MOVED
    assert worker.step(0).position == 1000


def test_another_attempt_drops_the_shards_of_the_one_before(worker: Worker) -> None:
    worker.restore()
    worker.step(0)
    old, worker.attempt = worker.attempt, "second"
    assert worker.step(1).status == LOST
    assert worker.restore().status == OK
    assert worker.step(1, attempt=old).status == LOST
    assert worker.step(0).status == OK


def test_orders_of_a_bundle_are_answered_each_for_itself(worker: Worker) -> None:
    """The same answers as one by one, but for the shard that failed and one that is not held."""
    shards = [0, 1, 2, 3]
    alone = []
    for shard in shards:
        worker.ask(restore, worker.order_to_restore(shard))
        alone.append([worker.step(unit, shard=shard) for unit in (0, 1)])
    restored = worker.ask_together(restore, [worker.order_to_restore(n) for n in shards])
    assert [answer.status for answer in restored] == [OK] * 4
    worker.client.run(forget, worker.run.url, worker.attempt, [3])
    worker.client.submit(break_the_next_update, pure=False).result(timeout=PATIENCE)  # of shard 0
    orders = [worker.order(worker.units[u], shard=n, recalls=1) for u in (0, 1) for n in shards]
    reply = worker.reply(step, orders)
    answers = reply.answers
    assert [answer.shard for answer in answers] == shards * 2
    assert [answer.status for answer in answers] == [DIRTY, OK, OK, LOST] * 2
    for n in (1, 2):
        for found, expected in zip((answers[n], answers[n + 4]), alone[n], strict=True):
            for a, b in zip(found.chunks, expected.chunks, strict=True):
                assert a.total is None
                assert np.array_equal(a.y, b.y)
    assert [some.places for some in reply.added] == [[1, 2], [5, 6]]  # of those that learned
    for unit, some in enumerate(reply.added):
        by_chunk = zip(alone[1][unit].chunks, alone[2][unit].chunks, strict=True)
        for sums, (a, b) in zip(some.sums, by_chunk, strict=True):
            assert np.array_equal(sums.total, a.total + b.total)
    again = worker.step(1, shard=1)  # a shard keeps its own
    for a, b in zip(again.chunks, alone[1][1].chunks, strict=True):
        assert np.array_equal(a.total, b.total)


def test_behind_a_failed_step_of_a_bundle_none_of_its_shard_begins_until_it_is_sent_again(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker.ask_together(restore, [worker.order_to_restore(n) for n in (0, 1)])
    read = tasks.read_chunk

    def fail(plan: Plan, chunk: Any, floor: int, **options: Any) -> Any:
        if chunk.index == 0:  # not those that are read ahead
            raise OutageError("for now")
        return read(plan, chunk, floor, **options)

    def orders(recalls: int) -> list[Step]:
        about = [(worker.units[u], n) for u in (0, 1) for n in (0, 1)]
        return [worker.order(unit, shard=n, recalls=recalls) for unit, n in about]

    with monkeypatch.context() as patch:
        patch.setattr(tasks, "read_chunk", fail)
        answers = worker.ask_together(step, orders(1))
    assert [answer.status for answer in answers] == [FAILED, FAILED, GAP, GAP]
    late = [worker.order(worker.units[1], shard=n, recalls=1) for n in (0, 1)]
    assert [answer.status for answer in worker.ask_together(step, late)] == [GAP, GAP]
    assert [answer.status for answer in worker.ask_together(step, orders(2))] == [OK] * 4


def test_bundles_that_come_in_any_order_and_twice_learn_each_row_once(worker: Worker) -> None:
    worker.ask_together(restore, [worker.order_to_restore(n) for n in (0, 1)])
    of_unit = [[worker.order(unit, shard=n) for n in (0, 1)] for unit in worker.units]
    sent = [worker.send(step, of_unit[u]) for u in (1, 0)]
    sent += [worker.send(step, [*of_unit[0], *of_unit[1], *of_unit[2]])]
    for future in sent:
        assert all(one.status == OK for one in future.result(timeout=PATIENCE).answers)
    saved = worker.ask_together(step, [replace(order, save=True) for order in of_unit[2]])
    for n, answer in enumerate(saved):
        assert answer.saved is not None
        header = decode_forest(worker.run.get_blob(answer.saved[0]))[0]
        assert header == learned(worker, 3000, n)[0].stored()[0]


def test_no_step_begins_after_a_halt(worker: Worker) -> None:
    worker.ask_together(restore, [worker.order_to_restore(n) for n in (0, 1)])
    (rests,) = worker.client.run(halt, worker.run.url, worker.attempt, 1).values()
    assert rests == {0: 0, 1: 0}
    orders = [worker.order(worker.units[0], shard=0), worker.order(worker.units[0], shard=1)]
    orders[1] = replace(orders[1], generation=1)
    assert [answer.status for answer in worker.ask_together(step, orders)] == [HALTED, OK]


def runs_held(worker: Worker) -> list[Any]:
    def look(dask_worker: Any) -> Any:
        return list(dask_worker.plugins[PLUGIN].registry._runs.values())

    return next(iter(worker.client.run(look).values()))


def test_shards_that_moved_away_are_dropped_and_the_others_stay(worker: Worker) -> None:
    worker.restore()
    worker.step(0)
    worker.client.run(forget, worker.run.url, "another", [0])
    worker.client.run(forget, worker.run.url, worker.attempt, [1, 2])
    assert worker.step(0).status == OK
    worker.client.run(forget, worker.run.url, worker.attempt, [0])
    assert worker.step(1).status == LOST
    (held,) = runs_held(worker)
    assert held.shards == {}


def test_an_order_that_comes_after_the_end_of_its_attempt_takes_nothing_up(worker: Worker) -> None:
    worker.restore()
    worker.client.run(forget, worker.run.url, worker.attempt, None)
    assert worker.step(0).status == LOST
    answer = worker.restore()
    assert answer.status == FAILED
    assert answer.error is not None
    assert "has ended" in answer.error[1]
    assert runs_held(worker) == []
    worker.attempt = "second"
    assert worker.restore().status == OK


def test_an_answer_that_was_forgotten_is_lost_not_invented(worker: Worker) -> None:
    worker.restore()
    worker.step(0)
    worker.step(1, settled=worker.units[1].start)
    assert worker.step(0).status == LOST


def test_a_state_that_was_passed_by_cannot_be_saved_any_more(worker: Worker) -> None:
    worker.restore()
    worker.step(0)
    worker.step(1)
    assert worker.step(0, save=True).status == LOST


def break_the_next_update() -> None:
    """Give shard 0 a forest that fails amid its next update, with rows learned."""
    registry = get_worker().plugins[PLUGIN].registry
    shard = next(iter(registry._runs.values())).shards[0]
    forest = shard.forest
    n_features = forest.parameters.n_features

    def fail(*_given: object, **_named: object) -> None:
        del forest.ask_and_learn
        forest.update(np.full((3, n_features), 0.5, np.float32), np.zeros(3))
        raise FloatingPointError("half way")

    forest.ask_and_learn = fail


def test_a_failure_in_the_middle_makes_the_shard_dirty_until_it_is_restored(
    worker: Worker,
) -> None:
    worker.restore()
    worker.step(0)
    worker.client.submit(break_the_next_update, pure=False).result(timeout=PATIENCE)
    answer = worker.step(1)
    assert answer.status == DIRTY
    assert answer.error is not None
    assert worker.step(1).status == DIRTY
    worker.restore()
    worker.step(0)
    expected = worker.step(1, save=True).saved
    assert expected is not None
    forest, _ = learned(worker, 2000)
    assert decode_forest(worker.run.get_blob(expected[0]))[0] == forest.stored()[0]


def test_a_shard_goes_on_from_its_blob(worker: Worker) -> None:
    worker.restore()
    saved = worker.step(0, save=True).saved
    straight = worker.step(1, save=True).saved
    assert saved is not None
    assert worker.restore(1000, saved[0]).position == 1000
    assert worker.step(1, save=True).saved == straight


def test_a_blob_of_another_shard_is_refused_by_name(worker: Worker) -> None:
    manifest = worker.run.latest()
    assert manifest is not None
    answer = worker.restore(6000, manifest.shards[1]["digest"])
    assert answer.status == FAILED
    assert answer.error is not None
    assert answer.error[0] == "CorruptError"
    assert "expected trees [0]" in answer.error[1]


def test_a_blob_that_has_learned_rows_behind_its_position_is_refused(worker: Worker) -> None:
    manifest = worker.run.latest()
    assert manifest is not None
    digest = manifest.shards[0]["digest"]
    assert worker.restore(6000, digest).status == OK
    answer = worker.restore(5999, digest)
    assert answer.status == FAILED
    assert answer.error is not None
    assert answer.error[0] == "CorruptError"
    assert "has learned 6,000 rows, but its checkpoint is at row 5,999" in answer.error[1]
    assert "Delete manifests/000000005999.json" in answer.error[1]


def test_a_state_the_store_refused_is_saved_by_the_repeated_step_even_when_passed_by(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker.restore()
    expected = worker.step(0, save=True).saved
    worker.restore()

    def refuse(self: Run, data: bytes) -> str:
        raise OSError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(Run, "put_blob", refuse)
        answer = worker.step(0, save=True)
    assert answer.status == FAILED
    assert answer.error == ("OSError", "no space left")
    assert worker.step(1).status == OK
    assert worker.step(0, save=True).saved == expected


@pytest.fixture
def held_back(
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[tuple[threading.Event, list[str], Callable[[int], None]]]:
    """An event that stores wait for, names of the threads that store, and a wait for so many."""
    released, threads, changed = threading.Event(), list[str](), threading.Condition()
    put = Run.put_blob

    def wait_and_put(self: Run, data: bytes) -> str:
        with changed:
            threads.append(threading.current_thread().name)
            changed.notify_all()
        assert released.wait(PATIENCE)
        return put(self, data)

    def wait_for(n: int) -> None:
        with changed:
            assert changed.wait_for(lambda: len(threads) >= n, PATIENCE)

    with monkeypatch.context() as patch:
        patch.setattr(Run, "put_blob", wait_and_put)
        yield released, threads, wait_for
        released.set()


def test_a_shard_learns_on_while_its_state_is_stored(
    worker: Worker, held_back: tuple[threading.Event, list[str], Callable[[int], None]]
) -> None:
    released, threads, _ = held_back
    worker.restore()
    saving = worker.send(step, [worker.order(worker.units[0], save=True)])
    assert worker.step(1).position == 2000
    assert not saving.done()
    released.set()
    (answer,) = saving.result(timeout=PATIENCE).answers
    assert threads == ["dmondrian-store"]
    assert (answer.status, answer.position) == (OK, 1000)
    forest, _ = learned(worker, 1000)
    assert decode_forest(worker.run.get_blob(answer.saved[0]))[0] == forest.stored()[0]
    worker.restore(1000, answer.saved[0])
    assert worker.step(1).status == OK


def test_states_that_wait_to_be_stored_have_a_bounded_size(
    worker: Worker,
    held_back: tuple[threading.Event, list[str], Callable[[int], None]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(step_queue, "STORING", 1)
    released, threads, wait_for = held_back
    worker.ask_together(restore, [worker.order_to_restore(shard) for shard in (0, 1)])
    orders = [worker.order(worker.units[0], save=True, shard=shard) for shard in (0, 1)]
    saving = worker.send(step, orders)
    wait_for(2)
    # One is stored beside, whatever its size; the thread of the other waits for it.
    assert sorted(threads) == ["dmondrian-step", "dmondrian-store"]
    released.set()
    assert all(one.saved is not None for one in saving.result(timeout=PATIENCE).answers)
    more = worker.send(step, [worker.order(worker.units[1], save=True, shard=0)])
    assert more.result(timeout=PATIENCE).answers[0].saved is not None
    assert threads[2:] == ["dmondrian-store"]
