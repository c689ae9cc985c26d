"""Estimators within those of scikit-learn: routed weights, searches and stacks, also on Dask."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import joblib
import numpy as np
import pytest
import sklearn
from dask.distributed import Client, LocalCluster
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import make_classification
from sklearn.ensemble import StackingClassifier
from sklearn.inspection import permutation_importance
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler

from dmondrian import AMFClassifier, MondrianFeatures, OnlineRandomForestClassifier

X, Y = make_classification(400, 5, n_informative=3, n_redundant=0, random_state=0, shuffle=False)
MIXED = np.random.default_rng(0).permutation(len(Y))
X, Y = X[MIXED], Y[MIXED]
WEIGHTS = np.where(Y == 1, 5.0, 1.0)
FOREST = AMFClassifier(3, random_state=0, feature_scales=None)


@pytest.fixture
def routing() -> Iterator[None]:
    with sklearn.config_context(enable_metadata_routing=True):
        yield


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with (
        LocalCluster(n_workers=1, threads_per_worker=2, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        yield client


@pytest.mark.usefixtures("routing")
def test_weights_are_routed_to_the_forest_of_a_pipeline() -> None:
    asking = sklearn.clone(FOREST).set_fit_request(sample_weight=True)
    pipe = make_pipeline(MinMaxScaler(), asking)
    routed = pipe.fit(X, Y, sample_weight=WEIGHTS).predict_proba(X)
    scaled = MinMaxScaler().fit_transform(X)
    assert np.array_equal(routed, asking.fit(scaled, Y, WEIGHTS).predict_proba(scaled))
    found = cross_validate(
        asking.set_score_request(sample_weight=True), X, Y, params={"sample_weight": WEIGHTS}, cv=2
    )
    assert (found["test_score"] > 0.5).all()


@pytest.mark.usefixtures("routing")
def test_a_budget_is_routed_too() -> None:
    asking = sklearn.clone(FOREST).set_fit_request(max_rows=True)
    pipe = make_pipeline(MinMaxScaler(), asking).fit(X, Y, max_rows=100)
    assert pipe[-1].n_samples_fit_ == 100


@pytest.mark.parametrize(
    "outer",
    [
        GridSearchCV(
            make_pipeline(MinMaxScaler(), FOREST), {"amfclassifier__n_estimators": [1, 3]}, cv=2
        ),
        CalibratedClassifierCV(FOREST, cv=2),
        StackingClassifier(
            [("amf", FOREST), ("online", OnlineRandomForestClassifier(3, random_state=0))],
            LogisticRegression(),
            cv=2,
        ),
    ],
    ids=lambda outer: type(outer).__name__,
)
def test_a_forest_within_others_is_the_same_on_dask(outer: Any, client: Client) -> None:
    here = sklearn.clone(outer).fit(X, Y)
    with joblib.parallel_config(backend="dask"):
        there = sklearn.clone(outer).set_params(n_jobs=2).fit(X, Y)
    # A logistic regression on top is the same only to the last bits but a few.
    method = "transform" if isinstance(outer, StackingClassifier) else "predict_proba"
    assert np.array_equal(getattr(here, method)(X), getattr(there, method)(X))
    assert (here.predict(X) == Y).mean() > 0.8


def test_permuted_columns_are_worth_what_the_forest_uses() -> None:
    forest = sklearn.clone(FOREST).fit(X, Y)
    found = permutation_importance(forest, X, Y, n_repeats=3, random_state=0).importances_mean
    noise = [3, 4]  # the columns behind the informative ones
    assert found.argmax() not in noise
    assert forest.feature_importances_.argmax() not in noise


def test_features_of_partitions_are_a_step_of_a_pipeline() -> None:
    pipe = make_pipeline(MondrianFeatures(20, random_state=0), LogisticRegression())
    assert pipe.fit(X, Y).score(X, Y) > 0.8
    names = pipe[0].get_feature_names_out()
    assert len(names) == pipe[0].n_columns_
    assert names[0] == "mondrianfeatures0"
