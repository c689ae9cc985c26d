"""Trees with a fringe equal the reference from Appendix A of D13, and streams do not mix."""

from __future__ import annotations

import numpy as np
import pytest

from dmondrian.ensemble.settings.fringe_settings import FringeSettings
from dmondrian.ensemble.settings.parameters import ForestParameters
from dmondrian.forest.forest import Forest
from tests.reference.cases import Case, random_case
from tests.reference.kernel import arrays_of
from tests.reference.online_forest import Node, ReferenceTree, Settings

CASES = 150


def settings_of(case: Case, regression: bool) -> Settings:
    """Return settings that go with a case, small enough for trees to grow."""
    rng = np.random.default_rng([case.number, 8, int(regression)])
    criteria = ["entropy", "gini"] + ["hellinger"] * (case.n_classes == 2)
    return Settings(
        n_features=case.X.shape[1],
        n_classes=0 if regression else case.n_classes,
        rate=float(rng.choice([0.0, 1.0, 3.0, 50.0])),
        n_points=int(rng.choice([1, 2, 5, 10])),
        min_gain=float(rng.choice([0.0, 0.01, 0.2, 2.0])),
        least=float(rng.choice([0.5, 1.0, 2.0, 3.0])),
        factor=float(rng.choice([1.0, 1.25])),
        ratio=float(rng.choice([1.0, 2.0, 8.0])),
        max_fringe=int(rng.integers(1, 6)) if rng.random() < 0.6 else None,
        criterion="squared_error" if regression else str(rng.choice(criteria)),
        structure=float(rng.choice([0.5, 0.5, 0.3])),
        ignored=float(rng.choice([0.0, 0.0, 0.25])),
        max_nodes=case.max_nodes,
    )


def stream_of(number: int, regression: bool) -> Case:
    """Return a case with more rows than others, and labels whose sums are exact."""
    case = random_case(number, regression)
    rng = np.random.default_rng([number, 5])
    rows = rng.integers(0, len(case.X), 300)
    y = np.round(case.y[rows] * 8) / 8 if regression else case.y[rows]
    noise = rng.integers(0, 4, (300, case.X.shape[1])).astype(np.float32) / np.float32(4)
    with np.errstate(over="ignore"):
        X = np.nan_to_num(case.X[rows] + (noise if number % 2 else 0), posinf=3e38, neginf=-3e38)
    w = None if case.w is None else case.w[rows]
    changes = {"X": np.ascontiguousarray(X, np.float32), "y": y, "w": w}
    return Case(**{**vars(case), **changes})


def forest_of(case: Case, p: Settings, chunk: int | None = None) -> Forest:
    kind = "classifier" if p.n_classes else "regressor"
    fringe = FringeSettings(
        p.rate, p.n_points, p.min_gain, p.least, p.factor, p.ratio, p.max_fringe, p.criterion,
        p.structure, p.ignored,
    )  # fmt: skip
    parameters = ForestParameters(
        f"online-forest-{kind}", p.n_features, p.n_classes, case.seed, split_pure=True,
        aggregation="mean", empty_prior=True, max_nodes=p.max_nodes, fringe=fringe,
    )  # fmt: skip
    parameters.check()
    forest = Forest(parameters, [case.tree])
    for start in range(0, len(case.X), chunk or len(case.X)):
        rows = slice(start, start + (chunk or len(case.X)))
        forest.update(case.X[rows], case.y[rows], None if case.w is None else case.w[rows])
    return forest


def reference_of(case: Case, p: Settings) -> ReferenceTree:
    tree = ReferenceTree(p, case.seed, case.tree)
    weights = np.ones(len(case.X)) if case.w is None else case.w
    # Numbers are counted relative to the first, which costs these no digit.
    shift = next((y for y, w in zip(case.y, weights, strict=True) if w > 0), 0.0)
    labels = case.y - (0.0 if p.n_classes else shift)
    for x, y, w in zip(case.X, labels.tolist(), weights.tolist(), strict=True):
        if w > 0:
            tree.learn([float(v) for v in x], y, w)
    return tree


def assert_same(forest: Forest, reference: ReferenceTree) -> None:
    """Compare splits, statistics and the fringe, to the bit."""
    arrays, _ = arrays_of(forest)
    p, found = reference.settings, arrays["stat"]
    assert len(arrays["left"]) == len(reference.nodes)
    starts = np.cumsum(arrays["candidates_size"]) - arrays["candidates_size"]
    for v, node in enumerate(reference.nodes):
        assert arrays["feature"][v] == node.feature
        assert arrays["fringe"][v] == node.active
        if node.left is not None and node.right is not None:
            assert (arrays["left"][v], arrays["right"][v]) == (node.left.number, node.right.number)
            assert arrays["threshold"][v] == node.threshold
            assert arrays["time"][v] == node.depth + 1
            assert found[v, -1] == pytest.approx(node.gain, rel=1e-8)  # two kinds of log
        else:
            assert found[v, -1] == node.begun
        reported = node.estimation
        moments = [reported.total, reported.squares]
        assert found[v, :-1].tolist() == [
            reported.n,
            *(reported.classes if p.n_classes else moments),
        ]
        block = arrays["candidates"][starts[v] : starts[v] + arrays["candidates_size"][v]]
        assert_same_candidates(block, node, p)


def assert_same_candidates(block: np.ndarray, node: Node, p: Settings) -> None:
    """Compare what is known of each candidate; a block tells of both cells and of the left."""
    if not node.candidates:
        assert not len(block)
        return
    assert node.features is not None
    assert block[:2].tolist() == [len(node.features), node.n_points]
    sections = block[2:].reshape(1 + len(node.features), -1)
    size = 1 + p.n_classes if p.n_classes else 3
    rows = sections[:, 1:].reshape(len(sections), -1, p.n_points)
    for i, split in enumerate(node.candidates):
        k, s = divmod(i, len(node.features))
        assert sections[1 + s, 0] == split.feature
        assert rows[1 + s, 0, k] == split.threshold
        assert rows[0, 0, k] == split.begun
        for first, kind in ((1, "estimation"), (1 + size, "structure")):
            left, right = getattr(split.left, kind), getattr(split.right, kind)
            whole = rows[0, first : first + size, k]
            part = rows[1 + s, first : first + size, k]
            for tally, numbers in ((left, part), (right, whole - part)):
                reported = tally.classes if p.n_classes else [tally.total, tally.squares]
                assert numbers.tolist() == [tally.n, *reported]


@pytest.mark.parametrize("regression", [False, True], ids=["classes", "targets"])
def test_trees_are_those_of_the_reference(regression: bool) -> None:
    n_splits = n_bounded = 0
    for number in range(CASES):
        case = stream_of(number, regression)
        p = settings_of(case, regression)
        reference = reference_of(case, p)
        assert_same(forest_of(case, p), reference)
        n_splits += len(reference.nodes) // 2
        n_leaves = len(reference.nodes) // 2 + 1
        n_bounded += p.max_nodes is None and p.max_fringe is not None and n_leaves > p.max_fringe
    assert n_splits > 5 * CASES  # they do grow, and
    assert n_bounded > CASES // 5  # leaves do wait for a place


@pytest.mark.parametrize("regression", [False, True], ids=["classes", "targets"])
def test_cuts_between_calls_and_storage_change_no_byte(regression: bool) -> None:
    for number in range(0, CASES, 5):
        case = stream_of(number, regression)
        p = settings_of(case, regression)
        whole = arrays_of(forest_of(case, p))[0]
        parts = forest_of(case, p, chunk=7)
        assert all(whole[name].tobytes() == parts.state()[1][0][name].tobytes() for name in whole)
        half = Case(**{**vars(case), "X": case.X[:150], "y": case.y[:150],
                       "w": None if case.w is None else case.w[:150]})  # fmt: skip
        loaded = Forest.from_state(*forest_of(half, p).state())
        loaded.update(case.X[150:], case.y[150:], None if case.w is None else case.w[150:])
        assert all(whole[name].tobytes() == loaded.state()[1][0][name].tobytes() for name in whole)


def unweighted(number: int) -> tuple[Case, Settings]:
    case = stream_of(number, False)
    p = settings_of(case, False)
    return Case(**{**vars(case), "w": None}), Settings(**{**vars(p), "max_nodes": None})


def test_estimation_labels_choose_no_split() -> None:
    """Other labels of the estimation stream leave all but what leaves say (and who waits)."""
    moved = 0
    for number in range(0, CASES, 3):
        case, p = unweighted(number)
        p = Settings(**{**vars(p), "max_fringe": None})
        streams = np.array(reference_of(case, p).streams)
        flipped = np.where(streams == "estimation", p.n_classes - 1 - case.y, case.y)
        mine = arrays_of(forest_of(case, p))[0]
        its = arrays_of(forest_of(Case(**{**vars(case), "y": flipped}), p))[0]
        for name in ("left", "right", "feature", "threshold"):
            assert np.array_equal(mine[name], its[name])
        assert np.array_equal(mine["stat"][:, -1], its["stat"][:, -1])
        assert np.array_equal(mine["stat"][:, 1:-1], its["stat"][:, 1:-1][:, ::-1])
        moved += not np.array_equal(mine["stat"], its["stat"])
    assert moved > CASES // 10


def test_structure_labels_reach_no_leaf() -> None:
    """A class that is of the structure stream alone moves splits, and no node counts it."""
    moved = 0
    for number in range(0, CASES, 3):
        case, p = unweighted(number)
        if p.criterion == "hellinger":
            continue
        p = Settings(**{**vars(p), "n_classes": p.n_classes + 1})
        streams = np.array(reference_of(case, p).streams)
        is_other = (streams == "structure") & (np.arange(len(streams)) % 2 == 0)
        other = np.where(is_other, p.n_classes - 1, case.y)
        mine = arrays_of(forest_of(case, p))[0]
        its = arrays_of(forest_of(Case(**{**vars(case), "y": other}), p))[0]
        assert not its["stat"][:, p.n_classes].any()
        moved += not np.array_equal(mine["threshold"], its["threshold"])
    assert moved > CASES // 10
