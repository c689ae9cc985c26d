"""Blocks as columns are the blocks that they were made of."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dmondrian.data import Block
from dmondrian.data.block_table import BlockTable
from dmondrian.data.chunks import join

TEXTS = st.text(max_size=6)
PARTITIONS = st.lists(st.tuples(TEXTS, TEXTS, st.none() | TEXTS), max_size=2).map(tuple)
NUMBER = st.integers(0, 2**40)
BLOCKS = st.lists(
    st.builds(
        Block, NUMBER, NUMBER, st.sampled_from("abc"), NUMBER, NUMBER, NUMBER, NUMBER, NUMBER,
        st.integers(0, 2), st.sampled_from("xy"), PARTITIONS, st.sampled_from(["", "f"]),
    ),
    max_size=8,
)  # fmt: skip


@given(BLOCKS, BLOCKS, st.slices(8), st.sets(st.sampled_from("abcd")))
def test_it_is_the_sequence_that_it_was_made_of(blocks, others, some, uris):
    table = BlockTable.of(blocks)
    assert list(table) == blocks
    assert len(table) == len(blocks)
    assert table == tuple(blocks)
    assert hash(table) == hash(BlockTable.of(tuple(blocks)))
    assert list(dict.fromkeys(table.uris())) == list(dict.fromkeys(block.uri for block in blocks))
    assert [table[i] for i in range(-len(blocks), len(blocks))] == blocks * 2
    part = table[some]
    for one, want in (
        (part, blocks[some]),
        (table + others, blocks + others),
        (part + others, blocks[some] + others),
        (table.of_files(uris), [block for block in blocks if block.uri in uris]),
        (table.where(np.arange(len(blocks)) % 2 == 0), blocks[::2]),
        (pickle.loads(pickle.dumps(part)), blocks[some]),
    ):
        assert list(one) == want
        assert one.n_rows == sum(block.rows for block in want)
        assert set(one.uris()) == {block.uri for block in want}
        assert dict(one.fingerprints()).keys() == {block.uri for block in want}
        assert one.n_files == len({block.uri for block in want})
    assert (table == [*blocks, *others]) == (not others)


def test_a_place_outside_is_an_error() -> None:
    with pytest.raises(IndexError):
        BlockTable.of([])[0]


def test_files_that_moved_keep_all_but_their_places() -> None:
    blocks = _of_files(3)
    table = BlockTable.of(blocks).moved({blocks[1].uri: ("new", "later")})
    assert [(block.uri, block.stamp) for block in table][1] == ("new", "later")
    assert [table[0], table[2]] == [blocks[0], blocks[2]]
    assert table[1].fingerprint == blocks[1].fingerprint


def test_a_part_that_is_sent_takes_its_own_files_along_alone() -> None:
    table = BlockTable.of(_of_files(10_000))
    assert len(pickle.dumps(table[5:6])) < 2_000 < len(pickle.dumps(table)) / 100


def test_chunks_are_those_of_the_blocks_one_by_one() -> None:
    blocks = _of_files(600)
    assert join(BlockTable.of(blocks), {500, 700}) == join(blocks, {500, 700})


def _of_files(n: int) -> list[Block]:
    """Return a block of 100 rows of each of some files, as a stream that is followed has them."""
    return [
        Block(
            i, 100 * i, f"/data/{i:06d}.parquet", 0, 100, 0, i, 100, 9_000, f"{i}", (), f"{i:064}"
        )
        for i in range(n)
    ]
