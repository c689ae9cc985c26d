"""Predictions of trees by number: sums over trees, each tree's answers, depths.

Relies on the kernels of :mod:`dmondrian.tree.loops` and
:mod:`dmondrian.ensemble.predictor.predictor_kernels`. Promises predictions that depend on the trees
and the row alone: not on threads, on other rows, on how boxes are encoded, or on whether trees are
frozen.

Shapes: n rows, d features, K classes, k outputs (K, or 1 for regression), T trees, L lifetimes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from dmondrian.ensemble.density_risk import sweep_density
from dmondrian.ensemble.lifetime_selection import (
    LifetimePath,
    chosen_lifetime,
    lifetime_path,
    sweep,
)
from dmondrian.ensemble.predictor.predictor import (
    FrozenOutput,
    FrozenTreeCache,
    FrozenTrees,
    ask_frozen,
    rows_at_a_time,
)
from dmondrian.ensemble.predictor.predictor_kernels import FrozenTree, collect_frozen
from dmondrian.ensemble.rows.prepared_rows import Preparation, PreparedRows
from dmondrian.ensemble.settings.lifetime import check_lifetimes
from dmondrian.ensemble.settings.parameters import ForestParameters, policies
from dmondrian.ensemble.settings.systems import Policies
from dmondrian.ensemble.sums.prediction_sums import Sums, stacked, sums_to_add_to
from dmondrian.ensemble.threads import run_threads
from dmondrian.ensemble.tree_store import TreeStore
from dmondrian.errors import ParameterError
from dmondrian.losses.depth import Depth
from dmondrian.losses.label import ROWS_ABOVE, Label
from dmondrian.rules.gaussian import GaussianHierarchy
from dmondrian.tree import nodes
from dmondrian.tree.address_table import table_of
from dmondrian.tree.box_encoding import Rows, read_only
from dmondrian.tree.box_encoding_choice import without_boxes
from dmondrian.tree.loops import collect, gather_all, predict

_CHUNK = 4096  # rows of a prediction task: enough to keep a tree in cache
_NONE_3D, _NONE_1D = np.empty((0, 0, 0)), np.empty(0)


class Output(NamedTuple):
    """Numbers that trees are asked for."""

    loss: Any  # policy of what a cell forecasts
    n_sums: int  # numbers that are summed over trees
    width: int  # numbers of a tree's answer


class Predictor:
    """Predictions of the trees of a store, as they are now.

    Parameters
    ----------
    parameters : ForestParameters
    tree_numbers : int64 [T], increasing
    store : TreeStore
        Of the trees with these numbers.

    Attributes
    ----------
    parameters, tree_numbers, store
    policies : Policies
    preparation : Preparation
        What is done to rows before trees see them.
    frozen_cache : FrozenTreeCache
        The trees frozen for prediction.
    node_risks : callable or None
        ``node_risks(tree)`` is what the rows of each node lose by a loss of the user's own,
        float64 [m].
    """

    def __init__(
        self, parameters: ForestParameters, tree_numbers: np.ndarray, store: TreeStore
    ) -> None:
        self.parameters, self.policies = parameters, policies(parameters)
        self.tree_numbers, self.store = tree_numbers, store
        self.preparation = Preparation(parameters)
        self.frozen_cache = FrozenTreeCache()
        self.node_risks: Callable[[nodes.Tree], np.ndarray] | None = None
        # Trees with what their rule gathered at a lifetime, and their addresses.
        self._gathered: tuple[float, list[nodes.Tree], np.ndarray] | None = None
        self._chosen: np.ndarray | None = None  # lifetimes of trees that choose their own

    def forget(self) -> None:
        """Forget what was found out from all nodes, before they change."""
        self._gathered = self._chosen = None
        if self.frozen_cache.is_begun:
            self.frozen_cache = FrozenTreeCache()

    @property
    def n_outputs(self) -> int:
        """Width of a prediction: classes, or outputs of a cell."""
        return self.parameters.n_outputs

    @property
    def width(self) -> int:
        """Numbers of a tree's answer: a Gaussian's two moments, else the outputs."""
        return self.n_outputs + int(self.parameters.has_gaussian_mixture)

    @property
    def output(self) -> Output:
        """The forest's own predictions."""
        return Output(self.policies.loss, self.n_outputs, self.width)

    @property
    def sample_output(self) -> Output:
        """Output that trees are asked for, of rows that calibrations are fitted to."""
        return self._label_output if self.parameters.gives_label_variance else self.output

    @property
    def _label_output(self) -> Output:
        """Two moments of labels."""
        return Output(Label(ROWS_ABOVE, self.parameters.empty_prior), 2, 2)

    def check_learned(self) -> None:
        """Refuse a forest without rows, which has no cell that could answer."""
        if self.store.total_weight == 0.0:
            raise ParameterError("the forest has learned no row of positive weight: fit it first")

    @property
    def is_leafwise(self) -> bool:
        """Whether what a tree predicts depends on the leaf alone, whatever its box."""
        return self.parameters.is_leafwise

    def _encoded(self, rows: PreparedRows, any_box: bool) -> Rows:
        """Return rows as boxes are written, where these are looked at and can write all rows.

        Else in floats alone: boxes stay as they are, for what is predicted once is not learned.
        """
        encoded = None
        if self.store.trees and (any_box or not self.is_leafwise):
            encoded = rows.encode(self.store.trees[0].columns)
        return without_boxes(rows.values) if encoded is None else encoded

    def predict_sums(
        self,
        X: np.ndarray | PreparedRows,
        n_threads: int = 1,
        spread: bool = False,
        distance: bool = False,
        onto: Sums | None = None,
        lifetimes: np.ndarray | None = None,
        labels: bool = False,
    ) -> Sums:
        """Sum the trees' predictions, in the order of their numbers.

        Trees are added one by one, so sums over trees 0 to 4 continued over trees 5 to 9 are to
        the last bit those over trees 0 to 9.

        Parameters
        ----------
        X : float32 [n, d], C-contiguous, or PreparedRows
        n_threads : int
            Threads over chunks of rows.
        spread, distance : bool
            Also sum second moments, and the extensions to each leaf's box where there are boxes.
        onto : Sums, optional
            Sums over trees with lower numbers, of the same rows and kinds, to go on from; they
            are left as they are. At the default lifetime only.
        lifetimes : float64 [L], optional
            Increasing lifetimes to predict at, up to the one that trees are realised to; by
            default the one of the rows learned so far.
        labels : bool
            Second moments are those of the label at the row, not of the predictions; of a forest
            that ``gives_label_variance``, at the default lifetime only.
        """
        self.store.check_not_torn()
        if (onto is not None or labels) and lifetimes is not None:
            raise ParameterError("sums go on, and tell labels, at the default lifetime only")
        distance = distance and self.parameters.has_boxes
        if distance:
            self.store.check_boxes()
        if labels:
            onto = None if onto is None else onto.beside()
            return self._sum(self._label_output, X, n_threads, False, distance, onto, None).apart()
        lives = None if lifetimes is None else self._lifetimes(lifetimes)
        if lives is not None and len(lives) > 1 and self.parameters.has_gaussian_mixture:
            stages = [lives[i : i + 1] for i in range(len(lives))]
            return stacked(
                [self._sum(self.output, X, n_threads, spread, distance, None, at) for at in stages]
            )
        return self._sum(self.output, X, n_threads, spread, distance, onto, lives)

    def _sum(
        self,
        output: Output,
        X: np.ndarray | PreparedRows,
        n_threads: int,
        spread: bool,
        distance: bool,
        onto: Sums | None,
        lifetimes: np.ndarray | None,
    ) -> Sums:
        """Sum an output over trees; see :meth:`predict_sums`."""
        n, lives = len(X), self._lifetimes(None) if lifetimes is None else lifetimes
        prepared, shape = self.preparation.prepare(X), (n, len(lives), output.n_sums)
        total = sums_to_add_to(onto and onto.total, shape, onto is None)
        square = sums_to_add_to(onto and onto.square, shape, onto is None) if spread else None
        far = sums_to_add_to(onto and onto.distance, (n,), onto is None) if distance else None
        rule, ready, table = self._ready(float(lives[-1]))
        loss, frozen = output.loss, None
        each = self.tree_lifetimes() if lifetimes is None else self._for_each_tree(lives)
        is_plain = len(lives) == 1 and self.store.total_weight > 0.0
        if self.is_leafwise and is_plain and n > 1:  # one row goes down many trees at a time
            asked = FrozenOutput(loss, rule, each[:, 0], output.width)
            frozen = self.frozen_cache.trees(ready, asked, n, n_threads)
        rows = self._encoded(prepared, distance)
        share = max(-(-n // max(n_threads, 1)), _CHUNK)  # fewer do not pay for a thread
        chunk = _CHUNK if frozen is None else rows_at_a_time(frozen.trees, share)

        def work(start: int) -> None:
            part = slice(start, min(start + chunk, n))
            self._predict_chunk(
                output,
                rule,
                ready,
                table,
                frozen,
                Rows(*(values[part] for values in rows)),
                each,
                total[part],
                _NONE_3D if square is None else square[part],
                _NONE_1D if far is None else far[part],
            )

        run_threads(work, range(0, n, chunk), n_threads)
        n_trees = len(self.store.trees) + (0 if onto is None else onto.n_trees)
        origin = self.store.origin
        if lifetimes is None:
            return Sums(total[:, 0], None if square is None else square[:, 0], far, n_trees, origin)
        square = None if square is None else square.transpose(1, 0, 2)
        return Sums(total.transpose(1, 0, 2), square, far, n_trees, origin)

    def _lifetimes(self, lifetimes: np.ndarray | None) -> np.ndarray:
        """Return lifetimes for the kernels; by default the forest's own."""
        if lifetimes is None:
            return read_only(np.array([self.parameters.lifetime_at(self.store.total_weight)]))
        if self.parameters.aggregates_prunings:
            raise ParameterError("a mixture over all prunings has the trees' own lifetime only")
        return read_only(check_lifetimes(lifetimes, self.parameters.realised_lifetime))

    def _ready(self, lifetime: float) -> tuple[Any, list[nodes.Tree], np.ndarray]:
        """Return rule, trees and their addresses, with what the rule reads of all nodes.

        A Gaussian hierarchy's messages are those of one lifetime; they are kept until rows are
        learned or another lifetime is asked for.
        """
        if not self.parameters.has_gaussian_mixture:
            return self.policies.rule, self.store.trees, self.store.addresses
        rule, gathered = GaussianHierarchy(lifetime, False), self._gathered
        if gathered is None or gathered[0] != lifetime:
            trees = [_with_messages(rule, tree) for tree in self.store.trees]
            gathered = lifetime, trees, table_of(trees)
            self._gathered = gathered  # other threads may have put theirs there meanwhile
        return rule, *gathered[1:]

    def _predict_chunk(
        self,
        output: Output,
        rule: Any,
        trees: list[nodes.Tree],
        table: np.ndarray,
        frozen: FrozenTrees | None,
        rows: Rows,
        lives: np.ndarray,
        total: np.ndarray,
        square: np.ndarray,
        distance: np.ndarray,
    ) -> None:
        chosen = self.policies._replace(loss=output.loss, rule=rule)
        k, seed = output.n_sums, np.uint64(self.parameters.seed)
        if self.store.total_weight == 0.0:  # no tree has a cell: all classes are as likely
            total += len(trees) / k if self.parameters.gives_proba else 0.0
            if len(square):
                square += len(trees) / k**2 if self.parameters.gives_proba else 0.0
        elif frozen is not None:
            columns, wanted = trees[0].columns, (total, square, distance)
            ask_frozen(frozen, rule, table, columns, output.width, rows, *wanted)
        else:
            width, numbers = output.width, self.tree_numbers.astype(np.uint64)
            predict(
                *chosen, table, trees[0].columns, seed, numbers, rows, lives, width, total, square,
                distance,
            )  # fmt: skip

    def tree_lifetimes(self) -> np.ndarray:
        """Return the lifetime that each tree predicts at by default, float64 [T, 1]."""
        if not self.parameters.selects_lifetimes:
            return self._for_each_tree(self._lifetimes(None))
        if self._chosen is None:  # since the last row
            cost, n = self.parameters.cost, self.store.total_weight
            best = [chosen_lifetime(cost, self._sweep(t), n) for t in range(len(self.store.trees))]
            self._chosen = read_only(np.array(best, np.float64)[:, None])
        return self._chosen

    def lifetime_path(self) -> LifetimePath:
        """Return the risks of trees that choose their lifetimes, and what each chose."""
        self.check_learned()
        cost, swept = self.parameters.cost, map(self._sweep, range(len(self.store.trees)))
        return lifetime_path(self.store.trees, cost, list(swept), self.store.total_weight)

    def _sweep(self, t: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the lifetimes at which a tree changes, and its risks from there on."""
        cost, tree = self.parameters.cost, self.store.trees[t]
        if not self.store.used(t):
            return np.zeros(1), np.zeros(1)
        if cost.loss == "density":
            number, end = int(self.tree_numbers[t]), self.parameters.realised_lifetime
            return sweep_density(tree, self.parameters.seed, number, end, cost)
        if cost.is_own and self.node_risks is None:
            raise ParameterError(
                "the lifetimes are chosen by a loss of the user's own, whose functions no forest "
                "holds: ask the estimator that was fitted with them"
            )
        node_risks = None if self.node_risks is None else self.node_risks(tree)
        return sweep(tree, self.policies.loss, cost, node_risks)

    def _for_each_tree(self, lifetimes: np.ndarray) -> np.ndarray:
        return read_only(np.repeat(lifetimes[None], len(self.store.trees), axis=0))

    def freeze(self, n_threads: int = 1) -> None:
        """Freeze the trees now, for few predictions; many do so by themselves."""
        if self.is_leafwise and self.store.total_weight > 0.0:
            self.frozen_trees(n_threads)

    def frozen_trees(self, n_threads: int = 1) -> list[FrozenTree]:
        """Return the trees frozen at the lifetime that they predict at now; see :meth:`freeze`."""
        self.store.check_not_torn()
        lifetimes = self.tree_lifetimes()
        rule, ready, _ = self._ready(float(self._lifetimes(None)[-1]))
        output = FrozenOutput(self.policies.loss, rule, lifetimes[:, 0], self.width)
        return self.frozen_cache.make(ready, output, n_threads).trees

    def answers(
        self, X: np.ndarray | PreparedRows, chosen: Policies, lifetimes: np.ndarray, width: int
    ) -> np.ndarray:
        """Return what each tree predicts by itself, under other policies.

        Parameters
        ----------
        X : float32 [n, d], C-contiguous, or PreparedRows
        chosen : Policies
            The forest's own, with another loss or rule; a Gaussian hierarchy's are of one lifetime.
        lifetimes : float64 [L] or [T, L]
            Increasing, up to the one that trees are realised to; of all trees, or of each.
        width : int
            Numbers of an answer.

        Returns
        -------
        float64 [T, n, L, width]

        Raises
        ------
        ParameterError
            If no row was learned.
        """
        self.store.check_not_torn()
        self.check_learned()
        prepared = self.preparation.prepare(X)
        lives = read_only(lifetimes) if lifetimes.ndim == 2 else self._for_each_tree(lifetimes)
        answers = np.empty((len(self.store.trees), len(X), lives.shape[1], width))
        rule, trees, table = self._ready(float(lives[0, -1]))
        is_own = type(chosen.rule) is type(rule) and chosen.rule == rule
        if self.is_leafwise and is_own and lives.shape[1] == 1:
            output = FrozenOutput(chosen.loss, rule, lives[:, 0], width)
            frozen = self.frozen_cache.trees(trees, output, n_rows=0, n_threads=1)
            if frozen is not None:
                collect_frozen(frozen.table, width, read_only(prepared.values), answers[:, :, 0])
                return answers
        rows, columns = self._encoded(prepared, False), trees[0].columns
        seed, numbers = np.uint64(self.parameters.seed), self.tree_numbers.astype(np.uint64)
        collect(*chosen, table, columns, seed, numbers, rows, lives, answers)
        return answers

    def weighted_depth(self, X: np.ndarray | PreparedRows) -> np.ndarray:
        """Return the posterior mean depth of each row's leaf, mean over trees, float64 [n].

        Where trees do not mix over prunings that is the depth of the cell that predicts.
        """
        self.store.check_not_torn()
        chosen, trees = self.policies.learning._replace(loss=Depth(1.0)), self.store.trees
        total = np.zeros((len(X), 1, 1))
        if self.store.total_weight == 0.0:
            return total[:, 0, 0]
        rows, lives = self._encoded(self.preparation.prepare(X), False), self.tree_lifetimes()
        table, columns = self.store.addresses, trees[0].columns
        seed, numbers = np.uint64(self.parameters.seed), self.tree_numbers.astype(np.uint64)
        predict(
            *chosen, table, columns, seed, numbers, rows, lives, 1, total, _NONE_3D, _NONE_1D
        )  # fmt: skip
        return total[:, 0, 0] / len(trees)


def _with_messages(rule: Any, tree: nodes.Tree) -> nodes.Tree:
    """Return the tree with what the rule gathers from all its nodes."""
    used = int(tree.head_i[nodes.N_NODES])
    if used:
        tree = tree._replace(messages=np.zeros((used + 2, nodes.MESSAGE_SIZE)))
        gather_all(rule, tree)
    return tree
