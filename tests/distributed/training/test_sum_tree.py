"""Replies that are joined on workers change no byte and no metric, whoever is lost meanwhile."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from distributed import Client

from dmondrian import AMFClassifier, AMFRegressor
from dmondrian._numba import mechanisms
from dmondrian.checkpoint import Run
from dmondrian.distributed import TrainedRun
from dmondrian.distributed.cluster.results import FinishedTask, LostResultError, ResultQueue
from dmondrian.distributed.training import sum_tree
from dmondrian.distributed.training.coordinator import Coordinator
from dmondrian.distributed.training.shard_state import AwaitedReply, SentBundle, ShardState
from dmondrian.distributed.training.sum_tree import Outgoing, in_groups
from dmondrian.distributed.worker import tasks
from dmondrian.distributed.worker.messages import Bundle, Step
from dmondrian.errors import OutageError
from tests.distributed.conftest import Fit, Grow, Once, digests, forest, resize

SHARDS = 20


@pytest.fixture
def joined(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Join replies from two workers on, two at a time; return how many bundles were, each time."""
    monkeypatch.setattr(sum_tree, "LEAST", 2)
    monkeypatch.setattr(sum_tree, "FAN_IN", 2)
    submit, sizes = sum_tree._submit_joined, []

    def note(client: Client, some: Any) -> Any:
        sizes.append(len(some))
        return submit(client, some)

    monkeypatch.setattr(sum_tree, "_submit_joined", note)
    return sizes


def metrics_of(run: TrainedRun) -> Any:
    """All metrics of the newest manifest, calibration and guard among them."""
    manifest = Run.open(run.run_url).latest()
    assert manifest is not None
    return manifest.metrics


def assert_same(run: TrainedRun, other: TrainedRun) -> None:
    assert digests(run) == digests(other)
    assert metrics_of(run) == metrics_of(other)


CALIBRATED = forest(n_estimators=SHARDS, calibrate=True)
FEWER = 10
NUMBERS = AMFRegressor(FEWER, feature_scales=None, random_state=7)
FOLLOWING = AMFClassifier(FEWER, drift="follow", delay=64, random_state=7)


@pytest.fixture
def numbers(adult: Path, tmp_path: Path) -> Path:
    """The sample with a number to be forecast: sums of floats."""
    table = pa.concat_tables([pq.read_table(path) for path in sorted(adult.glob("*.parquet"))])
    path = tmp_path / "numbers.parquet"
    pq.write_table(table.drop_columns(["income"]).slice(0, 3000), path, row_group_size=500)
    return path


@pytest.mark.usefixtures("talkative")
@pytest.mark.parametrize(
    "n_workers", [5, *(pytest.param(n, marks=pytest.mark.thorough) for n in (1, 2, 12, 20))]
)
def test_a_run_is_the_same_on_any_number_of_workers(
    fit: Fit, cluster: Grow, monkeypatch: pytest.MonkeyPatch, joined: list[int], n_workers: int
) -> None:
    given = {"estimator": CALIBRATED, "n_shards": SHARDS, "checkpoint_every": "3000 rows"}
    with monkeypatch.context() as patch:
        patch.setattr(sum_tree, "LEAST", 1000)
        calm = fit("calm", **given)
    assert not joined
    _, client = cluster(n_workers)
    # Of one unit after the other, all bundles are sent at the same time.
    window = 1 if n_workers == 5 else None
    assert_same(fit(client=client, window=window, **given), calm)
    assert max(joined, default=1) <= n_workers
    assert n_workers != 5 or max(joined) == 5


@pytest.mark.usefixtures("talkative")
@pytest.mark.parametrize("kind", ["numbers", "following"])
@pytest.mark.thorough(but="following")
def test_sums_of_floats_and_of_members_are_the_same(
    fit: Fit,
    cluster: Grow,
    monkeypatch: pytest.MonkeyPatch,
    joined: list[int],
    numbers: Path,
    kind: str,
) -> None:
    given: dict[str, Any] = {"n_shards": FEWER, "checkpoint_every": "1500 rows", "data": numbers}
    if kind == "numbers":
        given |= {"estimator": NUMBERS, "target": "age"}
    else:
        given |= {"estimator": FOLLOWING, "target": "sex"}
    with monkeypatch.context() as patch:
        patch.setattr(sum_tree, "LEAST", 1000)
        calm = fit("calm", **given)
    _, client = cluster(5)
    assert_same(fit(client=client, window=1, **given), calm)
    assert max(joined) == 5


@pytest.mark.usefixtures("talkative")
def test_a_worker_that_leaves_takes_no_sum_with_it(
    fit: Fit, cluster: Grow, joined: list[int]
) -> None:
    given = {"estimator": CALIBRATED, "n_shards": 6, "checkpoint_every": "2000 rows"}
    calm = fit("calm", **given)
    workers, client = cluster(3)
    lose = Once(lambda: resize(workers, client, 2))
    joined.clear()
    run = fit(client=client, progress=lose, window=1, **given)
    assert lose.is_done
    assert run.summary["recoveries"] >= 2
    assert {2, 3} <= set(joined)  # those that are left go on to answer as one
    assert_same(run, calm)


def kill_who_joins(mark: str, is_after: bool) -> None:
    """Have the first worker process that joins replies die, before or after it did so."""
    import os
    import signal
    import threading

    from dmondrian.distributed.worker import add_forecasts

    join = add_forecasts.join_replies

    def killing(replies: Any) -> Any:
        joined = join(replies)
        try:
            os.close(os.open(mark, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return joined
        if is_after:  # others may learn of the result, or not
            threading.Timer(0.02, os.kill, (os.getpid(), signal.SIGKILL)).start()
            return joined
        os.kill(os.getpid(), signal.SIGKILL)
        return None

    add_forecasts.join_replies = killing
    add_forecasts.undo = lambda: setattr(add_forecasts, "join_replies", join)  # type: ignore[attr-defined]


def undo() -> None:
    """Leave a worker process as it was."""
    from dmondrian.distributed.worker import add_forecasts

    getattr(add_forecasts, "undo", lambda: None)()


@pytest.mark.usefixtures("talkative")
@pytest.mark.parametrize("is_after", [False, pytest.param(True, marks=pytest.mark.thorough)])
def test_a_process_that_is_killed_while_it_joins_changes_nothing(
    fit: Fit,
    pair: Client,
    undisturbed: TrainedRun,
    joined: list[int],
    tmp_path: Path,
    is_after: bool,
) -> None:
    mark = tmp_path / "killed"
    pair.run(kill_who_joins, str(mark), is_after)
    try:
        run = fit(client=pair, window=1)
    finally:
        pair.run(undo)
    assert mark.exists()
    assert run.summary["recoveries"] >= 3
    assert joined
    assert_same(run, undisturbed)


@pytest.mark.usefixtures("talkative")
def test_a_joined_reply_that_is_lost_is_asked_for_of_each_worker(
    fit: Fit,
    client: Client,
    undisturbed: TrainedRun,
    joined: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    take, lost = ResultQueue.take, []

    def lose(results: ResultQueue, timeout: float) -> FinishedTask | None:
        finished = take(results, timeout)
        if finished is None or not finished.context.is_joint or len(lost) >= 3:
            return finished
        lost.append(finished.context)
        return FinishedTask(finished.key, finished.context, None, LostResultError("lost"))

    monkeypatch.setattr(ResultQueue, "take", lose)
    sent: list[AwaitedReply] = []
    watch = ResultQueue.watch

    def note(results: ResultQueue, future: Any, context: AwaitedReply) -> str:
        sent.append(context)
        return watch(results, future, context)

    monkeypatch.setattr(ResultQueue, "watch", note)
    run = fit(window=1)
    assert len(lost) == 3
    assert run.summary["recoveries"] == 0
    again = sent[sent.index(lost[0]) + 1 :]
    units = {unit for _, unit in lost[0].shard_units}
    assert units & {u for one in again if not one.is_joint for _, u in one.shard_units} == units
    assert any(one.is_joint for one in again)
    assert_same(run, undisturbed)


@pytest.mark.usefixtures("talkative")
def test_a_shard_that_fails_holds_no_other_back(
    fit: Fit, undisturbed: TrainedRun, joined: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    learn, broken = tasks._learn, []
    read, unread = tasks.read_chunk, []

    def fail_once(chunk: Any, shard: Any, prepared: Any, order: Any) -> None:
        if order.stop > 2000 and order.shard == 1 and not broken:
            broken.append(order.shard)
            raise FloatingPointError("half way")
        learn(chunk, shard, prepared, order)

    def flaky(plan: Any, chunk: Any, floor: int, **options: Any) -> Any:
        if chunk.index == 4 and len(unread) < 2:
            unread.append(chunk.index)
            raise OutageError("for now")
        return read(plan, chunk, floor, **options)

    monkeypatch.setattr(tasks, "_learn", fail_once)
    monkeypatch.setattr(tasks, "read_chunk", flaky)
    run = fit(window=2)
    assert broken
    assert unread
    assert run.summary["recoveries"] == 1
    assert joined
    assert_same(run, undisturbed)


@pytest.mark.usefixtures("talkative", "joined")
def test_a_worker_that_waits_for_a_silent_one_is_not_silent(
    fit: Fit, pair: Client, undisturbed: TrainedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    check, broken_up = Coordinator._check_silence, []
    address, pid = min(pair.run(os.getpid).items())
    stop = Once(lambda: os.kill(pid, signal.SIGSTOP))

    def pass_by(self: Coordinator, now: float) -> None:
        """Half of the time at the first look, all of it at the second for the stopped one."""
        if stop.is_done and any(s.reply.is_joint for s in self._sent.get(address, {}).values()):
            since = now - 0.6 * self._limits.silence
            self._last_answer.update(dict.fromkeys(self._workers.threads, since))
            broken_up.append(set(self._workers.threads))
        elif broken_up:
            self._last_answer[address] = -float("inf")
        check(self, now)

    monkeypatch.setattr(Coordinator, "_check_silence", pass_by)
    try:
        run = fit(client=pair, progress=stop, window=1)
    finally:
        os.kill(pid, signal.SIGCONT)
    assert len(broken_up) == 1
    assert run.summary["recoveries"] == 3
    assert_same(run, undisturbed)


def test_what_follows_a_failed_step_waits_for_the_reply_that_has_the_cause() -> None:
    state = ShardState(3, 4, None)
    for first, units in (("a", [4, 5]), ("b", [6, 7])):
        state.pending[first] = SentBundle(first, "w", [(state, u) for u in units], {3})
    assert [state.awaits_before(unit) for unit in (4, 5, 6, 7)] == [False, True, True, True]
    state.done = 6  # the first reply has come
    assert [state.awaits_before(unit) for unit in (6, 7)] == [False, True]
    state.pending["b"].wanted.clear()
    assert not state.awaits_before(7)


def outgoing(
    address: str, shards: list[int], unit: int, *, apart: int = 0, saves: bool = False
) -> Any:
    states = [ShardState(n, 0, None, apart=apart) for n in shards]
    sent = SentBundle(f"{address}-{unit}", address, [(s, unit) for s in states], set(shards), saves)
    orders = tuple(Step("run", "attempt", n, address, unit, unit + 1) for n in shards)
    return Outgoing(sent, tasks.step, Bundle("run", "attempt", address, orders), unit)


def test_each_worker_is_sent_its_bundles_in_order() -> None:
    drawn = np.random.default_rng(0)
    for _ in range(50):
        queues = {
            f"w{w:02}": [
                outgoing(f"w{w:02}", [w], u, apart=int(drawn.integers(3)), saves=bool(u == 2))
                for u in range(drawn.integers(1, 4))
            ]
            for w in drawn.permutation(int(drawn.integers(1, 14))).tolist()
        }
        everything = [one for queue in queues.values() for one in queue]
        groups = in_groups(everything)
        found: dict[str, list[Outgoing]] = {address: [] for address in queues}
        for some in groups:
            assert len(some) == 1 or len(some) >= sum_tree.LEAST
            assert len({one.sent.address for one in some}) == len(some)
            assert len({one.sent.saves for one in some}) == 1
            assert len(some) == 1 or not any(one.sent.is_apart for one in some)
            assert [one.sent.address for one in some] == sorted(one.sent.address for one in some)
            for one in some:
                found[one.sent.address].append(one)
        assert found == queues
        joinable = [queue[0] for queue in queues.values() if not queue[0].sent.is_apart]
        assert max(map(len, groups)) >= len(joinable) * (len(joinable) >= sum_tree.LEAST)


def test_nothing_is_joined_without_the_mechanism(monkeypatch: pytest.MonkeyPatch) -> None:
    some = [outgoing(f"w{w}", [w], 0) for w in range(sum_tree.LEAST)]
    assert [len(group) for group in in_groups(some)] == [len(some)]
    monkeypatch.setenv("DMONDRIAN_WITHOUT", "sum_tree")
    mechanisms.left_out.cache_clear()
    try:
        assert [len(group) for group in in_groups(some)] == [1] * len(some)
    finally:
        monkeypatch.undo()
        mechanisms.left_out.cache_clear()
