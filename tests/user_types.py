"""A user's program, for type checkers alone: what they know of the public interface.

``mypy`` and ``basedpyright`` read it in ``.ci/run``, and each mistake in it has to be found: an
unused ``ignore`` is an error.
"""

from __future__ import annotations

from typing import Any, assert_type

import numpy as np

from dmondrian import AMFClassifier, AMFRegressor, DataError, MondrianForestRegressor, load
from dmondrian.distributed import evaluate, score, train
from dmondrian.frames import FrameModel


def learn(X: np.ndarray, y: np.ndarray) -> None:
    """Fit, predict, and read what was learned."""
    forest = AMFClassifier(n_estimators=2, drift="follow", delay=3, random_state=0)
    assert_type(forest.fit(X, y), AMFClassifier)
    assert_type(forest.partial_fit(X, y, classes=[0, 1]), AMFClassifier)
    forest.fit(X, y).predict_proba(X).argmax(axis=1)
    forest.classes_.tolist()
    assert_type(forest.n_classes_, int)
    assert_type(forest.n_features_in_, int)
    forest.feature_importances_.sum()
    lower, upper = MondrianForestRegressor().fit(X, y).predict_interval(X, coverage=0.9)
    (upper - lower).mean()
    AMFRegressor(n_jobs=-1).fit(X, y).score(X, y)


def mistakes(X: np.ndarray) -> None:
    """Mistakes that are found before the program runs."""
    AMFClassifier(drift="folow")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    AMFClassifier(trees=3)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    AMFClassifier().fit(X)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    # mypy has no types of scikit-learn's base classes, where any attribute may be.
    AMFClassifier().feature_importance_  # pyright: ignore[reportAttributeAccessIssue]  # noqa: B018


def run(data: str, run: str) -> None:
    """Train on a cluster, score, evaluate and load."""
    train(AMFClassifier(n_estimators=2), data, target="label", run=run)
    score(run, data, "scores")
    evaluate(run, data)
    try:
        assert_type(load(run), Any)
        FrameModel(run).predict_proba({})
    except DataError as error:
        assert_type(error, DataError)
