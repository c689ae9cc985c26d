"""The estimators of the Mondrian kernel: lifetimes that are chosen, streams, and refusals."""

from __future__ import annotations

import json

import numpy as np
import pytest
from scipy.sparse import csr_matrix
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import Ridge

import dmondrian
from dmondrian import MondrianFeatures, MondrianKernelClassifier, MondrianKernelRegressor
from dmondrian.errors import DataError, ParameterError
from dmondrian.joint_fit.lifetime_sweep import prior_of


def rows(n: int = 300, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    X = random.random((n, 2), dtype=np.float32)
    return X, np.sin(6.0 * X[:, 0]) + X[:, 1] + random.normal(0.0, 0.1, n)


@pytest.mark.parametrize("domain", ["cube", "range"])
def test_features_are_sparse_and_columns_stay(domain: str) -> None:
    X, _ = rows()
    whole = MondrianFeatures(7, lifetime=3.0, domain=domain, random_state=0)
    phi = whole.fit_transform(X)
    assert isinstance(phi, csr_matrix)
    assert phi.shape == (300, whole.n_columns_)
    assert (np.diff(phi.indptr) == 7).all()
    assert (phi.data == 1.0 / np.sqrt(7)).all()
    assert (phi.getnnz(axis=0) > 0).all()
    assert len(whole.get_feature_names_out()) == whole.n_columns_
    parts = MondrianFeatures(7, lifetime=3.0, domain=domain, random_state=0)
    early = parts.partial_fit(X[:1]).transform(X[:1])
    for start, stop in ((1, 40), (40, 41), (41, 300)):
        parts.partial_fit(X[start:stop])
    assert early.indices.tolist() == list(range(7))
    assert parts.transform(X[:1]).indices.tolist() == list(range(7))
    assert (parts.transform(X) != phi).nnz == 0
    order = [phi[r].indices.max() for r in range(300)]
    assert np.maximum.accumulate(order)[-1] == whole.n_columns_ - 1


def test_unseen_cells_of_the_cube_have_no_entry() -> None:
    X, _ = rows(20)
    fitted = MondrianFeatures(50, lifetime=8.0, domain="cube", random_state=0).fit(X)
    others = fitted.transform(rows(50, seed=1)[0])
    counts = np.diff(others.indptr)
    assert (counts < 50).any()
    assert others.shape[1] == fitted.n_columns_
    everyone = fitted.partial_fit(rows(50, seed=1)[0]).transform(rows(50, seed=1)[0])
    assert (np.diff(everyone.indptr) == 50).all()
    assert (everyone[:, : others.shape[1]] != others).nnz == 0


def test_ridge_on_features_is_the_exact_regressor() -> None:
    X, y = rows()
    given = {"lifetime": 2.0, "domain": "cube", "random_state": 3}
    phi = MondrianFeatures(20, **given).fit_transform(X)
    ridge = Ridge(0.5, fit_intercept=False, solver="cholesky").fit(phi.toarray(), y - y.mean())
    model = MondrianKernelRegressor(20, regularization=0.5, **given).fit(X, y)
    assert model.predict(X) == pytest.approx(ridge.predict(phi) + y.mean(), abs=1e-5)


@pytest.mark.parametrize("solver", ["cholesky", "sgd"])
@pytest.mark.parametrize("domain", ["cube", "range"])
def test_validation_finds_a_lifetime_and_is_a_fit_there(solver: str, domain: str) -> None:
    X, y = rows()
    given = {"solver": solver, "domain": domain, "random_state": 1, "n_passes": 2}
    model = MondrianKernelRegressor(10, lifetime="validation", **given).fit(X, y)
    path = model.lifetime_path_
    assert model.lifetime_ == path.chosen
    best = int(np.argmin(path.validation_errors))
    assert path.lifetimes[best] <= path.chosen
    assert path.chosen <= np.append(path.lifetimes, np.inf)[best + 1]
    assert path.validation_errors[best] < 0.2 * path.validation_errors[0]
    same = MondrianKernelRegressor(10, lifetime=path.chosen, **given).fit(X, y)
    assert np.array_equal(same.predict(X), model.predict(X))


def test_marginal_likelihood_is_of_the_label_in_any_unit() -> None:
    X, y = rows()
    given = {"lifetime": "marginal_likelihood", "max_columns": 300, "random_state": 1}
    model = MondrianKernelRegressor(10, **given).fit(X, y)
    other = MondrianKernelRegressor(10, **given).fit(X, 1000.0 * y - 3.0)
    assert other.lifetime_ == model.lifetime_
    path = model.lifetime_path_
    assert path.n_columns.max() <= 300
    assert path.validation_errors is None
    assert path.log_likelihoods.max() > path.log_likelihoods[0] + 50.0
    assert np.mean((model.predict(X) - y) ** 2) < 0.1 * y.var()


def test_the_prior_of_lifetimes_goes_on_to_the_end() -> None:
    times = np.array([0.0, 1.0, 2.0])
    assert prior_of(times, "uniform", 5.0) == pytest.approx([1.0, 1.0, 3.0])
    assert prior_of(times, "log_uniform", 5.0) == pytest.approx(np.log([10.0, 2.0, 2.5]))


@pytest.mark.parametrize("prior", ["log_uniform", "uniform"])
def test_an_average_is_the_posterior_mean_of_the_fits(prior: str, tmp_path) -> None:
    X, y = rows(60)
    given = {"domain": "cube", "max_lifetime": 4.0, "regularization": 0.1, "random_state": 2}
    model = MondrianKernelRegressor(5, lifetime="average", lifetime_prior=prior, **given).fit(X, y)
    path, asked = model.lifetime_path_, rows(50, seed=5)[0]
    assert path.shares.sum() == pytest.approx(1.0)
    expected = np.zeros(len(asked))
    ends = np.append(path.lifetimes[1:], 4.0)
    for share, start, end in zip(path.shares, path.lifetimes, ends, strict=True):
        if share > 1e-12:
            at = MondrianKernelRegressor(5, lifetime=0.5 * (start + end), **given)
            expected += share * at.fit(X, y).predict(asked)
    assert model.predict(asked) == pytest.approx(expected, abs=1e-6)
    model.save(tmp_path / "model")
    assert np.array_equal(dmondrian.load(tmp_path / "model").predict(asked), model.predict(asked))


def test_a_stream_turns_from_exact_to_batches() -> None:
    X, y = rows(500)
    given = {"lifetime": 4.0, "max_columns": 150, "random_state": 0}
    whole = MondrianKernelRegressor(8, **given).partial_fit(X, y)
    parts = MondrianKernelRegressor(8, **given)
    exact = []
    for start in range(0, 500, 20):
        parts.partial_fit(X[start : start + 20], y[start : start + 20])
        exact.append(parts.forest_.exact is not None)
    assert exact[0]
    assert not exact[-1]
    assert np.array_equal(whole.predict(X), parts.predict(X))
    fitted = MondrianKernelRegressor(8, **given).fit(X, y)
    errors = [np.mean((m.predict(X) - y) ** 2) for m in (fitted, whole)]
    assert errors[0] < errors[1] < 0.5 * y.var()


@pytest.mark.parametrize("is_weighted", [False, True])
def test_a_classifier_turns_to_batches_at_the_same_row_however_rows_come(is_weighted: bool) -> None:
    X, y = rows(400)
    labels = np.digitize(y, [0.0, 1.0])
    w = np.random.default_rng(1).choice([0.0, 0.5, 2.0], len(y)) if is_weighted else None
    given = {"lifetime": 4.0, "max_columns": 60, "batch_size": 32, "random_state": 0}
    reported = set()
    for cuts in ([], [1, 2, 3], [37, 64, 211], list(range(10, 400, 10))):
        model, kinds = MondrianKernelClassifier(6, **given), set()
        for part in np.split(np.arange(400), cuts):
            own = None if w is None else w[part]
            model.partial_fit(X[part], labels[part], sample_weight=own, classes=[0, 1, 2])
            kinds.add(model.forest_.exact is None)
        header, trees = model.forest_.state()
        arrays = (tree[name].tobytes() for tree in trees for name in sorted(tree))
        reported.add((json.dumps(header, sort_keys=True), b"".join(arrays)))
    assert kinds == {False, True}  # exact in the first parts, not in the last
    assert len(reported) == 1


@pytest.mark.parametrize("solver", ["cholesky", "sgd"])
def test_classes_are_fitted_as_ones_and_zeros(solver: str, tmp_path) -> None:
    X, y = rows(400)
    labels = np.array(["low", "middle", "high"])[np.digitize(y, [0.0, 1.0])]
    model = MondrianKernelClassifier(20, lifetime=3.0, solver=solver, random_state=0)
    model.fit(X[:300], labels[:300])
    proba, scores = model.predict_proba(X[300:]), model.decision_function(X[300:])
    assert proba.sum(axis=1) == pytest.approx(1.0)
    assert proba.min() > 0.0
    assert (proba.argmax(axis=1) == scores.argmax(axis=1)).all()
    assert model.score(X[300:], labels[300:]) > 0.75
    one = MondrianKernelRegressor(20, lifetime=3.0, solver=solver, random_state=0)
    one.fit(X[:300], labels[:300] == "low")
    low = list(model.classes_).index("low")
    assert one.predict(X[300:]) == pytest.approx(scores[:, low], abs=1e-6)
    model.save(tmp_path / "model")
    assert np.array_equal(dmondrian.load(tmp_path / "model").predict_proba(X[300:]), proba)


def test_two_classes_are_decided_in_the_order_of_their_probabilities() -> None:
    X, y = rows(300)
    model = MondrianKernelClassifier(20, solver="sgd", regularization=1.0, random_state=0)
    model.fit(X, np.digitize(y, [0.0]))
    asked = np.vstack([X, X * 3.0, X + 100.0])  # and where little or nothing was learned
    proba, decision = model.predict_proba(asked)[:, 1], model.decision_function(asked)
    assert len(np.unique(proba)) > 300
    assert (np.diff(decision[np.argsort(proba)]) >= -1e-12).all()
    assert np.array_equal(model.predict(asked), (decision > 0.0).astype(int))


def test_whole_weights_are_repeats_in_exact_fits() -> None:
    X, y = rows(200)
    w = np.random.default_rng(0).integers(0, 4, 200)
    given = {"lifetime": 2.0, "random_state": 0}
    weighted = MondrianKernelRegressor(10, **given).fit(X, y, sample_weight=w)
    repeated = MondrianKernelRegressor(10, **given).fit(np.repeat(X, w, 0), np.repeat(y, w))
    assert weighted.predict(X) == pytest.approx(repeated.predict(X), abs=1e-9)


def test_bad_input_is_refused(monkeypatch) -> None:
    X, y = rows(100)
    for bad in (0, -1.0, np.inf, "much"):
        with pytest.raises(ValueError, match="lifetime"):
            MondrianFeatures(lifetime=bad).fit(X)
        with pytest.raises(ValueError, match="lifetime"):
            MondrianKernelRegressor(lifetime=bad).fit(X, y)
    for bad in (0, -3, 1.5):
        with pytest.raises(ValueError, match="n_components"):
            MondrianFeatures(bad).fit(X)
    with pytest.raises(NotFittedError):
        MondrianFeatures().transform(X)
    with pytest.raises(AttributeError):
        MondrianFeatures().get_feature_names_out()
    with pytest.raises(DataError, match="cube"):
        MondrianFeatures(domain="cube").fit(2.0 * X)
    for kind in (MondrianFeatures, MondrianKernelClassifier, MondrianKernelRegressor):
        with pytest.raises(ParameterError, match=r"lifetime=.* is of the Mondrian forests"):
            kind(lifetime={"c": 1.0, "p": 0.5}).fit(X, y > 0.5)  # type: ignore[arg-type]  # wrong
    with pytest.raises(ParameterError, match="chosen from all rows"):
        MondrianKernelRegressor(lifetime="validation").partial_fit(X, y)
    with pytest.raises(ParameterError, match="needs exact fits"):
        MondrianKernelRegressor(lifetime="marginal_likelihood", solver="sgd").fit(X, y)
    with pytest.raises(ParameterError, match="needs cells of the cube"):
        MondrianKernelRegressor(lifetime="average").fit(X, y)
    with pytest.raises(ParameterError, match="50 trees have as many columns"):
        MondrianKernelRegressor(
            lifetime="validation", max_columns=40, solver="cholesky"
        ).fit(X, y)  # fmt: skip
    monkeypatch.setattr("dmondrian._memory_limit.usable_bytes", lambda: 10_000)
    with pytest.raises(ParameterError, match=r"take 0.000224 GiB, there are"):
        MondrianFeatures(100).fit(X)
    monkeypatch.setattr("dmondrian._memory_limit.usable_bytes", lambda: 4_000)
    with pytest.raises(ParameterError, match=r"matrices take .* GiB"):
        MondrianKernelRegressor(10, solver="cholesky").fit(X, y)
    with pytest.raises(AttributeError, match="no feature_importances_"):
        MondrianKernelRegressor(2).fit(X, y).feature_importances_  # noqa: B018 - asked for


def test_features_are_no_data_frame() -> None:
    """As scikit-learn's own sparse transformers: refused, with how to go on."""
    X = np.random.default_rng(0).random((20, 2)).astype(np.float32)
    features = MondrianFeatures(3, random_state=0).fit(X)
    with pytest.raises(ValueError, match="scipy sparse matrix"):
        features.set_output(transform="pandas").transform(X)
    assert features.set_output(transform="default").transform(X).format == "csr"
