"""An estimator whose rows all wait for their labels refuses, and names what to do."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dmondrian import AMFClassifier, AMFRegressor, load
from dmondrian.drift.waiting_rows import (
    LONGEST_ADVISED,
    delay_for_later,
    longest_delay,
    waiting_in_words,
)
from dmondrian.errors import ParameterError

X = np.random.default_rng(0).random((40, 2))
Y = (X[:, 0] > 0.5).astype(int)
NOTHING = r"no row is learned yet: all 40 rows .* \(delay = 50\).* 10 rows more.* at most 10,"


@pytest.mark.parametrize("kind", [AMFClassifier, AMFRegressor])
def test_fit_warns_where_all_rows_wait_and_predictions_name_what_to_do(kind: Any) -> None:
    with pytest.warns(UserWarning, match=NOTHING):
        model = kind(2, drift="follow", delay=50, random_state=0).fit(X, Y)
    assert model.n_waiting_ == 40
    with pytest.raises(ParameterError, match=NOTHING):
        model.predict(X)
    model.partial_fit(X[:10], Y[:10])  # as advised
    assert model.n_waiting_ == 0
    assert len(model.predict(X)) == 40


def test_fit_warns_of_nothing_where_some_rows_are_learned_nor_do_calls_of_a_stream() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = AMFClassifier(2, drift="follow", delay=30, random_state=0).fit(X, Y)
        AMFClassifier(2, drift="follow", delay=50).partial_fit(X, Y, classes=[0, 1])
    assert model.n_waiting_ == 10
    assert AMFClassifier(2).fit(X, Y).n_waiting_ == 0


def test_a_model_is_saved_again_once_more_rows_wait(tmp_path: Path) -> None:
    model = AMFClassifier(2, drift="follow", delay=30, random_state=0).fit(X, Y)
    model.save(tmp_path / "m")
    model.partial_fit(X[:5], Y[:5]).save(tmp_path / "m")
    assert load(tmp_path / "m").n_waiting_ == 15
    assert load(f"{tmp_path / 'm'}@40").n_waiting_ == 10


def test_counts_and_words() -> None:
    assert waiting_in_words({"learned": 64, "waiting": 0}) == ""
    assert waiting_in_words({"learned": 64, "waiting": 1}) == (
        "64 rows learned by trees, 1 waits for its label"
    )
    assert [longest_delay(n) for n in (0, 3, 4, 4003)] == [1, 1, 1, 1000]


@given(n_trained=st.integers(0, 10**7), n_later=st.none() | st.integers(1, 10**7))
def test_the_delay_that_is_advised_leaves_few_rows_that_wait(
    n_trained: int, n_later: int | None
) -> None:
    delay = delay_for_later(n_trained, n_later)
    longest = min(longest_delay(n_trained), LONGEST_ADVISED, n_later or LONGEST_ADVISED)
    assert longest // 2 < delay <= longest
    fewest = min(n_trained % one for one in range(longest // 2 + 1, longest + 1))
    assert n_trained % delay <= max(fewest, longest // 32)


def test_it_is_the_rows_of_the_file_where_these_are_few() -> None:
    assert delay_for_later(60_000, 12) == 12
    assert delay_for_later(3) == 1
    assert delay_for_later(2_100) == 233
