"""Predictive distributions of kernel machines are those of dense Gaussian processes (B16, B)."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import Kernel

import dmondrian
from dmondrian import MondrianFeatures, MondrianKernelRegressor
from dmondrian.errors import CorruptError, ParameterError
from dmondrian.forest.forest import Forest
from dmondrian.joint_fit.cell_columns import presence_of
from dmondrian.joint_fit.lifetime_sweep import prior_of
from tests.reference.gaussian_process import mixture, posterior

RIDGE, LIFETIME = 0.1, 3.0


def rows(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    X = random.random((n, 2), dtype=np.float32)
    return X, 0.3 * np.sin(6.0 * X[:, 0]) + X[:, 1] + random.normal(0.0, 0.1, n) + 7.0


def cells_of(X: np.ndarray, lifetime: float, n_trees: int) -> np.ndarray:
    """Cells [n, T] of all rows at a lifetime on the cube, of forests with random_state 2."""
    made = MondrianFeatures(n_trees, lifetime=lifetime, domain="cube", random_state=2)
    phi = made.fit_transform(X).tolil().rows
    order = np.array([list(row) for row in phi])
    tree_of = np.zeros(order.max() + 1, int)
    trees = [np.unique(t.d[: t.head_i[1], 5], return_index=False) for t in made.forest_.store.trees]
    for t, marks in enumerate(trees):
        tree_of[marks[marks > 0].astype(int) - 1] = t
    cells = np.empty_like(order)
    np.put_along_axis(cells, tree_of[order], order, axis=1)
    return cells


@pytest.mark.parametrize("scale", [None, 1.0, 0.4])
@pytest.mark.parametrize("weighted", [False, True])
def test_deviations_are_those_of_the_dense_process(scale: float | None, weighted: bool) -> None:
    X, y = rows(150)
    asked = rows(40, seed=3)[0]
    w = np.random.default_rng(1).integers(0, 3, 150) if weighted else np.ones(150)
    cells = cells_of(np.vstack([X, asked]), LIFETIME, 6)
    expected = posterior(cells[:150], y, w, cells[150:], RIDGE, scale)
    model = MondrianKernelRegressor(
        6, lifetime=LIFETIME, domain="cube", regularization=RIDGE, signal_std=scale, random_state=2
    ).fit(X, y, sample_weight=w)
    mean, std = model.predict(asked, return_std=True)
    assert mean == pytest.approx(expected.mean, abs=1e-9)
    assert std == pytest.approx(np.sqrt(expected.variance + expected.noise), abs=1e-9)
    own = model.predict(asked, return_std=True, include_noise=False)[1]
    assert own == pytest.approx(np.sqrt(expected.variance), abs=1e-9)
    alone = model.predict(asked[7:8], return_std=True)
    assert (alone[0][0], alone[1][0]) == (mean[7], std[7])  # not of the rows asked about together
    parts = MondrianKernelRegressor(**model.get_params())
    for start in range(0, 150, 50):
        part = slice(start, start + 50)
        parts.partial_fit(X[part], y[part], sample_weight=w[part])
    assert np.array_equal(parts.predict(asked, return_std=True)[1], std)


class _Share(Kernel):
    """The kernel of partitions, for scikit-learn."""

    def __init__(self, transform: Callable[[Any], Any]) -> None:
        self.transform = transform

    def __call__(self, X: Any, Y: Any = None, eval_gradient: bool = False) -> np.ndarray:
        phi = self.transform(X)
        return (phi @ (phi if Y is None else self.transform(Y)).T).toarray()

    def diag(self, X: Any) -> np.ndarray:
        return np.ones(len(X))

    def is_stationary(self) -> bool:
        return False


def test_the_process_is_scikit_learns() -> None:
    X, y = rows(100)
    given: dict[str, Any] = {"lifetime": LIFETIME, "domain": "cube", "random_state": 2}
    features = MondrianFeatures(6, **given).fit(X)
    process = GaussianProcessRegressor(_Share(features.transform), alpha=RIDGE, optimizer=None)
    process.fit(X, y - y.mean())
    model = MondrianKernelRegressor(6, regularization=RIDGE, signal_std=1.0, **given).fit(X, y)
    asked = rows(30, seed=1)[0]
    mean, std = process.predict(asked, return_std=True)
    found = model.predict(asked, return_std=True, include_noise=False)
    assert found[0] == pytest.approx(mean + y.mean(), abs=1e-9)
    assert found[1] == pytest.approx(std, abs=1e-9)


def test_rows_outside_the_range_are_in_cells_of_their_own_by_chance() -> None:
    X, y = rows(80)
    model = MondrianKernelRegressor(
        3, lifetime=LIFETIME, regularization=RIDGE, signal_std=0.7, random_state=2
    ).fit(X, y)
    asked = np.array([[1.2, 0.5], [0.3, 0.4], [-0.1, 1.3], [40.0, 40.0]], np.float32)
    mean, std = model.predict(asked, return_std=True, include_noise=False)
    stays = presence_of(model.forest_, asked)
    assert (stays[0] < 1.0).all()
    inside = MondrianFeatures(3, lifetime=LIFETIME, random_state=2).fit(X)
    phi, near = inside.transform(X).toarray(), inside.transform(asked).toarray()
    A = phi.T @ phi + RIDGE * np.eye(phi.shape[1])
    weights = np.linalg.solve(A, phi.T @ (y - y.mean()))
    tree_of = np.array([next(t for t in range(3) if c + 1 in inside.forest_.store.trees[t].d[:, 5])
                        for c in range(phi.shape[1])])  # fmt: skip
    for r in range(len(asked)):
        means, variances, chances = [], [], []
        for code in range(8):  # which of the three partitions part the row
            parted = np.array([code >> t & 1 for t in range(3)], bool)
            chances.append(np.prod(np.where(parted, 1.0 - stays[r], stays[r])))
            own = np.where(parted[tree_of], 0.0, near[r])
            means.append(own @ weights)
            variances.append(0.49 * (RIDGE * own @ np.linalg.solve(A, own) + parted.mean()))
        expected = np.average(means, weights=chances)
        spread = np.average(np.square(means) + variances, weights=chances) - expected**2
        assert mean[r] == pytest.approx(y.mean() + expected, abs=1e-9)
        assert std[r] == pytest.approx(np.sqrt(spread), abs=1e-9)
    assert std[3] == pytest.approx(0.7, abs=1e-9)


def averages(
    X: np.ndarray,
    y: np.ndarray,
    w: np.ndarray,
    asked: np.ndarray,
    times: np.ndarray,
    end: float,
    given: dict[str, Any],
) -> tuple[np.ndarray, np.ndarray, float]:
    """Average over the fits from each cut to the next, by dense processes."""
    ends = np.append(times, end)
    chances = prior_of(times, given["lifetime_prior"], end)
    parts, kept = [], []
    for start, stop, chance in zip(ends[:-1], ends[1:], chances, strict=True):
        if chance > 0.0:
            cells = cells_of(np.vstack([X, asked]), float(0.5 * (start + stop)), 4)
            learned, reported = cells[: len(X)], cells[len(X) :]
            parts.append(posterior(learned, y, w, reported, RIDGE, given["signal_std"]))
            kept.append(chance)
    return mixture(parts, np.array(kept))


@pytest.mark.parametrize(
    ("prior", "scale"),
    [
        ("log_uniform", 1.0),
        ("uniform", None),
        pytest.param("log_uniform", None, marks=pytest.mark.thorough),
        pytest.param("uniform", 1.0, marks=pytest.mark.thorough),
    ],
)
def test_an_average_has_the_variance_of_the_mixture(prior: str, scale: float | None) -> None:
    X, y = rows(45)
    asked = rows(25, seed=4)[0]
    w = np.random.default_rng(1).integers(0, 3, 45)
    given: dict[str, Any] = {"lifetime_prior": prior, "signal_std": scale}
    model = MondrianKernelRegressor(
        4, lifetime="average", max_lifetime=4.0, domain="cube", regularization=RIDGE,
        random_state=2, **given,
    ).fit(X[:30], y[:30], sample_weight=w[:30])  # fmt: skip
    for n in (30, 45):
        if n == 45:
            model.partial_fit(X[30:], y[30:], sample_weight=w[30:])
        path = model.lifetime_path_
        mean, variance, noise = averages(X[:n], y[:n], w[:n], asked, path.lifetimes, 4.0, given)
        found = model.predict(asked, return_std=True)
        assert found[0] == pytest.approx(mean, abs=1e-9)
        assert found[1] == pytest.approx(np.sqrt(variance + noise), abs=1e-9)
        own = model.predict(asked, return_std=True, include_noise=False)[1]
        assert own == pytest.approx(np.sqrt(variance), abs=1e-9)


@pytest.mark.parametrize("columns", [60, 1024])
def test_more_rows_after_an_average_are_a_fit_to_all(columns: int, tmp_path) -> None:
    X, y = rows(120)
    asked, w = rows(30, seed=4)[0], np.random.default_rng(1).choice([0.0, 0.5, 2.0], 120)
    given: dict[str, Any] = {
        "lifetime": "average", "max_columns": columns, "domain": "cube", "regularization": RIDGE,
        "random_state": 2,
    }  # fmt: skip
    model = MondrianKernelRegressor(5, **given).fit(X[:60], y[:60], sample_weight=w[:60])
    longest = model.lifetime_
    for start, stop in ((60, 61), (61, 100), (100, 120)):
        model.partial_fit(X[start:stop], y[start:stop], sample_weight=w[start:stop])
    whole = MondrianKernelRegressor(5, max_lifetime=longest, **given)
    whole.fit(X, y, sample_weight=w)
    assert model.predict(asked) == pytest.approx(whole.predict(asked), abs=1e-9)
    mean, std = model.predict(asked, return_std=True)
    assert std == pytest.approx(whole.predict(asked, return_std=True)[1], abs=1e-9)
    assert model.lifetime_path_.n_columns.max() <= columns
    assert model.lifetime_path_.shares == pytest.approx(whole.lifetime_path_.shares, abs=1e-9)
    model.save(tmp_path / "model")
    for again in (
        dmondrian.load(tmp_path / "model"), pickle.loads(pickle.dumps(model)), copy.deepcopy(model)
    ):  # fmt: skip
        assert np.array_equal(again.predict(asked, return_std=True), [mean, std])
        more = again.partial_fit(*rows(20, seed=9)).predict(asked)
        assert np.array_equal(
            more, copy.deepcopy(model).partial_fit(*rows(20, seed=9)).predict(asked)
        )


def test_an_exact_fit_is_restored_with_its_squares(tmp_path) -> None:
    X, y = rows(100)
    model = MondrianKernelRegressor(6, lifetime=LIFETIME, random_state=2).fit(X, y)
    expected = model.predict(X, return_std=True)
    model.save(tmp_path / "model")
    for again in (dmondrian.load(tmp_path / "model"), pickle.loads(pickle.dumps(model))):
        assert np.array_equal(again.predict(X, return_std=True), expected)


def test_states_of_earlier_versions_are_read() -> None:
    X, y = rows(100)
    given: dict[str, Any] = {"domain": "cube", "regularization": RIDGE, "random_state": 2}
    average: dict[str, Any] = {"lifetime": "average", "max_columns": 60}
    for kind, reported in (
        ({"lifetime": 2.0}, "no sum of squared labels"), (average, "an exact fit of all rows")
    ):  # fmt: skip
        model = MondrianKernelRegressor(5, **kind, **given).fit(X, y)
        before = model.predict(X)
        header, trees = model.forest_.state()
        assert "beside" not in header  # those bytes are as they were
        model.forest_ = Forest.from_state(header, trees)
        assert np.array_equal(model.predict(X), before)
        with pytest.raises(ParameterError, match=reported):
            model.predict(X, return_std=True)
    with pytest.raises(ParameterError, match="stored by an earlier version"):
        model.partial_fit(X, y)
    stored = MondrianKernelRegressor(5, **average, **given).fit(X, y)
    header, trees, _ = stored.forest_.stored()
    for name, value in (("prior", "none"), ("cells", "AAAA"), ("squares", None), ("sums", {})):
        broken = {**header, "beside": {**header["beside"], name: value}}
        with pytest.raises(CorruptError):
            Forest.from_state(broken, list(trees))


def test_deviations_need_exact_fits_and_labels() -> None:
    X, y = rows(60)
    for given in ({"solver": "sgd"}, {"fitting": "independent"}, {"max_columns": 10}):
        model = MondrianKernelRegressor(5, **given, random_state=0).fit(X, y)
        with pytest.raises(ParameterError, match="return_std needs an exact fit"):
            model.predict(X, return_std=True)
    two = MondrianKernelRegressor(5, random_state=0).fit(X[:2], y[:2])
    assert np.isposinf(two.predict(X[:3], return_std=True)[1]).all()
    known = MondrianKernelRegressor(5, signal_std=1.0, random_state=0).fit(X[:2], y[:2])
    assert np.isfinite(known.predict(X[:3], return_std=True)[1]).all()


def test_the_likelihood_of_a_given_scale_is_b16s() -> None:
    X, y = rows(60)
    given: dict[str, Any] = {"domain": "cube", "regularization": RIDGE, "random_state": 2}
    model = MondrianKernelRegressor(
        4, lifetime="marginal_likelihood", max_lifetime=6.0, signal_std=1.0, **given
    ).fit(X, y)
    path = model.lifetime_path_
    ends = np.append(path.lifetimes[1:], 6.0)
    expected = []
    for start, end in zip(path.lifetimes, ends, strict=True):
        cells = cells_of(X, float(0.5 * (start + end)), 4)
        expected.append(posterior(cells, y, np.ones(60), cells[:1], RIDGE, 1.0).log_likelihood)
    found = path.log_likelihoods
    assert found - found[0] == pytest.approx(np.array(expected) - expected[0], abs=1e-9)
    best = int(np.argmax(expected))
    assert path.lifetimes[best] <= path.chosen <= ends[best]
    other = MondrianKernelRegressor(4, lifetime="marginal_likelihood", max_lifetime=6.0, **given)
    assert other.fit(X, y).lifetime_path_.log_likelihoods[0] != found[0]
    loud = MondrianKernelRegressor(
        4, lifetime="marginal_likelihood", max_lifetime=6.0, signal_std=1.0, **given
    ).fit(X, 100.0 * y)  # the scale is not of these labels any more
    assert loud.lifetime_ > model.lifetime_
