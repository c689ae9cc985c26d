"""MondrianDensity: exact for one tree, normalised within its error, and what it returns of rows."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from itertools import product
from pathlib import Path

import numpy as np
import pytest

import dmondrian
from dmondrian import MondrianDensity
from dmondrian.checkpoint import Run, save_model
from dmondrian.errors import CorruptError, DataError, ParameterError
from tests.estimators.test_amf import same_forest
from tests.reference.cube import Cell, CubeTree


def rows(n: int = 300, d: int = 2, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).beta(2.0, 5.0, size=(n, d)).astype(np.float32)


def middles(cuts: int, d: int) -> np.ndarray:
    """Return the middles of a grid's cells, float32 [cuts^d, d]."""
    return np.array(list(product((np.arange(cuts) + 0.5) / cuts, repeat=d)), np.float32)


def full_partition(density: MondrianDensity, X: np.ndarray, tree: int, at: float) -> list[Cell]:
    """Return every cell of a tree at a lifetime, empty ones too, by the reference's recursion."""
    seed = density.forest_.parameters.seed
    reference = CubeTree(X, np.zeros(len(X)), np.ones(len(X)), seed, tree, 0)
    found, ahead = [], [reference.root()]
    while ahead:
        cell = ahead.pop()
        if cell.split()[0] > at:
            found.append(cell)
        else:
            ahead += [cell.child(X, True), cell.child(X, False)]
    return found


def by_hand(cells: list[Cell], n: int, beta: float, query: np.ndarray) -> np.ndarray:
    """Return the log density of one tree, normalised over all of its cells."""
    lower = np.array([cell.lower for cell in cells], np.float64)
    upper = np.array([cell.upper for cell in cells], np.float64)
    volume = np.prod(upper - lower, axis=1)
    assert volume.sum() == pytest.approx(1.0, rel=1e-9)
    with np.errstate(divide="ignore"):
        h = np.log(np.array([len(cell.rows) for cell in cells]) / (n * volume))
    h = np.clip(h, -beta, beta)
    h -= (volume * h).sum()  # Z24: the integral of h is 0
    h -= np.log((volume * np.exp(h)).sum())
    inside = (query[:, None] > lower) & (query[:, None] <= upper)
    return h[inside.all(axis=2).argmax(axis=1)]


@pytest.mark.parametrize(
    ("d", "lifetime", "bound"), [(1, 9.0, None), (2, 4.0, None), (2, 6.0, 1.0)]
)
def test_one_tree_is_the_formula_over_all_of_its_cells(d, lifetime, bound) -> None:
    X, query = rows(60, d), middles(1000 if d == 1 else 31, d) + np.float32(1e-4)
    density = MondrianDensity(1, lifetime=20.0, bound=bound, random_state=5).fit(X)
    density.set_params(lifetime=20.0)
    beta = np.log1p(60) if bound is None else bound
    shorter = MondrianDensity(1, lifetime=lifetime, bound=bound, random_state=5).fit(X)
    for fitted in (shorter, density):  # realised to its lifetime, and further
        reported = fitted._at(lifetime)
        expected = by_hand(full_partition(fitted, X, 0, lifetime), 60, beta, query)
        np.testing.assert_allclose(reported.log_density(query), expected, rtol=1e-9, atol=1e-9)
        assert reported.error == 0.0
    assert shorter.normalization_error_ == 0.0
    assert (shorter.score_samples(query) == shorter._at(lifetime).log_density(query)).all()


def test_one_tree_has_integral_one() -> None:
    X = rows(200, 1)
    density = MondrianDensity(1, lifetime=12.0, random_state=0).fit(X)
    cuts = sorted({float(b) for cell in full_partition(density, X, 0, 12.0) for b in cell.upper})
    ends = np.array([0.0, *cuts])
    inside = (0.5 * (ends[1:] + ends[:-1]))[:, None].astype(np.float32)
    masses = np.exp(density.score_samples(inside)) * np.diff(ends)
    assert masses.sum() == pytest.approx(1.0, rel=1e-9)


@pytest.mark.parametrize("d", [1, 2])
def test_a_forest_has_integral_one_within_its_error(d: int) -> None:
    X = rows(500, d)
    density = MondrianDensity(8, lifetime=10.0, n_draws=20_000, random_state=2).fit(X)
    cells = 20_000 if d == 1 else 200
    integral = np.exp(density.score_samples(middles(cells, d))).mean()  # a sum over a fine grid
    assert 0.0 < density.normalization_error_ < 0.01
    grid_error = 0.002 if d == 1 else 0.01  # cuts fall between its points
    assert abs(integral - 1.0) < 4.0 * density.normalization_error_ + grid_error


def test_the_error_is_that_of_the_draws() -> None:
    X = rows(300)
    reported = [
        MondrianDensity(4, lifetime=8.0, n_draws=500, random_state=1).fit(X)._at(8.0)
    ]  # fmt: skip
    exact = MondrianDensity(4, lifetime=8.0, n_draws=200_000, random_state=1).fit(X)._at(8.0)
    assert exact.error < 0.06 * reported[0].error
    assert abs(reported[0].log_normalizer - exact.log_normalizer) < 4.0 * reported[0].error
    rng = np.random.default_rng(0)
    repeated = [
        np.exp(
            exact._log_ratio(np.concatenate([exact._draw(t, 125, rng) for t in range(4)]))
        ).mean()
        for _ in range(200)
    ]
    assert np.std(repeated) / np.mean(repeated) == pytest.approx(reported[0].error, rel=0.25)


def test_draws_follow_the_density() -> None:
    X = rows(400)
    density = MondrianDensity(5, lifetime=6.0, random_state=0).fit(X)
    drawn = density.sample(20_000, random_state=3)
    assert drawn.shape == (20_000, 2)
    assert drawn.dtype == np.float32
    assert drawn.min() >= 0.0
    assert drawn.max() <= 1.0
    fine = middles(120, 2)
    mass = np.exp(density.score_samples(fine))
    mass /= mass.sum()
    for j in range(2):
        share = np.histogram(drawn[:, j], bins=8, range=(0, 1))[0] / 20_000
        expected = np.histogram(fine[:, j], bins=8, range=(0, 1), weights=mass)[0]
        np.testing.assert_allclose(share, expected, atol=4.0 * np.sqrt(0.25 / 20_000))
    assert np.array_equal(drawn, density.sample(20_000, random_state=3))


def test_chunks_weights_and_files_change_nothing(tmp_path) -> None:
    X, query = rows(), rows(50, seed=4)
    w = np.random.default_rng(0).integers(0, 3, 300)
    whole = MondrianDensity(3, lifetime=5.0, random_state=0).fit(X, sample_weight=w)
    parts = MondrianDensity(3, lifetime=5.0, random_state=0, n_jobs=2)
    long = np.repeat(X, w, 0)
    for start in range(0, len(long), 70):
        parts.partial_fit(long[start : start + 70])
        parts.score(query)
    assert same_forest(whole, parts)
    assert np.array_equal(whole.score_samples(query), parts.score_samples(query))
    parts.save(tmp_path / "m")
    loaded = dmondrian.load(tmp_path / "m")
    assert np.array_equal(loaded.score_samples(query), whole.score_samples(query))
    assert whole.score(query) == whole.score_samples(query).sum()
    one = MondrianDensity(3, lifetime=5.0, random_state=0).fit(long[:100])
    merged = one.merge(MondrianDensity(3, lifetime=5.0, random_state=0).fit(long[100:]))
    np.testing.assert_allclose(
        merged.score_samples(query), whole.score_samples(query), rtol=1e-9, atol=0.05
    )


def altered(tmp_path: Path, density: MondrianDensity, change: Callable[[dict], object]) -> str:
    """Save a density with other parameters, under the right digests; return its path."""
    header, trees = density.forest_.state(copy=False)
    change(header["parameters"])
    forest = deepcopy(density.forest_)
    forest.stored = lambda: (header, trees)  # of the same trees
    whole = tmp_path / "whole"
    density.save(whole)
    save_model(tmp_path / "m", forest, Run.open(whole).run_json | {"n_seen": 300})
    return str(tmp_path / "m")


def test_a_density_without_a_lifetime_is_refused(tmp_path) -> None:
    fixed = MondrianDensity(2, lifetime=4.0, random_state=0).fit(rows())
    with pytest.raises(CorruptError, match=r"of a density have no lifetime.*restore"):
        dmondrian.load(altered(tmp_path, fixed, lambda reported: reported.pop("lifetime")))
    chosen = MondrianDensity(2, lifetime="validation", n_draws=100, random_state=0).fit(rows())
    no_choice = {"lifetime": None}
    with pytest.raises(CorruptError, match="of a density have no lifetime"):
        dmondrian.load(
            altered(tmp_path / "c", chosen, lambda reported: reported["cost"].update(no_choice))
        )
    until = MondrianDensity(2, lifetime=None, max_lifetime=4.0, random_state=0).fit(rows())
    until.save(tmp_path / "until")
    reported = dmondrian.load(tmp_path / "until").score_samples(rows(5))
    assert np.array_equal(reported, until.score_samples(rows(5)))


def test_held_out_rows_choose_the_lifetime(tmp_path) -> None:
    X, held = rows(1500), rows(1500, seed=8)
    density = MondrianDensity(4, lifetime="validation", n_draws=2000, random_state=0).fit(X)
    path = density.lifetime_path_
    assert density.lifetime_ == path.lifetimes[np.argmin(path.risks[0])]
    assert path.lifetimes[0] < density.lifetime_ < path.lifetimes[-1]
    density.save(tmp_path / "m")
    loaded = dmondrian.load(tmp_path / "m")
    assert loaded.lifetime_ == density.lifetime_
    for reported, stored in zip(loaded.lifetime_path_, path, strict=True):
        assert np.array_equal(reported, stored)
    with pytest.raises(AttributeError, match="no lifetime was chosen from rows"):
        _ = MondrianDensity(2, random_state=0).fit(X).lifetime_path_
    for lifetime in (path.lifetimes[0], path.lifetimes[-1]):
        other = density._at(lifetime).log_density(held).mean()
        assert density.score_samples(held).mean() > other
    same = MondrianDensity(4, lifetime=None, max_lifetime=50.0, random_state=0).fit(X)
    assert same.choose_lifetime(held).lifetime_ < 50.0


def test_settings_of_the_density_can_be_changed_after_learning() -> None:
    fitted = MondrianDensity(3, lifetime=5.0, random_state=0).fit(rows())
    before, error = fitted.score_samples(rows(20, seed=5)), fitted.normalization_error_
    fitted.set_params(n_draws=90_000)
    assert fitted.normalization_error_ < 0.5 * error
    fitted.set_params(bound=0.5)
    assert np.ptp(fitted.score_samples(rows(20, seed=5))) < np.ptp(before)


def test_what_is_refused() -> None:
    with pytest.raises(DataError, match="outside"):
        MondrianDensity().fit(rows() + 1.0)
    with pytest.raises(ParameterError, match="cells shrink to points"):
        MondrianDensity(lifetime=None).fit(rows())
    with pytest.raises(ParameterError, match="holds out rows"):
        MondrianDensity(lifetime="validation").partial_fit(rows())
    fitted = MondrianDensity(2, lifetime=3.0).fit(rows())
    with pytest.raises(DataError, match="outside"):
        fitted.score_samples(rows(3) - 1.0)
    clipped = MondrianDensity(2, lifetime=3.0, clip=True, random_state=0).fit(rows() * 2.0)
    assert clipped.n_clipped_ > 0
    assert np.isfinite(clipped.score_samples(rows(3) - 1.0)).all()


@pytest.mark.parametrize("n", [0, -3, 2.7])
def test_draws_are_counted(n) -> None:
    density = MondrianDensity(2, random_state=0).fit(rows(50))
    with pytest.raises(ParameterError, match="integer >= 1"):
        density.sample(n)


def test_rows_without_weight_choose_no_lifetime() -> None:
    density = MondrianDensity(2, max_lifetime=4.0, random_state=0).fit(rows(50))
    with pytest.raises(ParameterError, match="positive weight"):
        density.choose_lifetime(rows(50), np.zeros(50))
    assert not hasattr(density, "lifetime_path_")


def test_a_density_that_is_close_to_uniform_is_reported() -> None:
    X = np.clip(np.random.default_rng(0).normal(0.5, 0.05, (300, 20)), 0.0, 1.0)
    cut = MondrianDensity(2, lifetime=8.0, n_draws=200, random_state=0).fit(X)
    with pytest.warns(UserWarning, match=r"cells without rows have .*% of the probability"):
        reported = cut.score_samples(X)
    assert cut.empty_mass_ > 0.5
    cut.set_params(bound=200.0)
    assert (cut.score_samples(X) > reported + 5.0).all()
    assert cut.empty_mass_ < 0.01
    tree = cut._now.trees[0]
    assert tree.mass[-1] == pytest.approx(1.0 - tree.mass[:-1].sum(), abs=1e-12)


@pytest.mark.parametrize("cell_value", ["log_frequency", "minimizer"])
def test_each_tree_chooses_its_lifetime_and_is_stored(cell_value: str, tmp_path) -> None:
    X, query = rows(400), rows(50, seed=3)
    options = {"lifetime": "penalized", "max_lifetime": 20.0, "cell_value": cell_value}
    options |= {"n_draws": 4000, "random_state": 0}
    density = MondrianDensity(4, **options).fit(X)
    path = density.lifetime_path_
    assert path.risks.shape == (4, len(path.lifetimes))
    assert np.array_equal(path.chosen, density.lifetimes_)
    assert len(np.unique(path.chosen)) > 1
    assert density.lifetime_ == np.median(path.chosen)
    assert (path.objective.argmin(axis=1) == np.searchsorted(path.lifetimes, path.chosen)).all()
    reported = density.score_samples(query)
    # The geometric mean of trees, each of its own lifetime.
    by_tree = [density._at(at)._by_tree(query)[t] for t, at in enumerate(path.chosen)]
    mean = np.mean(by_tree, axis=0) - density._now.log_normalizer
    np.testing.assert_allclose(reported, mean, rtol=1e-12, atol=1e-12)
    parts = MondrianDensity(4, **options)
    for start in range(0, 400, 90):
        parts.partial_fit(X[start : start + 90])
        assert len(parts.lifetimes_) == 4  # between rows, and forgotten
    assert np.array_equal(parts.score_samples(query), reported)
    parts.save(tmp_path / "m")
    loaded = dmondrian.load(tmp_path / "m")
    assert loaded.get_params() == density.get_params()
    assert np.array_equal(loaded.score_samples(query), reported)
    merged = MondrianDensity(4, **options).fit(X[:100])
    merged = merged.merge(MondrianDensity(4, **options).fit(X[100:]))
    np.testing.assert_allclose(merged.lifetimes_, density.lifetimes_, rtol=1e-12)
    np.testing.assert_allclose(merged.score_samples(query), reported, atol=0.01)
    held = density.choose_lifetime(query)
    assert (held.lifetimes_ == held.lifetime_).all()
    dear = MondrianDensity(2, penalty=1e6, **options).fit(X)
    assert (dear.lifetimes_ == 0.0).all()
    assert dear.score_samples(query) == pytest.approx(np.zeros(50), abs=1e-12)


def test_a_tree_whose_cells_are_the_minimizer_is_more_likely_of_its_own_rows() -> None:
    X = rows(60)
    logs, least = (
        MondrianDensity(1, lifetime=8.0, bound=1.5, cell_value=each, random_state=0).fit(X)
        for each in ("log_frequency", "minimizer")
    )
    assert same_forest(logs, least)
    assert least.score(X) > logs.score(X) + 0.4
    logs.set_params(cell_value="minimizer")
    assert logs.score(X) == least.score(X)
    with pytest.raises(ParameterError, match="parameters changed"):
        logs.partial_fit(X)


def test_penalized_densities_need_an_end() -> None:
    with pytest.raises(ParameterError, match=r"without an end.*max_lifetime"):
        MondrianDensity(lifetime="penalized").fit(rows())
    with pytest.raises(ValueError, match="'cell_value' parameter"):
        MondrianDensity(cell_value="least").fit(rows())


@pytest.mark.parametrize("cell_value", ["log_frequency", "minimizer"])
def test_draws_from_empty_cells_are_none_from_cells_with_rows_of_the_same_density(
    cell_value: str,
) -> None:
    X = np.random.default_rng(0).beta(2.0, 2.0, (400, 1))
    density = MondrianDensity(1, lifetime=10.0, bound=0.5, cell_value=cell_value, random_state=0)
    density.fit(X)
    drawn = density.sample(100_000, random_state=1)[:, 0]
    grid = middles(20_000, 1)
    expected = np.exp(density.score_samples(grid)).reshape(20, -1).mean(axis=1) / 20.0
    found = np.histogram(drawn, 20, (0.0, 1.0))[0] / len(drawn)
    error = np.sqrt(expected * (1.0 - expected) / len(drawn))
    assert (np.abs(found - expected) < 4.5 * error).all()
