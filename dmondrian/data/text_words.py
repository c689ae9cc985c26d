"""Words of a text column as features: their hashes, in a number of columns that is fixed before.

Relies on scikit-learn's `HashingVectorizer` (Weinberger et al., 2009, without signs: a tree splits
on the presence of a word, and two words of one feature add up to nothing else). Promises the same
features for the same text in every process and version: MurmurHash3 of lower-case words, whatever
texts come later; nothing is learned from the data, so that a stream may have new words for ever.

A word is two or more letters or digits. Runs of words up to a given length are features too.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

MOST_FEATURES = 4096
"""Of a column: every node of every tree holds a box of all features."""

LONGEST_RUN = 3
"""Words of a run that is a feature."""


@functools.lru_cache(maxsize=16)
def _vectorizer(n_features: int, longest: int) -> Any:
    # Here, as a model is described without scikit-learn.
    from sklearn.feature_extraction.text import HashingVectorizer

    return HashingVectorizer(
        n_features=n_features,
        ngram_range=(1, longest),
        norm=None,
        alternate_sign=False,
        binary=True,
        dtype=np.float32,
    )


def word_features(
    texts: Sequence[str], n_features: int, longest: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return which features each text has.

    Parameters
    ----------
    texts : sequence of n str
    n_features : int
        Features that words are hashed to.
    longest : int
        Words of the longest run that is a feature.

    Returns
    -------
    starts : int64 array of shape (n + 1,)
        The features of text i are ``features[starts[i]:starts[i + 1]]``.
    features : int64 array
        Numbers of features, each once for a text.
    """
    if not len(texts):
        return np.zeros(1, np.int64), np.zeros(0, np.int64)
    counts = _vectorizer(n_features, longest).transform(texts)
    return counts.indptr.astype(np.int64), counts.indices.astype(np.int64)
