"""Features of two values are written as bits, which shows in the memory alone."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from dmondrian.ensemble.settings.parameters import ForestParameters
from dmondrian.forest import forest as forest_module
from dmondrian.forest.forest import Forest
from dmondrian.tree import box_encoding_choice, nodes
from dmondrian.tree.box_encoding import Columns, Stepped, all_numeric, make_columns

ROWS, NUMERIC, BINARY = 900, 3, 70
STEPS = Stepped(np.array([67, 68]), np.array([0.25, 1.0]), np.zeros(2))


def draw(number: int) -> tuple[np.ndarray, np.ndarray]:
    """Return rows with numeric, two-valued, constant and late three-valued features."""
    rng = np.random.default_rng(number)
    ends = rng.permutation(NUMERIC + BINARY)
    numeric = rng.random((ROWS, NUMERIC))
    binary = np.where(rng.random((ROWS, BINARY)) < rng.random(BINARY), rng.random(BINARY), 0.0)
    binary[:, 0] = 0.25  # constant
    binary[:, 1] = np.where(np.arange(ROWS) < 300, 0.0, 0.75)  # constant for a while
    binary[400:, 2] = np.where(rng.random(ROWS - 400) < 0.5, binary[400:, 2], 0.125)  # a third
    binary[rng.random(ROWS) < 0.1, 3] *= -1.0  # 0 and -0 among them
    X = np.hstack([numeric, binary])[:, ends].astype(np.float32)
    y = (X[:, ends[:3]].sum(axis=1) + rng.normal(0, 0.3, ROWS) > 1.0).astype(np.float64)
    return X, y


def parameters(X: np.ndarray, **changes: object) -> ForestParameters:
    settings: dict = {"n_features": X.shape[1], "n_classes": 2, "seed": 5, "alpha": 0.5, **changes}
    kind = "classifier" if settings["n_classes"] else "regressor"
    family = "mondrian-forest" if "aggregation" in settings else "amf"
    return ForestParameters(algorithm=f"{family}-{kind}", **settings)


CASES = [
    {},
    {"n_classes": 0},
    {"expected_extension": True, "split_pure": True},
    {"domain": "cube", "aggregation": "mean", "lifetime": 2.0},
]


def grown(X: np.ndarray, y: np.ndarray, chunk: int, **changes: object) -> Forest:
    forest = Forest(parameters(X, **changes), range(2))
    for start in range(0, len(X), chunk):
        forest.update(X[start : start + chunk], y[start : start + chunk])
    return forest


def bytes_of(forest: Forest) -> list[bytes]:
    return [array.tobytes() for tree in forest.state()[1] for array in tree.values()]


@pytest.mark.parametrize("changes", CASES, ids=["classes", "labels", "expected", "cube"])
def test_how_boxes_are_written_changes_no_byte(
    changes: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    X, y = draw(1)
    X = np.abs(X) if changes.get("domain") else X
    pieces = grown(X, y, 37, **changes)
    whole = grown(X, y, ROWS, **changes)
    asked = np.ascontiguousarray(X[::3] * np.float32(0.9))  # values that no box has
    predicted = pieces.predict_sums(asked, spread=True, distance=True)
    monkeypatch.setattr(box_encoding_choice, "_LEAST", 10_000)
    plain = grown(X, y, 37, **changes)
    assert len(plain.trees[0].columns.binary) == 0
    assert len(pieces.trees[0].columns.binary) > BINARY // 2
    assert bytes_of(pieces) == bytes_of(whole) == bytes_of(plain)
    expected = plain.predict_sums(asked, spread=True, distance=True)
    for one, other in zip(predicted[:3], expected[:3], strict=True):
        assert one.tobytes() == other.tobytes()


@pytest.mark.parametrize("changes", CASES, ids=["classes", "labels", "expected", "cube"])
def test_columns_of_zeros_of_both_signs_change_no_byte(
    changes: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(9)
    X = rng.integers(0, 2, (200, 7)).astype(np.float32)
    X[:, :2] = np.where(rng.random((200, 2)) < 0.5, -0.0, 0.0)
    X[:, 6] = -0.0  # of one sign for a while
    X[150:, 6] = 0.0
    y = (X[:, 2] + X[:, 3] > 1.0).astype(np.float64)
    changes = {**changes, "max_nodes": 1000}
    pieces = grown(X, y, 37, **changes)
    whole = grown(X, y, len(X), **changes)
    read = Forest.from_state(*pieces.state())
    assert len(pieces.trees[0].columns.binary) == 4
    predicted = pieces.predict_sums(X, spread=True, distance=True)
    monkeypatch.setattr(box_encoding_choice, "_LEAST", 10_000)
    plain = grown(X, y, 37, **changes)
    assert bytes_of(pieces) == bytes_of(whole) == bytes_of(read) == bytes_of(plain)
    expected = plain.predict_sums(X, spread=True, distance=True)
    for one, other in zip(predicted[:3], expected[:3], strict=True):
        assert one.tobytes() == other.tobytes()


def test_zeros_of_rows_that_were_not_learned_give_no_sign(monkeypatch: pytest.MonkeyPatch) -> None:
    """Columns are chosen for rows of weight 0 too, of which no box knows."""
    X = np.random.default_rng(12).integers(0, 2, (60, 5)).astype(np.float32)
    X_learned, y = np.where(X == 0.0, np.float32(-0.0), X), X[:, 0]

    def learn() -> Forest:
        forest = Forest(parameters(X), range(2))
        forest.update(X, y, np.zeros(len(X)))
        forest.update(X_learned, y)
        return forest

    found = learn()
    assert len(found.trees[0].columns.binary) == 5
    monkeypatch.setattr(box_encoding_choice, "_LEAST", 10_000)
    assert bytes_of(found) == bytes_of(learn())


def test_distances_to_cells_without_rows_are_those_to_the_corner(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = np.random.default_rng(11)
    X, asked = (rng.integers(0, 2, (n, 8)).astype(np.float32) for n in (60, 300))
    for rows in (X, asked):
        rows[:, 4:] = 0.25 + 0.5 * rows[:, 4:]  # values that the corner is not one of
    y, changes = (X[:, 2] > X[:, 3]).astype(np.float64), {**CASES[3], "lifetime": 4.0}
    forest = grown(X, y, 37, **changes)
    read = Forest.from_state(*forest.state())
    found = [one.predict_sums(asked, distance=True).distance for one in (forest, read)]
    assert len(forest.trees[0].columns.binary) == len(read.trees[0].columns.binary) == 8
    monkeypatch.setattr(box_encoding_choice, "_LEAST", 10_000)
    plain = grown(X, y, 37, **changes)
    leaves = plain.trees[0].d[: int(plain.trees[0].head_i[nodes.N_NODES]), nodes.STAT]
    assert (leaves == 0.0).any()
    expected = plain.predict_sums(asked, distance=True).distance
    assert expected is not None
    for one in found:
        assert one is not None
        assert one.tobytes() == expected.tobytes()


def test_a_stored_forest_has_its_bits_again_and_goes_on() -> None:
    X, y = draw(2)
    forest = grown(X[:600], y[:600], 600)
    read = Forest.from_state(*forest.state())
    assert len(read.trees[0].columns.binary) > BINARY // 2
    assert bytes_of(read) == bytes_of(forest)
    for one in (forest, read):
        one.update(X[600:], y[600:])
    assert bytes_of(read) == bytes_of(forest) == bytes_of(grown(X, y, 1))


def test_trees_that_were_written_differently_are_joined() -> None:
    X, y = draw(3)
    y[:] = 1.0
    short = grown(X[:300], y[:300], 300)
    other = Forest(short.parameters, [2])
    other.update(X[:300], y[:300])
    other.store.encode_as(all_numeric(X.shape[1]))
    joined = Forest.join([short, other])
    assert bytes_of(joined) == bytes_of(short) + bytes_of(other)
    joined.update(X[300:], y[300:])
    expected = grown(X, y, ROWS)
    assert bytes_of(joined)[: len(bytes_of(expected))] == bytes_of(expected)


def test_a_binary_feature_takes_two_bits_of_a_box() -> None:
    rng = np.random.default_rng(0)
    X = np.hstack([rng.random((ROWS, 4)), rng.random((ROWS, 100)) < 0.2]).astype(np.float32)
    y = (X[:, 0] > X[:, 5]).astype(np.float64)
    tree = grown(X, y, ROWS).trees[0]
    per_node = nodes.tree_bytes(tree) / len(tree.i)
    assert per_node == 64 + 4 * 2 * 4 + 8 * 2 * 2


def test_boxes_are_read_as_they_were_written() -> None:
    rng = np.random.default_rng(3)
    for n_binary in (3, 63, 64, 65, 130):
        values = rng.random((n_binary, 2)).astype(np.float32)
        values[0] = values[0, 0]  # the second is not known yet
        order = rng.permutation(n_binary + 5)
        binary, stepped = np.sort(order[:n_binary]), np.sort(order[n_binary:][:3])
        steps = Stepped(stepped, np.array([0.25, 2.0, 2.0**-20]), np.array([0.0, 5.0, -40_000.0]))
        columns = make_columns(n_binary + 5, binary, values, steps)
        tree = nodes.make_tree(columns, 1, 200)
        ends = rng.random((2, 200, n_binary + 5)).astype(np.float32)
        ends[:, :, stepped] = (rng.integers(-9, 9, (2, 200, 3)) + steps.origins) * steps.units
        picked = rng.integers(2, size=(2, 200, n_binary))
        ends[:, :, binary] = values[np.arange(n_binary), picked]
        lower, upper = np.minimum(*ends), np.maximum(*ends)
        tree.bits[:] = ~np.uint64(0)  # what was there before
        tree.d[:, nodes.STAT] = 1.0
        assert nodes.write_boxes(tree, slice(10, 200), lower[10:], upper[10:])
        reported = nodes.read_boxes(tree, slice(10, 200))
        assert reported[0].tobytes() == lower[10:].tobytes()
        assert reported[1].tobytes() == upper[10:].tobytes()
        assert (tree.bits[:10] == ~np.uint64(0)).all()


def test_boxes_that_columns_cannot_write_are_noticed() -> None:
    columns = make_columns(70, np.arange(66), [[0.0, 1.0]] * 65 + [[2.0, 2.0]], STEPS)
    box = np.zeros((1, 70), np.float32)
    box[0, 65] = 2.0
    tree = nodes.make_tree(columns, 1, 1)
    tree.d[0, nodes.STAT] = 1.0
    one = slice(0, 1)
    assert nodes.write_boxes(tree, one, box, box)
    for feature, value in ((0, 0.5), (64, -0.0), (65, 0.0), (67, 0.3), (68, 40_000.0), (67, -0.0)):
        other = box.copy()
        other[0, feature] = value
        for lower, upper in ((box, other), (other, box), (other, other)):
            assert not nodes.write_boxes(tree, one, lower, upper), (feature, value)
    tree.d[0, nodes.STAT] = 0.0  # there is no box
    assert nodes.write_boxes(tree, one, other, other)


def test_values_do_not_depend_on_the_order_of_rows() -> None:
    rng = np.random.default_rng(4)
    X = rng.integers(0, 2, (300, 9)).astype(np.float32)
    X[:, 0], X[:, 1] = 0.5, rng.random(300)
    X[-1, 2] = 7.0  # a third value, last of all
    X[5, 3] = 7.0  # of a row that is of no account
    has_rows = np.arange(300) != 5
    orders = [np.arange(300), np.arange(300)[::-1], rng.permutation(300)]
    found = [box_encoding_choice.find_columns(9, [(X[o], X[o], has_rows[o])]) for o in orders]
    for columns in found:
        assert columns.binary.tolist() == [0, 3, 4, 5, 6, 7, 8]
        assert columns.values.tolist() == [[0.5, 0.5], *([[0.0, 1.0]] * 6)]
    assert (
        box_encoding_choice.find_columns(9, [], X[has_rows]).binary.tolist()
        == found[0].binary.tolist()
    )
    nothing = box_encoding_choice.find_columns(9, [(X, X, np.zeros(300, bool))])
    assert len(nothing.binary) in (0, 9)
    assert (
        box_encoding_choice.find_columns(9, [], rng.random((5, 9), np.float32)).binary.tolist()
        == []
    )


def test_forests_whose_rows_began_otherwise_are_laid_out_alike() -> None:
    """As shards of a model are, which learn the same rows: to join them writes no box anew."""
    X, y = draw(3)
    X = np.where(np.isin(np.arange(X.shape[1]), [0, 1, 2]), X, X > 0.2).astype(np.float32)
    header, trees = grown(X, y, ROWS).state()
    order = np.arange(len(trees[1]["left"]))[::-1]  # node ids turned round
    place = np.argsort(order)
    turned = {name: array[order] for name, array in trees[1].items()}
    for name in ("left", "right", "parent"):
        links = turned[name]
        turned[name] = np.where(links >= 0, place[links], -1).astype(np.int32)
    entries = header["trees"]
    last = {**entries[1], "root": int(place[entries[1]["root"]])}
    one = Forest.from_state({**header, "trees": [entries[0]]}, [trees[0]])
    other = Forest.from_state({**header, "trees": [last]}, [turned])
    joined = Forest.join([one, other])
    assert len(joined.trees[0].columns.binary) > 3
    assert joined.trees[0] is one.trees[0]
    assert joined.trees[1] is other.trees[0]


@pytest.mark.parametrize("is_first", [False, True], ids=["fewer values first", "all of them first"])
def test_stored_trees_are_written_alike_whichever_is_read_first(
    is_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    X, y = draw(3)
    some = np.where(np.isin(np.arange(X.shape[1]), [0, 1, 2]), X, X[0])  # no value of its own
    few, all_of_them = (grown(rows, y, ROWS).state() for rows in (some, X))
    header, order = few[0], [all_of_them, few] if is_first else [few, all_of_them]
    entries = [one[0]["trees"][t] for t, one in enumerate(order)]
    trees = [one[1][t] for t, one in enumerate(order)]
    both = Forest.from_state({**header, "trees": entries}, trees)
    one, other = (
        Forest.from_state({**header, "trees": [entry]}, [tree])
        for entry, tree in zip(entries, trees, strict=True)
    )
    looked_through = []
    find = box_encoding_choice.find_columns
    monkeypatch.setattr(
        forest_module, "find_columns", lambda *of: looked_through.append(of) or find(*of)
    )
    beside = Forest.from_state({**header, "trees": entries[1:]}, trees[1:], one)
    assert len(looked_through) == (0 if is_first else 1)
    assert box_encoding_choice.alike([*both.trees])
    assert bytes_of(both) == bytes_of(Forest.join([one, other]))
    assert bytes_of(both) == bytes_of(Forest.join([one, beside]))


def test_a_category_seen_late_rewrites_no_box(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(6)
    late = np.arange(ROWS)[:, None] >= [0, 0, 0, 600, 700, 800]  # when a category comes
    X = np.hstack([rng.random((ROWS, 2)), late & (rng.random((ROWS, 6)) < 0.5)]).astype(np.float32)
    y = (X[:, 0] > X[:, 2]).astype(np.float64)
    forest = grown(X[:600], y[:600], 600)
    monkeypatch.setattr(box_encoding_choice, "fitted", None)
    forest.update(X[600:], y[600:])
    monkeypatch.undo()
    assert bytes_of(forest) == bytes_of(grown(X, y, 1))


def test_columns_take_in_a_second_value_above_the_first_alone() -> None:
    columns = make_columns(5, [0, 2, 4], [[0.0, 0.0], [0.0, 1.0], [-1.0, -1.0]])
    row = np.array([[0.0, 9.0, 1.0, 9.0, -1.0]], np.float32)

    def with_value(feature: int, value: float) -> Columns | None:
        changed = row.copy()
        changed[0, feature] = value
        return box_encoding_choice.extended(columns, np.concatenate([row, changed]))

    reported = with_value(0, 0.5)
    assert reported is not None
    assert reported.binary.tolist() == [0, 2, 4]
    assert reported.values.tolist() == [[0.0, 0.5], [0.0, 1.0], [-1.0, -1.0]]
    same = with_value(1, 3.0)  # a numeric one
    assert same is not None
    assert same.values.tolist() == columns.values.tolist()
    assert with_value(0, -0.5) is None  # bits of the first would become bits of the second
    assert with_value(2, 0.5) is None  # a third value
    assert with_value(4, -0.5) is None  # stored as a greater number, -1 would be the second


@pytest.mark.parametrize("late", [0, 1, 2])  # a third value, one that is finer, one far out
def test_rows_behind_the_first_are_written_as_they_are(
    late: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    X = np.random.default_rng(7).integers(0, 2, (400, 6)).astype(np.float32)
    X[:, :3] += np.arange(400)[:, None] % [3, 5, 7]
    X[399, [3, 0, 1]] = np.where(np.arange(3) == late, [9.0, 2.0**-14, 2e5], X[399, [3, 0, 1]])
    y = X[:, 0] + X[:, 3]
    whole = grown(X, y, 400, n_classes=0)
    monkeypatch.setattr(box_encoding_choice, "_ENOUGH", 50)
    first = grown(X, y, 400, n_classes=0)
    assert box_encoding_choice.alike([*whole.trees, *first.trees])
    monkeypatch.undo()
    before = box_encoding_choice.find_columns(6, [], X[:50])
    assert not box_encoding_choice.alike([first.trees[0], first.trees[0]._replace(columns=before)])
    assert bytes_of(first) == bytes_of(whole) == bytes_of(grown(X, y, 1, n_classes=0))


def test_no_rows_do_not_decide_how_boxes_are_written() -> None:
    X, y = draw(8)
    forest = grown(X[:0], y[:0], 1)
    forest.update(X[:0], y[:0])
    assert box_encoding_choice.alike([forest.trees[0], Forest(parameters(X), range(1)).trees[0]])
    forest.update(X, y)
    assert bytes_of(forest) == bytes_of(grown(X, y, ROWS))


@pytest.mark.parametrize("number", range(3))
def test_boxes_looked_at_one_by_one_are_written_as_all_at_once(
    monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    X, y = draw(number)
    at_once = grown(X, y, 50)
    monkeypatch.setattr(nodes, "_BYTES_TOGETHER", 1)
    one_by_one = grown(X, y, 50)
    for tree, other in zip(at_once.store.trees, one_by_one.store.trees, strict=True):
        assert len(list(nodes.chunks(tree))) == tree.head_i[nodes.N_NODES]
        assert box_encoding_choice.are_same(tree.columns, other.columns)
        used = len(list(nodes.chunks(tree)))
        for box, its in ((tree.box, other.box), (tree.steps, other.steps), (tree.bits, other.bits)):
            assert box[:used].tobytes() == its[:used].tobytes()


def test_boxes_of_a_wide_tree_are_not_all_floats_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes, "_BYTES_TOGETHER", 2**22)
    random = np.random.default_rng(0)
    X = (random.random((300, 20_000), np.float32) < 0.5).astype(np.float32)
    forest = grown(X, random.integers(0, 2, 300).astype(np.float64), 300)
    tree = forest.store.trees[0]
    as_floats = 8 * X.shape[1] * int(tree.head_i[nodes.N_NODES])
    for act in (
        lambda: box_encoding_choice.loaded_bytes([tree]),
        lambda: nodes.lay_out(tree, tree.columns),
    ):
        act()  # compiles
        tracemalloc.start()  # counts arrays
        try:
            act()
            assert tracemalloc.get_traced_memory()[1] < as_floats / 2
        finally:
            tracemalloc.stop()
