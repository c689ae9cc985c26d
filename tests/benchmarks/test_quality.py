"""Small cuts of the sets, the metrics of probabilities, and the process that takes many cuts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from sklearn.ensemble import ExtraTreesClassifier
from sklearn.metrics import brier_score_loss

from benchmarks import datasets, metrics
from benchmarks.datasets import Dataset
from benchmarks.peers.runner import save_input, score, started
from benchmarks.peers.worker import ClassesOfRows
from benchmarks.quality import wins


@pytest.mark.parametrize("n_classes", [2, 5])
def test_the_brier_score_is_that_of_scikit_learn(n_classes: int) -> None:
    draw = np.random.default_rng(n_classes)
    probabilities = draw.dirichlet(np.ones(n_classes), 200)
    y = draw.integers(n_classes, size=200)
    # Class by class, as versions before 1.7 take no more than two; of two it is half the sum.
    each = [brier_score_loss(y == c, probabilities[:, c]) for c in range(n_classes)]
    wanted = each[1] if n_classes == 2 else sum(each)
    assert metrics.brier(y, probabilities) == pytest.approx(wanted, rel=1e-12)
    assert metrics.classification(y, probabilities)["brier"] == metrics.brier(y, probabilities)
    assert metrics.brier(y, np.eye(n_classes)[y]) == 0.0


def numbered(name: str, n: int, n_classes: int = 3) -> Dataset:
    """Return a set whose rows differ in their only column, in order."""
    X = np.arange(n, dtype=np.float32)[:, None]
    y = np.arange(n) % n_classes
    return Dataset(name, X[: n // 2], y[: n // 2], X[n // 2 :], y[n // 2 :], n_classes, "half")


def labels_of(cut: Dataset) -> tuple[np.ndarray, np.ndarray]:
    """Return the labels of rows to learn and of those held out."""
    return cut.y_train, cut.y_test


def test_a_cut_has_rows_of_both_parts_and_each_once() -> None:
    n = 100
    whole = numbered("bananas", n, n_classes=n)  # the label is the row
    train, test = labels_of(datasets.drawn(whole, 60, 30, seed=1))
    assert (len(train), len(test)) == (60, 30)
    assert len({*train, *test}) == 90
    assert min(train) < n // 2 <= max(train)
    again = datasets.drawn(whole, 60, 30, seed=1)
    assert (again.y_train == train).all()
    assert (datasets.drawn(whole, 60, 30, seed=2).y_train != train).any()
    rest = datasets.drawn(whole, 60, 1000, seed=1)
    assert len(rest.y_test) == 40
    assert rest.n_classes == n
    assert (rest.X_train.min(), rest.X_train.max()) == (0.0, 1.0)
    with pytest.raises(ValueError, match="100 rows: 100 leave none"):
        datasets.drawn(whole, 100, 30, seed=1)


def test_a_cut_of_a_stream_is_a_window_in_time_order() -> None:
    n = 100
    starts = set()
    for seed in range(5):
        train, test = labels_of(datasets.drawn(numbered("electricity", n, n), 20, 50, seed))
        assert (np.concatenate([train, test]) == train[0] + np.arange(40)).all()
        starts.add(train[0])
    assert len(starts) > 1


def test_classes_that_no_row_has_get_probability_zero() -> None:
    draw = np.random.default_rng(0)
    X, y = draw.normal(size=(50, 3)), draw.choice([1, 4], size=50)
    model = ClassesOfRows(ExtraTreesClassifier(5, random_state=0), 6)
    model.fit(X, y)
    found = model.predict_proba(X)
    wanted = ExtraTreesClassifier(5, random_state=0).fit(X, y).predict_proba(X)
    assert found.shape == (50, 6)
    assert (found[:, [1, 4]] == wanted).all()
    assert (found[:, [0, 2, 3, 5]] == 0.0).all()


@pytest.mark.thorough
@pytest.mark.parametrize("peer", ["extra_trees", "dmondrian"])
def test_one_process_scores_many_cuts_as_a_process_of_each(peer: str, tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    paths = [tmp_path / f"{name}.npz" for name in ("numbers", "classes")]
    for path, n_classes in zip(paths, (0, 3), strict=True):
        X = draw.random((60, 4)).astype(np.float32)
        y = (X[:, 0] * n_classes).astype(np.int64) if n_classes else X[:, 0].astype(np.float64)
        save_input(Dataset("made", X[:40], y[:40], X[40:], y[40:], n_classes, "first"), path)
    with started(peer, paths[0], peers=None, trees=3) as worker:
        found = [worker.score(path, seed) for path in paths for seed in (0, 7)]
    wanted = [score(peer, path, trees=3, seed=seed) for path in paths for seed in (0, 7)]
    for one, its in zip(found, wanted, strict=True):
        names = [name for name in its if not name.endswith("seconds") and "n_t" not in name]
        assert {name: one[name] for name in names} == {name: its[name] for name in names}
    assert found[0] != found[1]


def test_wins_count_the_sets_that_both_have() -> None:
    own, its = {"a": 0.1, "b": 0.2, "c": 0.3}, {"a": 0.2, "b": 0.2, "d": 0.1}
    assert wins(own, its, "log_loss") == (1, 2)
    assert wins(its, own, "r2") == (1, 2)
    assert wins(own, its, "brier") == (1, 2)
    assert wins(own, its, "accuracy") == (0, 2)
