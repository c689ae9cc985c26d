"""Scaled trees: their feature scales are searched on rows kept of a stream, for members to mix.

Scales shape trees, so that trees whose scales are found after some rows have to learn these anew.
Before row ``FIRST_SCALED``, then at four times the row before, and from ``LONGEST_LIFE`` on at each
multiple of it (of blocks of labels: at the end of the block), all scaled trees are replaced: scales
are searched on the newest kept rows, up to ``_MOST_SEARCHED``, as forests that never forget search
theirs on their first rows (:mod:`dmondrian.tuning.feature_scales`), and new trees learn the kept
rows in order, then those that come. So they are bounded as kept rows and lives are, and follow
where columns matter.

A member's forecast is the mean over ``N_TREES`` of them: the mean of few trees is far behind that
of many where columns act together, and a scaled tree costs a tenth of a member or less. A search
takes seconds; it changes nothing, so that neither readers nor Ctrl-C wait for it.

Relies on :class:`dmondrian.forest.forest.Forest` and on the rows that
:class:`dmondrian.boosting.boosted_stream.BoostedStream` keeps. Promises a pure function of the
parameters, the seed, the numbers of the members and the numbered rows, as that does.

Shapes: T members, n rows, d columns, k outputs (K classes, or mean and variance).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from dmondrian.drift.label_policies import LabelPolicies, label_policies_of
from dmondrian.drift.tree_forecasts import forecast, forecast_and_learn
from dmondrian.ensemble.rows.labelled_rows import LabelledRows
from dmondrian.ensemble.settings.parameters import ForestParameters
from dmondrian.errors import CorruptError, ParameterError
from dmondrian.forest.forest import Forest
from dmondrian.tuning.feature_scales import learn_scales, may_be_learned

FIRST_SCALED, LONGEST_LIFE = 1024, 65536  # rows, powers of two whose exponents are both even
N_TREES = 8
# Features up to which there are scaled trees: of more, trees of bounded bytes would have few nodes.
WIDEST = 200
_MOST_SEARCHED = 4096  # rows; of fewer, scales are not searched for long
# Bound of a tree, in bytes by this formula and not by those that nodes take in memory: forests
# depend on it, and are to be the same when the memory of nodes is laid out anew.
_MOST_BYTES, _NODE_BYTES, _COLUMN_BYTES = 2**24, 64, 8
_KEYS = {"format", "parameters", "warmup", "trees"}  # of a state
_SEED = 0x5CA1ED  # other draws than those of permanent trees

Scales = tuple[float, ...] | None
"""One per column; None where no scales are better than equal ones."""
GetOrSearch = Callable[[int, Callable[[], Scales]], Scales]
"""Returns the scales of trees grown after so many rows: kept ones, or what the function finds."""


def last_birth(before: int, position: int) -> int | None:
    """Return the last birth behind row ``before``, up to ``position``; None for none."""
    birth = position // LONGEST_LIFE * LONGEST_LIFE
    if not birth:
        birth = FIRST_SCALED
        while 4 * birth <= position:
            birth *= 4
    return birth if before < birth <= position else None


def has_scaled_trees(parameters: ForestParameters, position: int) -> bool:
    """Return whether there are scaled trees after ``position`` rows.

    Of more columns than ``WIDEST`` there are none.
    """
    return position >= FIRST_SCALED and parameters.n_features <= WIDEST


def never_grown(parameters: ForestParameters) -> str | None:
    """Return, as a sentence of a warning, why no scaled trees are ever grown; None if they are."""
    if not parameters.mixes_scaled_trees or parameters.n_features <= WIDEST:
        return None
    return (
        f'"scaled" of experts grows no trees: rows have {parameters.n_features:,} features, and '
        f"these trees are grown of {WIDEST} at most: leave it out, or give fewer"
    )


class ScaledTrees:
    """Scaled trees of some members.

    Parameters
    ----------
    parameters : ForestParameters
        Of the members; rows come as their permanent trees take them.
    numbers : sequence of int
        Of the members, ascending.

    Attributes
    ----------
    forest : Forest or None
        All trees, those of a member behind those of the one before; None before the first birth.
    get_or_search : GetOrSearch
        Keeps scales for members that learn the same rows with the same seed, so that each search is
        made once. By default all are searched here.
    """

    def __init__(self, parameters: ForestParameters, numbers: Sequence[int]) -> None:
        self._label_policies: LabelPolicies = label_policies_of(parameters)
        self._n_members = len(numbers)
        self._numbers = [number * N_TREES + i for number in numbers for i in range(N_TREES)]
        unset = {"drift": None, "feature_scales": None, "feature_units": None}
        plain = parameters.replace(seed=parameters.seed ^ _SEED, **unset)
        most = max(_MOST_BYTES // (_NODE_BYTES + _COLUMN_BYTES * parameters.n_features), 1)
        self._parameters = plain.replace(max_nodes=min(most, parameters.max_nodes or most))
        self.forest: Forest | None = None
        self.get_or_search: GetOrSearch = _search_always

    @property
    def n_bytes(self) -> int:
        """Bytes of memory held by the trees."""
        return 0 if self.forest is None else self.forest.n_bytes

    def forecast(self, X: np.ndarray) -> np.ndarray | None:
        """Return what each member's trees forecast of rows float32 [n, d], float64 [T, n, k].

        None before the first birth.
        """
        return (
            None
            if self.forest is None
            else self._means(forecast(self.forest, self._label_policies, X))
        )

    def forecast_and_learn(
        self, X: np.ndarray, y: np.ndarray, w: np.ndarray, n_threads: int
    ) -> np.ndarray | None:
        """Learn rows; return what :meth:`forecast` does, of each just before it is learned.

        Parameters
        ----------
        X : float32 [n, d]
        y : float64 [n]
        w : float64 [n] or [0]
            Weights > 0, or none for weights of one.
        n_threads : int
        """
        if self.forest is None:
            return None
        each, _ = forecast_and_learn(self.forest, self._label_policies, X, y, w, n_threads)
        return self._means(each)

    def learn(self, X: np.ndarray, y: np.ndarray, w: np.ndarray, n_threads: int) -> None:
        """Learn rows; parameters as in :meth:`forecast_and_learn`."""
        if self.forest is not None:
            self.forest.update(X, y, w if len(w) else None, n_threads)

    def _means(self, each: np.ndarray) -> np.ndarray:
        """Return the mean over each member's trees: of probabilities, or of laws of a label."""
        of_members = each.reshape(self._n_members, N_TREES, *each.shape[1:])
        means = _sum_in_order(of_members) / N_TREES
        if self._label_policies.is_regression:
            apart = of_members[..., 0] - means[:, None, :, 0]
            means[..., 1] += _sum_in_order(apart * apart) / N_TREES
        return means

    def grown_after(
        self, before: int, position: int, kept_rows: Callable[[], LabelledRows], n_threads: int
    ) -> Forest | None:
        """Return the trees that were born since ``before`` rows, to replace these; None for none.

        Parameters
        ----------
        before, position : int
            Rows learned then, and now.
        kept_rows : callable
            Returns the rows that are kept, by their numbers.
        n_threads : int
        """
        birth = last_birth(before, position)
        if birth is None or not has_scaled_trees(self._parameters, position):
            return None
        kept = kept_rows()
        n = min(len(kept.y), _MOST_SEARCHED)
        newest = kept.taken(slice(len(kept.y) - n, None))

        def search() -> Scales:
            return learn_scales(self._parameters, newest, n_threads, n == _MOST_SEARCHED)

        scales = self.get_or_search(position, search)
        forest = Forest(self._of_scales(scales), self._numbers)
        forest.update(kept.X, kept.y, kept.w, n_threads)
        return forest

    def _of_scales(self, scales: Scales) -> ForestParameters:
        return self._parameters.replace(feature_scales=scales)

    def join(self, others: Iterable[ScaledTrees]) -> None:
        """Take over the trees of the same members in several shards."""
        forests = [scaled.forest for scaled in others]
        some = [forest for forest in forests if forest is not None]
        if 0 < len(some) < len(forests):
            raise ParameterError("members of which some have no scaled trees cannot be joined")
        self.forest = Forest.join(some) if some else None

    def state(self) -> tuple[dict[str, Any] | None, list[dict[str, np.ndarray]]]:
        """Return (JSON-able header, one dict of arrays per tree); of no trees None and none."""
        return (None, []) if self.forest is None else self.forest.state()

    def load_state(
        self, header: Any, trees: Sequence[dict[str, np.ndarray]], position: int
    ) -> None:
        """Take over a :meth:`state` after ``position`` rows.

        Raises
        ------
        CorruptError
            If it is not that of such trees.
        """
        is_due = has_scaled_trees(self._parameters, position)
        if (header is not None) != is_due:
            raise CorruptError(
                f"after {position} rows there should be {'' if is_due else 'no '}scaled trees"
            )
        if header is None:
            return
        forest = Forest.from_state(header, trees)
        scales = forest.parameters.feature_scales
        is_its = forest.parameters == self._of_scales(scales)
        is_its = is_its and forest.tree_numbers.tolist() == self._numbers
        if not is_its or forest.warmup is not None or not forest.total_weight > 0.0:
            raise CorruptError("scaled trees should be those of the members, with rows")
        if scales is not None and not may_be_learned(scales):
            raise CorruptError("scaled trees should have scales that are powers of two up to 1")
        if set(header) != _KEYS:
            raise CorruptError(f"scaled trees should have {sorted(_KEYS)}, found {sorted(header)}")
        self.forest = forest


def _sum_in_order(of_trees: np.ndarray) -> np.ndarray:
    """Return the sum over the second axis, from its first on."""
    total: np.ndarray = of_trees[:, 0].copy()
    for i in range(1, of_trees.shape[1]):
        total += of_trees[:, i]
    return total


def n_trees_of(header: Any) -> int:
    """Return how many trees the header of a :meth:`ScaledTrees.state` is of, unchecked."""
    trees = header.get("trees") if isinstance(header, dict) else None
    return len(trees) if isinstance(trees, list) else 0


def _search_always(position: int, search: Callable[[], Scales]) -> Scales:
    return search()
