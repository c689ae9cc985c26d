"""Orders take about as long as they should, and are bounded in what they return."""

from __future__ import annotations

from dmondrian.distributed.training.order_sizes import (
    ORDER_BYTES,
    ORDER_SECONDS,
    ORDERS_PER_SECOND,
    WINDOW_BYTES,
    OrderSizes,
)
from dmondrian.distributed.training.shard_state import Limits
from dmondrian.distributed.training.sum_tree import LEAST
from dmondrian.distributed.worker.messages import FAILED, OK, Answer


def answer(seconds: float, worker: str = "a", status: str = OK, is_saved: bool = False) -> Answer:
    saved = ("0" * 64, 1) if is_saved else None
    return Answer(status, 0, worker, 100, seconds=seconds, saved=saved)


def test_without_times_a_worker_gets_a_step_for_each_thread() -> None:
    sizes = OrderSizes(0)
    sizes.note([answer(0.01, "another"), answer(0.0, status=FAILED)])
    assert sizes.steps("a", False, 4, 2) == 4
    assert sizes.window("a", 8, 4, 2, Limits()) == Limits().window


def test_an_order_takes_a_second_or_longer_where_there_are_many_workers() -> None:
    sizes = OrderSizes(0)
    sizes.note([answer(0.125), answer(0.25)])  # the slowest counts
    assert sizes.steps("a", False, 1, 2) == 4
    assert sizes.steps("a", False, 3, 2) == 12
    assert sizes.steps("a", False, 1, int(10 * ORDERS_PER_SECOND)) == 40
    sizes.note([answer(100.0)])
    assert sizes.steps("a", False, 1, 2) == 1
    sizes.note([answer(0.0)])  # a repeated step takes no time: it shows little
    assert sizes.steps("a", False, 100, 2) == 2


def test_steps_that_save_have_times_of_their_own() -> None:
    sizes = OrderSizes(0)
    sizes.note([answer(0.1)])
    assert sizes.steps("a", True, 1, 2) == 10  # until one has saved
    sizes.note([answer(0.1), answer(0.5, is_saved=True)])
    assert sizes.steps("a", False, 1, 2) == 10
    assert sizes.steps("a", True, 1, 2) == 2


def test_an_order_returns_no_more_than_so_many_bytes() -> None:
    sizes = OrderSizes(ORDER_BYTES // 3)
    sizes.note([answer(0.001)])
    assert sizes.steps("a", False, 1, 2) == 3
    assert OrderSizes(10 * ORDER_BYTES).steps("a", False, 4, 2) == 1


def test_the_window_is_wide_where_units_are_short_and_small() -> None:
    limits = Limits()
    sizes = OrderSizes(0)
    sizes.note([answer(0.0001)])
    assert sizes.window("a", 8, 1, 2, limits) == limits.largest_window
    sizes.note([answer(0.025)])  # 0.2 seconds a unit of eight shards
    assert sizes.window("a", 8, 1, 2, limits) == 10
    sizes.note([answer(10.0)])
    assert sizes.window("a", 8, 1, 2, limits) == limits.window
    large = OrderSizes(WINDOW_BYTES // (8 * 6))
    large.note([answer(0.0001)])
    assert large.window("a", 8, 1, 2, limits) == 6
    assert large.window("a", 1, 1, 2, limits) == 48  # whatever shards others hold
    assert large.window("a", 80, 1, 2, limits) == limits.window
    asked = Limits(window=2, largest_window=2)
    assert sizes.window("a", 8, 1, 2, asked) == large.window("a", 8, 1, 2, asked) == 2


def test_many_workers_are_sent_the_same_number_of_steps() -> None:
    sizes = OrderSizes(0)
    seconds = {f"w{i}": 0.1 * (i + 1) for i in range(LEAST + 1)}
    sizes.note([answer(its, worker) for worker, its in seconds.items()])
    few = [sizes.steps(worker, False, 1, LEAST - 1) for worker in seconds]
    assert few == [int(ORDER_SECONDS / its) for its in seconds.values()]
    median = sorted(seconds.values())[LEAST // 2]
    many = {sizes.steps(worker, False, 1, LEAST) for worker in [*seconds, "new"]}
    assert many == {int(ORDER_SECONDS / median)}
    assert {sizes.steps(worker, True, 2, LEAST) for worker in seconds} == {2 * min(many)}
    limits = Limits()
    assert {sizes.window(worker, 1, 1, LEAST, limits) for worker in seconds} == {limits.window}
    sizes.note([answer(0.0, worker) for worker in seconds])  # of half the time at most
    assert sizes.steps("new", False, 1, LEAST) == int(ORDER_SECONDS / (median / 2.0))
