"""An estimator whose rows all wait for their labels says so, and what to do."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dmondrian import AMFClassifier, AMFRegressor, load
from dmondrian.drift.waiting_rows import longest_delay, waiting_in_words
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
