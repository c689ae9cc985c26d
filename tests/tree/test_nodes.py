"""Where the split time of a node lies, which shows in the memory alone."""

from __future__ import annotations

import numpy as np
import pytest

from dmondrian.tree import nodes
from dmondrian.tree.box import copy_box, empty_box
from dmondrian.tree.box_encoding import Columns, all_numeric, boxless, make_columns

D, LABELS = 5, 4  # features; statistics that fill a cache line with the words before them
MEMORIES = 12  # those that fill two


def two_valued() -> Columns:
    """Return columns of which two take two values."""
    return make_columns(D, np.array([1, 3]), np.array([[0, 1], [0, 1]], np.float32))


def filled(columns: Columns, n_stats: int, m: int = 7) -> nodes.Tree:
    """Return a tree of ``m`` nodes whose words are all different."""
    tree = nodes.make_tree(columns, n_stats, 2 * m)
    tree.head_i[nodes.N_NODES] = m
    tree.i[:] = np.arange(tree.i.size).reshape(tree.i.shape)
    tree.box[:] = -1.0 - np.arange(tree.box.size).reshape(tree.box.shape)
    for v in range(m):
        nodes.set_time(tree, v, 0.5 + v)
    return tree


@pytest.mark.parametrize("columns", [all_numeric(D), two_valued()], ids=["numeric", "bits"])
@pytest.mark.parametrize("n_stats", [1, 3, LABELS, 5, MEMORIES])
def test_a_row_that_is_whole_cache_lines_without_it_has_the_time_beside(
    columns: Columns, n_stats: int
) -> None:
    tree = filled(columns, n_stats)
    is_beside = n_stats in (LABELS, MEMORIES)
    assert np.shares_memory(tree.times, tree.box) == is_beside
    assert np.shares_memory(tree.times, tree.i) != is_beside
    assert tree.i[0].nbytes == 8 * (nodes.STAT + n_stats + (not is_beside))
    whole = tree.i[0].nbytes + tree.box[0].nbytes
    assert whole == 8 * (nodes.STAT + n_stats + 1) + 8 * len(columns.numeric)
    assert np.array_equal(nodes.times_of(tree), 0.5 + np.arange(7))


def test_without_boxes_the_time_is_in_the_row() -> None:
    tree = filled(boxless(D), LABELS)
    assert tree.box.shape[1] == 0
    assert np.array_equal(nodes.times_of(tree), 0.5 + np.arange(7))


def test_a_tree_that_is_written_another_way_or_grows_keeps_its_times() -> None:
    tree = filled(all_numeric(D), LABELS)
    tree.box[:, [1, 1 + D, 3, 3 + D]] = 1.0
    expected = nodes.times_of(tree).copy()
    links = tree.i.copy()
    for other in (nodes.lay_out(tree, two_valued()), nodes.resize(tree, 100_000)):
        assert np.array_equal(nodes.times_of(other), expected)
        assert np.array_equal(other.i[:7], links[:7])
        assert np.shares_memory(other.times, other.box)


@pytest.mark.parametrize("columns", [all_numeric(D), two_valued()], ids=["numeric", "bits"])
def test_a_box_is_written_and_the_time_beside_it_stays(columns: Columns) -> None:
    tree = filled(columns, LABELS)
    width = 2 * len(columns.numeric)
    copy_box(tree, 2, 4)
    empty_box(tree, 5)
    assert np.array_equal(tree.box[4, :width], tree.box[2, :width])
    assert not tree.box[5, :width].any()
    assert np.array_equal(nodes.times_of(tree), 0.5 + np.arange(7))


def test_a_node_is_a_leaf_at_lifetimes_before_its_split() -> None:
    tree = filled(all_numeric(D), LABELS)
    assert nodes.splits_after(tree, 3, 3.25)
    assert not nodes.splits_after(tree, 3, 3.5)
    assert not nodes.splits_after(tree, 3, np.inf)
    nodes.set_time(tree, 3, np.inf)
    assert nodes.splits_after(tree, 3, 1e300)
    assert not nodes.splits_after(tree, 3, np.inf)
