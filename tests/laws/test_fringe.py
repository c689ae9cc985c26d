"""The laws of what an online random forest draws: candidate features, and streams of rows."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from dmondrian import OnlineRandomForestClassifier

TREES = 3000
D = 5


@pytest.fixture(scope="module")
def roots() -> tuple[list[np.ndarray], OnlineRandomForestClassifier]:
    """Features of each tree's root, which are drawn with its first structure row."""
    X = np.random.default_rng(0).random((40, D), dtype=np.float32)
    forest = OnlineRandomForestClassifier(
        TREES, candidate_rate=1.5, structure_share=0.3, ignore_share=0.2, min_samples_leaf=100.0,
        random_state=0,
    ).fit(X, np.arange(40) % 2)  # fmt: skip
    section = forest.forest_.parameters.fringe.section(2)
    found = []
    for tree in forest.forest_.state()[1]:
        block = tree["candidates"]
        if len(block):
            found.append(block[2:].reshape(-1, section)[1:, 0].astype(int))
    return found, forest


def test_candidates_are_one_and_a_poisson_number_up_to_all(roots) -> None:
    counts = np.bincount([len(features) for features in roots[0]], minlength=D + 1)[1:]
    law = [math.exp(-1.5) * 1.5**k / math.factorial(k) for k in range(D - 1)]
    expected = np.array([*law, 1.0 - sum(law)]) * len(roots[0])
    assert stats.chisquare(counts, expected).pvalue > 1e-3


def test_each_set_of_features_is_as_likely(roots) -> None:
    pairs = [features for features in roots[0] if len(features) == 2]
    counts = np.zeros((D, D))
    for first, second in pairs:
        counts[first, second] += 1
    assert stats.chisquare(counts[np.triu_indices(D, 1)]).pvalue > 1e-3
    assert not counts[np.tril_indices(D)].any()


def test_rows_go_into_streams_by_their_shares(roots) -> None:
    n_estimation = np.array([roots[1].nodes(t)["n_rows"][0] for t in range(TREES)])
    # Rows are drawn on their own: a binomial number of 40 with probability 1 - 0.3 - 0.2.
    counts = np.bincount(n_estimation.astype(int), minlength=41)
    law = stats.binom(40, 0.5).pmf(np.arange(41)) * TREES
    is_common = law > 10
    observed = [*counts[is_common], counts[~is_common].sum()]
    assert stats.chisquare(observed, [*law[is_common], law[~is_common].sum()]).pvalue > 1e-3
