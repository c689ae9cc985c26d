"""The ledger settles in stream order and adds pairwise over trees, whatever came first."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np

from dmondrian.distributed.metrics.progressive import Progressive
from dmondrian.distributed.training.ledger import Ledger
from dmondrian.distributed.worker.messages import OK, Answer, ChunkAnswer, ChunkSums
from dmondrian.distributed.worker.work_units import Unit
from dmondrian.ensemble.settings.parameters import ForestParameters
from dmondrian.ensemble.sums.pairwise import partial_sums
from dmondrian.prequential.forecasts import sum_forecasts

UNITS = [Unit(0, 0, 60), Unit(1, 60, 100)]
ROWS = [30, 30, 40]
STARTS = [0, 30, 60]
SHARDS = 3
FOREST = ForestParameters("amf-classifier", 1, 2, seed=0)


def answers() -> dict[tuple[int, int], Answer]:
    rng = np.random.default_rng(0)
    targets = [rng.integers(0, 2, n).astype(float) for n in ROWS]
    made = {}
    for shard, unit in itertools.product(range(SHARDS), UNITS):
        chunks = []
        for index in [i for i, start in enumerate(STARTS) if unit.start <= start < unit.stop]:
            # Magnitudes so far apart that another order of additions gives other bits.
            total = rng.uniform(0.1, 1.0, (ROWS[index], 2)) * 10.0 ** (8 * (shard - 1))
            chunk = ChunkAnswer(STARTS[index], partial_sums([shard], [total]))
            if shard == 0:
                chunk.y, chunk.counts = targets[index], {"clipped:a": index, "unseen:b": 0}
            chunks.append(chunk)
        made[shard, unit.index] = Answer(OK, shard, "here", unit.stop, chunks)
    return made


def settled(order: list[tuple[int, int]]) -> Ledger:
    ledger = Ledger(UNITS, SHARDS, 3, Progressive("classification"), None, {}, 0, FOREST)
    made = answers()
    for key in order:
        ledger.take(*key, made[key])
        while ledger.settled < len(UNITS) and ledger.is_ready():
            ledger.settle()
    return ledger


def test_totals_do_not_depend_on_the_order_of_answers() -> None:
    keys = list(answers())
    expected = settled(keys).metrics()
    rng = np.random.default_rng(1)
    for _ in range(20):
        order = [keys[i] for i in rng.permutation(len(keys))]
        ledger = settled(order)
        assert ledger.settled == 2
        assert ledger.metrics() == expected
    assert expected["progressive"]["rows"] == 100
    assert expected["counts"] == {"clipped:a": 3}


def test_a_repeated_answer_changes_nothing() -> None:
    keys = list(answers())
    assert settled([key for key in keys for _ in range(2)]).metrics() == settled(keys).metrics()


def test_forecasts_may_come_added_over_any_shards_that_have_none_yet() -> None:
    made = answers()
    expected = settled(list(made)).metrics()
    rng = np.random.default_rng(2)
    kinds = set()
    for _ in range(60):
        ledger = Ledger(UNITS, SHARDS, 3, Progressive("classification"), None, {}, 0, FOREST)
        for unit in UNITS:
            for _ in range(3):
                some = {int(n) for n in rng.permutation(SHARDS)[: rng.integers(1, SHARDS + 1)]}
                before = {n for n in range(SHARDS) if ledger.has_forecasts(n, unit.index)}
                by_chunk = zip(*(made[n, unit.index].chunks for n in some), strict=True)
                sums = [
                    ChunkSums(sum_forecasts([c.total for c in chunks if c.total]))
                    for chunks in by_chunk
                ]
                missing = ledger.take_forecasts(unit.index, some, sums)
                assert missing == (some - before if some & before else set())
                kinds.add((bool(some & before), bool(missing)))
        for shard, unit in itertools.product(range(SHARDS), UNITS):
            answer = made[shard, unit.index]
            if ledger.has_forecasts(shard, unit.index):
                chunks = [replace(chunk, total=None) for chunk in answer.chunks]
                answer = replace(answer, chunks=chunks)
            ledger.take(shard, unit.index, answer)
        while ledger.settled < len(UNITS):
            ledger.settle()
        assert ledger.metrics() == expected
    assert kinds == {(False, False), (True, False), (True, True)}


def test_forecasts_are_added_as_they_come() -> None:
    """A thousand workers' answers for a unit take the memory of one."""
    n, drawn = 100, np.random.default_rng(3)
    ledger = Ledger([Unit(0, 0, 50)], n, n, Progressive("classification"), None, {}, 0, FOREST)
    totals = drawn.integers(0, 2**40, (n, 50, 2))
    y = drawn.integers(0, 2, 50).astype(float)
    for shard in drawn.permutation(n).tolist():
        chunk = ChunkAnswer(0, totals[shard].copy(), y=y if shard == 0 else None)
        ledger.take(shard, 0, Answer(OK, shard, "here", 50, [chunk]))
    kept = [chunk for answer in ledger._answers[0].values() for chunk in answer.chunks]
    assert len(kept) == n
    assert not any(chunk.total is not None for chunk in kept)
    (whole,) = ledger._forecasts[0].sums
    np.testing.assert_array_equal(whole.total, totals.sum(axis=0))
    ledger.settle()
    assert ledger.metrics()["progressive"]["rows"] == 50


def test_what_shards_saved_is_reported_when_the_unit_is_settled() -> None:
    ledger = Ledger(UNITS, SHARDS, 3, None, None, {}, 0, FOREST)
    for (shard, unit), answer in answers().items():
        answer.saved = (f"{shard}" * 64, 10 + shard) if unit == 0 else None
        ledger.take(shard, unit, answer)
    unit, saved = ledger.settle()
    assert unit is UNITS[0]
    assert saved == {s: {"digest": f"{s}" * 64, "bytes": 10 + s} for s in range(SHARDS)}
    assert ledger.settle()[1] == {}
