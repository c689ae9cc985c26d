"""What is kept of a stream: bounded, a uniform sample and the newest, by the numbers of rows."""

from __future__ import annotations

import itertools
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dmondrian.boosting.boosting_kernels import MOST_ROWS
from dmondrian.boosting.kept_rows import KeptRows, n_newest_of
from dmondrian.ensemble.rows.labelled_rows import LabelledRows
from dmondrian.errors import CorruptError
from tests.reference.draws import mix64

MOST = 64  # rows of each half, which leave in steps of 8


def stream(n: int) -> LabelledRows:
    numbers = np.arange(n)
    X = np.stack([numbers, -numbers], axis=1).astype(np.float32)
    return LabelledRows(X, (numbers % 3).astype(np.float64), 1.0 + numbers % 5)


def kept_of(n: int, seed: int = 7, cuts: list[int] | None = None) -> KeptRows:
    kept, rows = KeptRows(2, seed, MOST), stream(n)
    for a, b in itertools.pairwise([0, *(cuts or []), n]):
        kept.add(rows.taken(slice(a, b)))
    return kept


@pytest.mark.parametrize("n", [0, 1, 63, 64, 71, 72, 128, 136, 137, 500])
def test_rows_are_the_newest_and_those_of_the_smallest_keys(n: int) -> None:
    found = kept_of(n).rows()
    n_left = max(0, n // 8 * 8 - 64)
    keys = {t: mix64(mix64(t) ^ 7 ^ 0x8B0057EDC0DE2A11) for t in range(n_left)}
    sampled = sorted(sorted(keys, key=lambda t: keys[t])[:64])
    expected = stream(n).taken(np.array([*sampled, *range(n_left, n)], int))
    for own, its in zip(found, expected, strict=True):
        np.testing.assert_array_equal(own, its)
    assert len(found.y) <= 64 + 64 + 7


@settings(max_examples=50)
@given(n=st.integers(0, 400), data=st.data())
def test_cuts_of_calls_change_nothing(n: int, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, n), max_size=6)))
    again = kept_of(n, cuts=cuts)
    assert again.to_json() == kept_of(n).to_json()
    part = data.draw(st.integers(0, n))
    other = KeptRows(2, 7, MOST)
    other.load_json(json.loads(json.dumps(kept_of(part).to_json())), part, 3)
    other.add(stream(n).taken(slice(part, n)))
    assert other.to_json() == again.to_json()


def test_each_old_row_is_as_likely_to_be_kept() -> None:
    n, n_seeds = 300, 300
    counts = np.zeros(n)
    for seed in range(n_seeds):
        old = kept_of(n, seed).rows().X[:64, 0].astype(int)
        counts[old] += 1
    left = counts[: n // 8 * 8 - 64]
    share = 64 / len(left)
    assert counts[len(left) :].sum() == 0
    z = (left - n_seeds * share) / np.sqrt(n_seeds * share * (1 - share))
    assert np.abs(z).max() < 4.0
    assert 0.8 < (z**2).mean() < 1.2


def test_wide_rows_are_kept_in_bounded_memory() -> None:
    widths = (1, 64, 65, 256, 257, 2000, 10**6)
    assert [n_newest_of(d) for d in widths] == [32768, 32768, 16384, 8192, 4096, 1024, 256]
    most = n_newest_of(1)
    assert 2 * most + most // 8 <= MOST_ROWS


def changed(**values: Any) -> dict[str, Any]:
    return {**kept_of(300).to_json(), **values}


@pytest.mark.parametrize(
    "stored",
    [
        None,
        {},
        {k: v for k, v in changed().items() if k != "numbers"},
        changed(X=""),
        changed(w=[0.0] * 132),
        changed(y=[3.0] * 132),
        changed(y=[0.5] * 132),
        changed(numbers=list(range(63, -1, -1))),
        changed(numbers=list(range(180, 244))),
        changed(numbers=list(range(-1, 63))),
        changed(numbers="?"),
    ],
)
def test_what_could_not_be_kept_is_refused(stored: Any) -> None:
    kept = KeptRows(2, 7, MOST)
    kept.load_json(changed(), 300, 3)
    with pytest.raises(CorruptError):
        kept.load_json(stored, 300, 3)
