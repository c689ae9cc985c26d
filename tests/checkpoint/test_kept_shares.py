"""What members forecast is kept to the byte, read in any cut, and refused where it is damaged."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dmondrian.checkpoint import Run, kept_shares
from dmondrian.checkpoint.kept_shares import (
    KeptShares,
    Piece,
    SharesWriter,
    covered,
    decode,
    encode,
    names_of,
)
from dmondrian.errors import CheckpointError, CorruptError
from dmondrian.store import Store

ROW_BYTES = 8 * (3 * 4 + 2)
ABOUT = {"algorithm": "amf-regressor", "parameters": {}, "shards": [[0, 2]], "plan": None}


def shares(n: int, seed: int = 0) -> dict[int, np.ndarray]:
    draw = np.random.default_rng(seed)
    found: dict[int, np.ndarray] = {
        kind: draw.integers(-(2**62), 2**62, (n, 4)) for kind in (-1, 0, 1)
    }
    return {**found, -2: draw.normal(size=(n, 2))}


def some(whole: dict[int, np.ndarray], part: slice) -> dict[int, np.ndarray]:
    return {key: array[part] for key, array in whole.items()}


def assert_same(found: dict[int, np.ndarray], expected: dict[int, np.ndarray]) -> None:
    assert set(found) == set(expected)
    for key, array in expected.items():
        assert found[key].dtype == array.dtype
        np.testing.assert_array_equal(found[key], array)


def test_a_piece_is_read_as_it_was_written() -> None:
    ages = {40: np.random.default_rng(1).random((2, 13)), 48: np.zeros((2, 13))}
    found = decode(encode(Piece(33, shares(20), ages)))
    assert (found.start, found.stop) == (33, 53)
    assert_same(found.shares, shares(20))
    assert sorted(found.exponents) == [40, 48]
    for rows, own in ages.items():
        np.testing.assert_array_equal(found.exponents[rows], own)


CUTS = st.lists(st.integers(1, 60), max_size=4)


@settings(max_examples=30)
@given(
    attempts=st.lists(st.tuples(st.integers(0, 60), CUTS), max_size=3),
    is_written=st.lists(st.booleans(), min_size=4, max_size=4),
    asked=st.tuples(st.integers(0, 59), st.integers(1, 60)),
    joined=st.sampled_from([(64, 60), (2, 12), (3, 7)]),
)
def test_any_cuts_and_attempts_that_went_back_are_read_in_any_cuts(
    attempts: list[tuple[int, list[int]]],
    is_written: list[bool],
    asked: tuple[int, int],
    joined: tuple[int, int],
) -> None:
    whole, n, reached = shares(60), 60, 0
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(kept_shares, "MOST_PIECES", joined[0])
        patch.setattr(kept_shares, "PIECE_BYTES", joined[1] * ROW_BYTES)
        run = Run.create(folder, ABOUT)
        for begin, cuts in [*attempts, (n, [n])]:
            at = min(begin, reached)  # a checkpoint of an earlier attempt
            writer = SharesWriter(run, at)
            for stop, now in zip(
                sorted({cut for cut in cuts if cut > at}), is_written, strict=False
            ):
                noted = {row: np.full((2, 3), float(row)) for row in range(at + 1, stop + 1)}
                writer.add(some(whole, slice(at, stop)), noted)
                at = stop
                if now:
                    writer.write()
            writer.write()
            reached = max(reached, at)
        kept = KeptShares([run, run])
        assert kept.n_rows == n
        start, stop = asked[0], max(asked[1], asked[0] + 1)
        for found in kept.of(start, stop - start):
            assert_same(found, some(whole, slice(start, stop)))
        assert kept.exponents_at(stop).tolist() == [[float(stop)] * 3] * 4


def test_pieces_of_many_looks_are_joined_and_who_is_killed_leaves_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_shares, "MOST_PIECES", 4)
    monkeypatch.setattr(kept_shares, "PIECE_BYTES", 20 * ROW_BYTES)
    run, whole = Run.create(tmp_path / "run", ABOUT), shares(120)
    most, delete = 0, Store.delete
    for look in range(60):
        writer = SharesWriter(run, 2 * look)
        ages = {row: np.full((2, 3), float(row)) for row in (2 * look + 1, 2 * look + 2)}
        writer.add(some(whole, slice(2 * look, 2 * look + 2)), ages)
        if look % 5 == 0:
            monkeypatch.setattr(Store, "delete", lambda *_: None)
        writer.write()
        monkeypatch.setattr(Store, "delete", delete)
        most = max(most, len(names_of(run)))
    assert most <= 120 // 10 + 2 * 4
    kept = KeptShares([run])
    kept.check()
    assert kept.n_rows == 120
    assert_same(kept.of(0, 120)[0], whole)
    assert [kept.exponents_at(row)[0, 0] for row in range(1, 121)] == [
        float(i) for i in range(1, 121)
    ]
    damaged = names_of(run)[-1]
    run.store.put(damaged, b"damaged")
    for look in range(60, 66):
        writer = SharesWriter(run, 2 * look)
        writer.add(some(shares(132), slice(2 * look, 2 * look + 2)), {})
        writer.write()
    assert damaged in names_of(run)


def test_rows_that_are_not_there_are_named(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", ABOUT)
    assert covered([]) == 0
    assert covered([(0, 5), (3, 9), (12, 20)]) == 9
    writer = SharesWriter(run, 7)
    writer.add(shares(5), {})
    writer.add(shares(0), {})
    writer.write()
    writer.write()
    assert names_of(run) == ["shares/000000000000007-000000000000012"]
    kept = KeptShares([run])
    assert kept.n_rows == 0
    assert_same(kept.of(8, 3)[0], some(shares(5), slice(1, 4)))
    with pytest.raises(CheckpointError, match="of row 12"):
        kept.of(8, 6)
    with pytest.raises(CorruptError, match="lacks the weights"):
        kept.exponents_at(9)
    data = run.store.get(names_of(run)[0])
    run.store.put("shares/000000000000000-000000000000009", data)
    with pytest.raises(CorruptError, match="other rows than its name"):
        KeptShares([run]).of(0, 1)


def signed(data: bytes) -> bytes:
    return data + hashlib.sha256(data).digest()


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-1],
        lambda data: b"",
        lambda data: data[:40] + bytes([data[40] ^ 1]) + data[41:],
        lambda data: signed(b"OTHER" + data[5:-32]),
        lambda data: signed(data[:-40]),  # fewer numbers than the header has
        lambda data: signed(data[:-32].replace(b'"rows": 20', b'"rows": 21')),
        lambda data: signed(data[:-32].replace(b'"rows": 20', b'"rows": -1')),
        lambda data: signed(data[:-32].replace(b'"int64"', b'"int65"')),
        lambda data: signed(data[:-32].replace(b'"ages": []', b'"ages": 12')),
        lambda data: signed(data[:16] + b"[" * 5000 + data[16:-32]),
    ],
)
def test_damaged_pieces_are_refused(damage: Callable[[bytes], bytes]) -> None:
    data = encode(Piece(0, shares(20), {}))
    with pytest.raises(CorruptError):
        decode(damage(data))
