"""Joined replies have the sums over all shards, to the last bit, however they are joined."""

from __future__ import annotations

import itertools
import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dmondrian.distributed.worker.add_forecasts import add_forecasts, join_replies
from dmondrian.distributed.worker.messages import (
    FAILED,
    OK,
    Answer,
    ChunkAnswer,
    Reply,
    Step,
)
from dmondrian.drift.guard import PERMANENT, UNIT, sum_shares
from dmondrian.ensemble.sums.pairwise import partial_sums, total
from dmondrian.prequential.stream_sample import Sampled, sum_samples

UNITS = [(0, 5), (5, 9), (9, 12)]
ROWS = 3  # of a chunk


def chunk(kind: str, shard: int, start: int, drawn: np.random.Generator) -> ChunkAnswer:
    """What a shard forecasts, of magnitudes that another order of additions would tell."""
    found = ChunkAnswer(start, y=np.ones(ROWS) if shard == 0 else None)
    if kind == "following":
        shares = drawn.integers(-(2**40), 2**40, (2, ROWS, 2))
        found.shares = {PERMANENT: shares[0], shard % 3: shares[1], UNIT: np.full((ROWS, 2), 0.1)}
        found.exponents = {start + 2: drawn.random((2, 3))}
        return found
    if kind == "numbers":
        answers = drawn.uniform(0.1, 1.0, (2, ROWS, 1)) * 10.0 ** (8 * (shard % 3 - 1))
        found.total = partial_sums([2 * shard, 2 * shard + 1], list(answers))
    else:
        found.total = drawn.integers(-(2**40), 2**40, (ROWS, 2))
    about = np.arange(2), np.full(2, 7.0), np.ones(2)
    found.sampled = Sampled(*about, drawn.integers(-(2**40), 2**40, (2, 4)), np.full((2, 2), 0.3))
    return found


def bundles(
    kind: str, workers: list[list[int]], seed: int
) -> list[tuple[list[Step], list[Answer]]]:
    """Orders and answers of some workers, by their shards; some failed."""
    drawn, made = np.random.default_rng(seed), []
    for shards in workers:
        orders, answers = [], []
        for start, stop in UNITS:
            for n in shards:
                chunks = [chunk(kind, n, at, drawn) for at in (start, start + 1)]
                answer = Answer(OK, n, "there", stop, chunks)
                if drawn.random() < 0.1:
                    answer = Answer(FAILED, n, "there", start)
                orders.append(Step("run", "attempt", n, "there", start, stop))
                answers.append(answer)
        made.append((orders, answers))
    return made


def arrays(reply: Reply) -> list[bytes]:
    return [pickle.dumps(answer) for answer in reply.answers]


@pytest.mark.parametrize("kind", ["classes", "numbers", "following"])
@given(data=st.data())
def test_replies_are_joined_in_any_tree(kind: str, data: Any) -> None:
    n_shards = data.draw(st.integers(1, 12))
    owners = data.draw(st.lists(st.integers(0, 4), min_size=n_shards, max_size=n_shards))
    workers = [[n for n in range(n_shards) if owners[n] == w] for w in sorted(set(owners))]
    made = bundles(kind, workers, data.draw(st.integers(0, 2**20)))
    before = pickle.dumps(made)
    replies = [add_forecasts(orders, answers, least=1) for orders, answers in made]
    while len(replies) > 1:
        n = data.draw(st.integers(1, len(replies) - 1))
        cuts = sorted({0, len(replies), *data.draw(st.sets(st.integers(0, n), max_size=3))})
        replies = [join_replies(replies[a:b]) for a, b in itertools.pairwise(cuts)]
    assert pickle.dumps(made) == before  # shards keep their own
    (reply,) = replies
    everything = [answer for _, answers in made for answer in answers]
    assert [(a.shard, a.status, a.position) for a in reply.answers] == [
        (a.shard, a.status, a.position) for a in everything
    ]
    assert all(not c.has_forecasts and not c.exponents for a in reply.answers for c in a.chunks)
    assert {(some.start, some.stop) for some in reply.added} == {
        UNITS[[stop for _, stop in UNITS].index(a.position)] for a in everything if a.status == OK
    }
    for some in reply.added:
        places = [i for i, a in enumerate(everything) if a.status == OK and a.position == some.stop]
        assert sorted(some.places) == places
        own = [everything[i] for i in places]
        for i, sums in enumerate(some.sums):
            chunks = [answer.chunks[i] for answer in own]
            if kind == "following":
                wanted = sum_shares([c.shares for c in chunks if c.shares is not None])
                assert sums.shares is not None
                assert sums.shares.keys() == wanted.keys()
                assert all(np.array_equal(sums.shares[key], wanted[key]) for key in wanted)
                assert sums.exponents.keys() == {answer.shard for answer in own}
                for answer in own:
                    for at, its in answer.chunks[i].exponents.items():
                        assert np.array_equal(sums.exponents[answer.shard][at], its)
                continue
            drawn = sum_samples([c.sampled for c in chunks if c.sampled is not None])
            assert sums.sampled is not None
            assert all(map(np.array_equal, sums.sampled, drawn))
            if kind == "numbers":
                assert isinstance(sums.total, dict)
                whole = [c.total for c in chunks if isinstance(c.total, dict)]
                of_trees = {key: its for part in whole for key, its in part.items()}
                assert np.array_equal(total(sums.total), total(of_trees))
            else:
                assert np.array_equal(sums.total, sum(c.total for c in chunks))


def test_a_sum_of_one_shard_is_none_where_it_goes_to_the_coordinator_alone() -> None:
    ((orders, answers),) = bundles("classes", [[0]], 1)
    reply = add_forecasts(orders, answers)
    assert reply.added == []
    assert arrays(reply) == arrays(Reply(answers))
    unasked = [replace(order, forecasts=False) for order in orders]
    assert add_forecasts(unasked, answers, least=1).added == []
