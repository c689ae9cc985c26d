"""Kernel classifiers by logistic and hinge loss are scikit-learn's linear models of the cells."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_matrix
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import OneHotEncoder
from sklearn.svm import LinearSVC

import dmondrian
from dmondrian import MondrianFeatures, MondrianKernelClassifier
from dmondrian.errors import ParameterError
from dmondrian.estimators import kernel_loss
from dmondrian.estimators.kernel_loss import Cells, LossPath, minimise
from dmondrian.joint_fit.cell_columns import leaves_of

T, LIFETIME, RIDGE = 8, 3.0, 0.5


def rows(n: int, n_classes: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    X = random.random((n, 2), dtype=np.float32)
    signal = np.sin(6.0 * X[:, 0]) + X[:, 1] + random.normal(0.0, 0.3, n)
    return X, np.digitize(signal, [0.3, 1.0][: n_classes - 1])


def model_of(loss: str, domain: str = "cube", **given: Any) -> MondrianKernelClassifier:
    chosen = {"lifetime": LIFETIME, "regularization": RIDGE, "random_state": 1, **given}
    return MondrianKernelClassifier(T, loss=loss, domain=domain, **chosen)  # type: ignore[arg-type]  # as named


def features_of(model: MondrianKernelClassifier, X: np.ndarray) -> csr_matrix:
    """Return the explicit features of rows that the model learned."""
    return csr_matrix(OneHotEncoder().fit_transform(leaves_of(model.forest_, X)) / np.sqrt(T))


def reference(loss: str, phi: csr_matrix, y: np.ndarray, w: np.ndarray | None) -> Any:
    """Return scikit-learn's model on explicit features."""
    if loss == "log_loss":
        made: Any = LogisticRegression(C=1.0 / RIDGE, tol=1e-8, max_iter=10_000)
    else:
        made = LinearSVC(C=1.0 / RIDGE, loss="hinge", tol=1e-9, max_iter=10**7, random_state=0)
    return made.fit(phi, y, sample_weight=w)


def objective(loss: str, found: np.ndarray, y: np.ndarray, w: np.ndarray, weights: Any) -> float:
    """Return |w|^2 / 2 + C sum of the losses of two classes."""
    signs = np.where(y == 1, 1.0, -1.0)
    margins = signs * found
    each = np.logaddexp(0.0, -margins) if loss == "log_loss" else np.maximum(0.0, 1.0 - margins)
    return float(0.5 * np.sum(np.square(weights)) + (w * each).sum() / RIDGE)


@pytest.mark.parametrize(
    ("loss", "n_classes", "weighted", "domain"),
    [
        pytest.param(
            *(loss, n_classes, weighted, domain),
            # Outside of the thorough run each two of the others meet once with each loss.
            marks=[pytest.mark.thorough] * (weighted ^ (n_classes == 3) ^ (domain == "cube")),
        )
        for loss in ("log_loss", "hinge")
        for n_classes in (2, 3)
        for weighted in (False, True)
        for domain in ("cube", "range")
    ],
)
def test_a_fit_is_scikit_learns(
    loss: str, n_classes: int, weighted: bool, domain: str, monkeypatch
) -> None:
    X, y = rows(150, n_classes)
    w = np.random.default_rng(1).choice([0.5, 1.0, 2.0], 150) if weighted else None
    model = model_of(loss, domain).fit(X, y, sample_weight=w)
    phi = features_of(model, X)
    if w is None:  # weights move the partitions of the range
        columns = MondrianFeatures(T, lifetime=LIFETIME, domain=domain, random_state=1)
        assert (phi @ phi.T != columns.fit_transform(X) @ columns.transform(X).T).nnz == 0
    same = reference(loss, phi, y, w)
    expected, found = same.decision_function(phi), model.decision_function(X)
    assert found == pytest.approx(expected, abs=1e-2 if loss == "hinge" else 1e-3)
    assert np.mean(model.predict(X) == same.predict(phi)) > 0.99
    if loss == "log_loss":
        assert model.predict_proba(X) == pytest.approx(same.predict_proba(phi), abs=1e-3)
    if n_classes == 2:
        own = np.ones(150) if w is None else w
        monkeypatch.setattr(kernel_loss, "HINGE_TOLERANCE", 1e-8)
        monkeypatch.setattr(kernel_loss, "_MOST_ITERATIONS", 10**6)
        columns = np.sort(phi.tolil().rows.tolist(), axis=1)
        optimum = minimise(loss, Cells(columns, phi.shape[1]), y, own, 2, RIDGE)
        bias = optimum.intercepts if loss == "hinge" else 0.0
        predicted = optimum.scores(Cells(columns, phi.shape[1]))[:, 0]
        mine = objective(loss, predicted, y, own, np.append(optimum.weights, bias))
        bias = same.intercept_ if loss == "hinge" else 0.0
        its = objective(loss, expected, y, own, np.append(same.coef_, bias))
        assert mine == pytest.approx(its, rel=1e-6)


def parameters(loss: str, domain: str = "cube", n_classes: int = 2) -> Any:
    return model_of(loss, domain)._forest_parameters(2, n_classes)


@pytest.mark.parametrize(
    ("loss", "n_classes"),
    [
        ("log_loss", 2),
        ("hinge", 3),
        *(
            pytest.param(*each, marks=pytest.mark.thorough)
            for each in (("log_loss", 3), ("hinge", 2))
        ),
    ],
)
def test_a_warm_start_finds_the_same_optimum_in_fewer_iterations(loss: str, n_classes: int) -> None:
    X, y = rows(300, n_classes)
    given = parameters(loss, "cube", n_classes), T, (X, y.astype(float), np.ones(300)), 1
    warm, cold = LossPath(*given), LossPath(*given, is_warm=False)
    counts = []
    for lifetime in np.geomspace(0.5, 8.0, 9):
        mine, its = warm.at(lifetime), cold.at(lifetime)
        assert warm.optimum is not None
        assert cold.optimum is not None
        assert np.array_equal(mine.columns, its.columns)
        tolerance = 2e-2 if loss == "hinge" else 2e-3
        found = warm.optimum.scores(mine)
        assert found == pytest.approx(cold.optimum.scores(its), abs=tolerance)
        counts.append((warm.optimum.n_iterations, cold.optimum.n_iterations))
    total = np.sum(counts[1:], axis=0)  # the first ones begin with nothing
    assert counts[0][0] == counts[0][1]
    assert total[0] < total[1]


def test_going_on_to_smaller_cells_changes_no_forecast(monkeypatch) -> None:
    X, y = rows(100, 2)
    path = LossPath(parameters("log_loss"), T, (X, y.astype(float), np.ones(100)), 1)
    before = path.at(2.0)
    assert path.optimum is not None
    predicted, started = path.optimum.scores(before), []
    monkeypatch.setattr(
        kernel_loss, "minimise", lambda *given: started.append(given) or path.optimum
    )
    after = path.at(3.0)
    assert after.n_columns > before.n_columns
    assert started[0][6].scores(after) == pytest.approx(predicted, abs=1e-12)


@pytest.mark.parametrize("loss", ["log_loss", "hinge"])
def test_validation_finds_a_lifetime(loss: str, tmp_path) -> None:
    X, y = rows(400, 3)
    labels = np.array(["low", "middle", "high"])[y]
    model = model_of(loss, lifetime="validation").fit(X[:300], labels[:300])
    path = model.lifetime_path_
    best = int(np.argmin(path.validation_errors))
    assert model.lifetime_ == path.chosen == path.lifetimes[best]
    assert path.validation_errors[best] < 0.8 * path.validation_errors[0]
    assert model.score(X[300:], labels[300:]) > 0.7
    fixed = model_of(loss, lifetime=path.chosen).fit(X[:300], labels[:300])
    assert np.array_equal(fixed.decision_function(X), model.decision_function(X))
    model.save(tmp_path / "model")
    for again in (dmondrian.load(tmp_path / "model"), pickle.loads(pickle.dumps(model))):
        assert np.array_equal(again.decision_function(X), model.decision_function(X))
        assert np.array_equal(again.predict(X), model.predict(X))
        with pytest.raises(ParameterError, match="optimum found for all rows together"):
            again.partial_fit(X, labels)
    assert np.array_equal(again.predict(X), model.predict(X))  # as it was
    ends = model_of(loss, lifetime="validation", max_lifetime=2.0).fit(X, labels)
    assert ends.lifetime_path_.lifetimes[-1] == 2.0


def test_the_hinge_has_no_probabilities() -> None:
    X, y = rows(80, 2)
    model = model_of("hinge").fit(X, y)
    assert not hasattr(model, "predict_proba")
    assert not hasattr(model, "predict_log_proba")
    assert (model.predict(X) == (model.decision_function(X) > 0.0)).all()
    assert model_of("log_loss").fit(X, y).predict_log_proba(X).shape == (80, 2)


def test_classes_without_learned_rows_are_improbable() -> None:
    X, y = rows(80, 3)
    for n_left in (2, 1):
        w = (y < n_left).astype(float)
        w[y >= n_left] = 0.0
        for loss in ("log_loss", "hinge"):
            model = model_of(loss).fit(X, y, sample_weight=w)
            assert (model.predict(X) < n_left).all()
        proba = model_of("log_loss").fit(X, y, sample_weight=w).predict_proba(X)
        assert proba[:, n_left:].max() < 1e-6


def test_what_squared_errors_alone_can_do_is_refused() -> None:
    X, y = rows(60, 2)
    for given in ({"fitting": "independent"}, {"solver": "sgd"}, {"lifetime": "average"}):
        with pytest.raises(ParameterError, match=r'is for loss="squared": with loss="hinge" use'):
            model_of("hinge", **given).fit(X, y)
    with pytest.raises(ParameterError, match="optimum found for all rows together"):
        model_of("log_loss").partial_fit(X, y, classes=[0, 1])
    with pytest.raises(ParameterError, match=r"learn the stream \(or a run on a cluster\)"):
        model_of("log_loss")._check_run()
    with pytest.raises(ValueError, match="loss"):
        model_of("quartic").fit(X, y)


@pytest.mark.parametrize(("fitted", "later"), [("hinge", "squared"), ("squared", "log_loss")])
def test_a_loss_that_is_set_after_the_fit_changes_no_answer(fitted: str, later: str) -> None:
    X = np.random.default_rng(0).random((60, 2))
    y = (X[:, 0] > X[:, 1]).astype(int)
    machine = MondrianKernelClassifier(4, loss=fitted, lifetime=3.0, random_state=0).fit(X, y)
    before = machine.decision_function(X), machine.predict(X), hasattr(machine, "predict_proba")
    machine.set_params(loss=later)
    after = machine.decision_function(X), machine.predict(X), hasattr(machine, "predict_proba")
    assert all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))
