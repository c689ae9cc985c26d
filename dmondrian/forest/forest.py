"""A forest: an ensemble that chooses its open settings and can be stored.

Relies on :class:`dmondrian.ensemble.ensemble.Ensemble` for learning and predicting, and on
:mod:`dmondrian.tuning.auto_settings` for settings that were left to the stream. Promises that its
state is a pure function of the parameters, the tree numbers and the rows in order.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import chain, pairwise
from typing import Any

import numpy as np

from dmondrian.ensemble.ensemble import FEW, Ensemble
from dmondrian.ensemble.held_interrupts import interrupts_held
from dmondrian.ensemble.rows.prepared_rows import PreparedRows
from dmondrian.ensemble.settings import fringe_settings
from dmondrian.ensemble.settings.kernel_settings import Joint
from dmondrian.ensemble.settings.parameters import ForestParameters
from dmondrian.ensemble.threads import Turns
from dmondrian.errors import CorruptError, ParameterError
from dmondrian.forest import state
from dmondrian.forest.state import FieldsOfTrees
from dmondrian.joint_fit.fit import RowsToLearn, exact_of, learn_jointly
from dmondrian.joint_fit.lifetime_sums import Averaged
from dmondrian.joint_fit.ridge import AT_ONCE, Exact
from dmondrian.prequential.stream_sample import forecast_and_learn
from dmondrian.tree import nodes
from dmondrian.tree.box_delta import box_differences
from dmondrian.tree.box_encoding import Columns, boxless
from dmondrian.tree.box_encoding_choice import alike, boxes_of, find_columns, fitted
from dmondrian.tree.sparse_rows import SparseRows, dense_rows, sparse_rows
from dmondrian.tuning.auto_settings import LAST, Warmup
from dmondrian.uncertainty.temperature_scaling import FittedCalibration, kind_of, new_calibration

# Nodes of a tree from which wide fields are stored without their zeros: their columns take about
# half a millisecond of a tree, which is more than fewer bytes save of smaller ones.
LEAST_SPARSE = 4096


class Forest(Ensemble):
    """An ensemble of Mondrian trees as users know it.

    Parameters
    ----------
    parameters : ForestParameters
    tree_numbers : iterable of int
        Distinct, >= 0; a tree's draws depend on its number, not on its neighbours.
    auto : collection of {"alpha", "charge_opening", "feature_scales", "feature_units"}, optional
        Settings that are chosen from the first rows; until then those of ``parameters``
        are used. Rows learned before the choice are learned anew after it.
    warmup_rows : int
        Distinct rows from which they are chosen for good.
    calibrate : bool or "auto"
        Whether to fit an exponent for the probabilities along the way (classification), or a
        factor for the variance of the label (of a forest that ``gives_label_variance``). With
        "auto" probabilities are mixed with those as they are, and so never much worse.
    trees : list of Tree, optional
        As an ensemble's.

    Attributes
    ----------
    warmup : Warmup or None
        The first rows, until the open settings are chosen for good.
    calibration : Calibration, VarianceFactor or None
    exact : Exact or None
        What cells that are fitted jointly and exactly need to learn more rows.
    """

    def __init__(
        self,
        parameters: ForestParameters,
        tree_numbers: Iterable[int],
        auto: Collection[str] = (),
        warmup_rows: int = LAST,
        calibrate: bool | str = False,
        trees: list[nodes.Tree] | None = None,
    ) -> None:
        super().__init__(parameters, tree_numbers, trees)
        self.calibration: FittedCalibration | None = new_calibration(
            calibrate, parameters.gives_label_variance, parameters.follows_stream
        )
        self.warmup = (
            Warmup.without_rows(auto, parameters.n_features, warmup_rows) if auto else None
        )
        self.exact = exact_of(self)
        self.n_done = 0  # rows of a part that were learned before the rest of it failed

    @property
    def supports_single_row(self) -> bool:
        """Whether its trees alone learn a row and predict it, as :class:`SingleRow` has them do."""
        return True

    @property
    def covering_trees(self) -> list[nodes.Tree] | None:
        """Trees that follow the stream, and are replaced when they are old; None for no such."""
        return None

    @property
    def scaled_trees(self) -> list[nodes.Tree]:
        """Trees beside those with scales of their own; none here."""
        return []

    @property
    def waiting_weight(self) -> float:
        """Weight of rows that came and are not learned yet; 0 here."""
        return 0.0

    def __reduce__(self) -> tuple[Any, ...]:
        """Be copied and pickled as the state: trees are views of memory that no copy shares."""
        header, trees = self.state()
        return Forest.from_state, ({**header, **self._beside()}, trees)

    def update(
        self,
        X: np.ndarray | PreparedRows,
        y: np.ndarray,
        w: np.ndarray | None = None,
        n_threads: int = 1,
        turns: Turns | None = None,
        times: np.ndarray | None = None,
        of: tuple[int, int] | None = None,
    ) -> None:
        """Learn rows in order; see :meth:`dmondrian.ensemble.ensemble.Ensemble.update`.

        Parameters
        ----------
        X, y, w, n_threads
            ``X`` is not prepared while settings are open.
        turns : Turns, optional
            Of the threads that share the forest, where the caller is the learner: they read
            between parts of the rows. If a part fails, those before it are learned.
        times : float64 [n], optional
            Read by forests alone whose labels come by time, see :mod:`dmondrian.drift.members`.
        of : (int, int), optional
            Rows of the caller's that were learned before these, and all rows of it: what a note of
            an error counts. By default none, and these.
        """
        self.check_sizes(y, w)  # before any of them are learned
        self.parameters.check_labels(y)
        if turns is None:
            self._update((X, y, w), n_threads, nullcontext, times)
            return
        if not isinstance(X, PreparedRows):
            self.predictor.preparation.check_width(X)
            self.check_domain(X)
        n, done, self.n_done = len(y), 0, 0
        self._may_be_last = self.may_be_last(y, w)
        try:
            while done < n:
                size = turns.rows_at_once(len(self.store))
                if n_threads > 1:  # fewer are learned on one thread
                    size = max(size, FEW + 1)
                if self.exact is not None:  # each part has all cells fitted anew
                    size = max(size, AT_ONCE)
                part = slice(done, min(done + size, n))
                self._n_later = n - part.stop
                part_weights = None if w is None else w[part]
                of_part = None if times is None else times[part]
                self._update((X[part], y[part], part_weights), n_threads, turns.alone, of_part)
                done, self.n_done = part.stop, 0
        except BaseException as error:
            before, whole = of or (0, n)
            done += before + self.n_done
            error.add_note(
                f"the forest was interrupted amid a part of the {whole} rows, behind the first "
                f"{done}, and refuses to go on: fit anew, or load what was saved before"
                if self.store.is_torn
                else f"the forest has learned the first {done} of the {whole} rows"
            )
            raise
        finally:
            self._n_later, self._may_be_last, self.n_done = 0, None, 0

    def _update(
        self,
        rows: RowsToLearn,
        n_threads: int,
        alone: Callable[[], AbstractContextManager[None]],
        times: np.ndarray | None = None,
    ) -> None:
        """Learn rows X, y, w in order; what others could read is changed ``alone``."""
        if self.parameters.learns_jointly:
            # A ridge or memory that does not suffice is refused between two steps.
            with alone(), _as_one(self, ParameterError):
                self.exact = learn_jointly(self, self.exact, rows, n_threads)
            return
        X, y, w = rows
        if self.warmup is None:
            with alone(), _whole(alone):
                self.calibration = _learn(self, self.calibration, rows, n_threads)
                self.n_done = len(y)
            return
        if isinstance(X, PreparedRows):
            raise ParameterError(
                "the forest's scales and units are still open: give rows as they are, not prepared"
            )
        self.predictor.preparation.check_width(X)
        warmup = self.warmup.after(X, y, w)
        later = None if warmup.is_done else warmup
        chosen = warmup.chosen(self.parameters, self.warmup, n_threads)
        if chosen != self.parameters:  # other trees, which take their place when they are whole
            anew = Ensemble(chosen, self.tree_numbers)
            calibration = None if self.calibration is None else self.calibration.empty
            calibration = _learn(anew, calibration, self.warmup.rows, n_threads)
            calibration = _learn(anew, calibration, rows, n_threads)
            with alone(), _whole(alone):
                self._adopt(anew)
                self.calibration, self.warmup, self.n_done = calibration, later, len(y)
            return
        with alone(), _whole(alone), _as_one(self):
            self.calibration = _learn(self, self.calibration, rows, n_threads)
            self.warmup, self.n_done = later, len(y)

    def state(self, copy: bool = True) -> tuple[dict[str, Any], list[dict[str, np.ndarray]]]:
        """Return (JSON-able header, one dict of arrays per tree).

        Parameters
        ----------
        copy : bool, default=True
            Contiguous arrays of their own; else strided views that may change as trees learn.
        """
        return self._header(), [tree_fields(self.parameters, tree, copy) for tree in self.trees]

    def stored(
        self,
    ) -> tuple[dict[str, Any], Iterable[Mapping[str, np.ndarray | SparseRows]], list[int] | None]:
        """Return the state as checkpoints hold it, with boxes as differences.

        Returns
        -------
        header : dict
            JSON-able.
        trees : iterable of dict of ndarray and SparseRows
            Where there are boxes it makes one tree after the other; SparseRows where one is large.
        rows : list of int or None
            Nodes of each tree, where there are boxes.
        """
        if not self.parameters.has_boxes:
            header, trees = self.state(copy=False)
            return {**header, **self._beside()}, trees, None
        rows = [int(tree.head_i[nodes.N_NODES]) for tree in self.store.trees]
        header = {**self._header(), **self._beside(), "format": state.NESTED}
        return header, stored_fields(self.trees, rows), rows

    def stored_nodes(
        self, rows: Sequence[int], chosen: Sequence[np.ndarray]
    ) -> Iterator[dict[str, np.ndarray | SparseRows]]:
        """Yield what :meth:`stored` has of some nodes of each tree, where there are boxes.

        ``rows`` are the nodes of the trees, and ``chosen`` those of interest, int32 [c] each.
        """
        return stored_fields(self.trees, rows, chosen)

    def _header(self) -> dict[str, Any]:
        """Return the header of a state: all but its trees."""
        self.store.check_not_torn()
        self.store.check_boxes()
        scalars = [
            {
                "number": int(number),
                "root": int(tree.head_i[nodes.ROOT]),
                "floats": [state.encode_float(value) for value in tree.head_f],
            }
            for number, tree in zip(self.tree_numbers, self.store.trees, strict=True)
        ]
        header = {
            "format": state.FORMAT,
            "parameters": self.parameters.to_json(),
            "warmup": None if self.warmup is None else self.warmup.to_json(),
            "trees": scalars,
        }
        if self.calibration is not None:
            header["calibration"] = self.calibration.to_json()
        if self.parameters.learns_jointly:
            is_stored = self.exact is not None and not self.parameters.joint.is_averaged
            header["exact"] = self.exact.to_json() if is_stored else None  # type: ignore[union-attr]  # as asked
        return header

    def _beside(self) -> dict[str, Any]:
        """Return what copies and checkpoints hold beside a state: sums that earlier had none."""
        return {} if self.exact is None else {"beside": self.exact.beside()}

    @classmethod
    def from_state(
        cls,
        header: dict[str, Any],
        trees: FieldsOfTrees,
        other_shard: Forest | None = None,
        with_boxes: bool = True,
    ) -> Forest:
        """Return the forest of a :meth:`state`, every index and value checked.

        One in the form of :meth:`stored` is turned into a :meth:`state` where it is: to keep both
        would take twice the memory. Each tree is taken once, and not looked at again once the next
        one was taken. Boxes are written as those of ``other_shard`` if they can be: shards of a
        model learned the same rows. Trees that come without boxes, of parameters that
        ``predicts_without_boxes``, learn no more.

        Raises
        ------
        CorruptError
            If the state is not one that a forest can have.
        """
        scalars = state.check_header(header, len(trees))
        parameters = ForestParameters.from_json(header["parameters"])
        numbers = [entry["number"] for entry in scalars]
        if any(later <= former for former, later in pairwise(numbers)):
            raise CorruptError("trees should come in the order of their distinct numbers")
        if len({entry["floats"][nodes.TOTAL_WEIGHT] for entry in scalars}) > 1:
            raise CorruptError("all trees should have learned the same rows")
        sound = _checked(scalars, trees, header["format"], parameters, with_boxes)
        built = _trees_of(parameters, scalars, sound, other_shard, with_boxes)
        header["format"] = state.FORMAT
        forest = cls._of(parameters, numbers, built)
        if header["warmup"] is not None:
            forest.warmup = Warmup.from_json(header["warmup"], parameters)
        if header.get("calibration") is not None:
            kind = kind_of(parameters.gives_label_variance)
            forest.calibration = kind.from_json(header["calibration"])
        if parameters.learns_jointly:
            forest.exact = _exact_of(header, parameters.joint, built)
        return forest

    @classmethod
    def _of(
        cls, parameters: ForestParameters, numbers: Sequence[int], trees: list[nodes.Tree]
    ) -> Forest:
        """Return the forest of these trees, given in the order of their numbers."""
        none = np.empty((0, parameters.n_features), np.float32)
        return cls(parameters, numbers, trees=trees if alike(trees) else fitted(trees, none)[0])

    @classmethod
    def join(cls, forests: Sequence[Forest]) -> Forest:
        """Return one forest of all trees, by number; parameters must be equal.

        It has no calibration: those of its parts are of fewer trees. The trees are the parts' own,
        so the parts should learn no more.
        """
        if not forests:
            raise ParameterError("nothing to join: give at least one forest")
        first = forests[0].parameters
        if any(forest.parameters != first for forest in forests):
            raise ParameterError("forests of different parameters cannot be joined")
        pairs = [
            pair for f in forests for pair in zip(f.tree_numbers.tolist(), f.trees, strict=True)
        ]
        pairs.sort(key=lambda pair: pair[0])
        numbers = [number for number, _ in pairs]
        if any(later == former for former, later in pairwise(numbers)):
            raise ParameterError(f"forests that share trees cannot be joined: {numbers}")
        waiting = {0 if f.warmup is None else f.warmup.n_rows for f in forests}
        if len(waiting) > 1 or len({f.total_weight for f in forests if f.store.trees}) > 1:
            raise ParameterError("forests that learned other rows cannot be joined")
        joined = cls._of(first, numbers, [tree for _, tree in pairs])
        joined.warmup = forests[0].warmup
        return joined


def _exact_of(header: dict[str, Any], joint: Joint, trees: Sequence[nodes.Tree]) -> Exact | None:
    """Return the exact fit of a header, None where there is none."""
    fit, beside = header.get("exact"), header.get("beside")
    if joint.is_averaged:
        return None if beside is None else Averaged.from_beside(beside, joint, trees)
    if fit is None:
        return None
    exact = Exact.from_json(fit, joint, len(trees))
    exact.check_columns(trees)
    exact.take_beside(beside)
    return exact


def _checked(
    scalars: Iterable[dict[str, Any]],
    trees: Iterable[dict[str, np.ndarray]],
    form: int,
    parameters: ForestParameters,
    with_boxes: bool,
) -> Iterator[dict[str, np.ndarray]]:
    """Yield the fields of each tree, checked, those of format ``form`` made into a state's."""
    for entry, arrays in zip(scalars, trees, strict=True):
        state.check_arrays(entry, arrays, form, parameters, with_boxes)
        yield arrays


def _trees_of(
    parameters: ForestParameters,
    scalars: Sequence[dict[str, Any]],
    trees: Iterable[dict[str, np.ndarray]],
    other_shard: Forest | None,
    with_boxes: bool,
) -> list[nodes.Tree]:
    """Return trees of checked fields and scalars, which write their boxes alike.

    To find the columns takes longer than to write the boxes. All trees learned the same rows, so
    those of the first one will do for the others, but for rows that it has weighed with 0.
    """
    has_boxes, d = parameters.has_boxes and with_boxes, parameters.n_features
    columns: Columns | None = None if has_boxes else boxless(d)
    if other_shard is not None and other_shard.parameters == parameters and other_shard.trees:
        columns = other_shard.trees[0].columns
    built: list[nodes.Tree] = []
    for entry, arrays in zip(scalars, trees, strict=True):
        if columns is None:
            columns = find_columns(d, [_boxes_in(arrays)])
        tree, fit = nodes.from_fields(arrays, entry, columns)
        if not fit:
            columns = find_columns(d, chain(boxes_of(built), [_boxes_in(arrays)]))
            built = [nodes.lay_out(tree_before, columns) for tree_before in built]
            tree, _ = nodes.from_fields(arrays, entry, columns)
        if parameters.has_fringe:
            tree = fringe_settings.with_fringe(tree, arrays)
        built.append(tree)
    return built


def _boxes_in(arrays: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return lower and upper bounds of a tree's nodes, and which of these have rows."""
    return arrays["lower"], arrays["upper"], arrays["stat"][:, 0] > 0.0


def tree_fields(
    parameters: ForestParameters, tree: nodes.Tree, copy: bool = True
) -> dict[str, np.ndarray]:
    """Return what a tree stores of its nodes, as one array per field."""
    fields = nodes.fields(tree) if copy else nodes.views(tree)
    if not parameters.has_fringe:
        return fields
    del fields["odds"], fields["odds_exponent"]  # there are no weights
    return {**fields, **fringe_settings.fields(tree)}


def stored_fields(
    trees: Sequence[nodes.Tree], rows: Sequence[int], chosen: Sequence[np.ndarray] | None = None
) -> Iterator[dict[str, np.ndarray | SparseRows]]:
    """Yield what :func:`tree_fields` does, boxes as differences, wide fields without their zeros.

    Where no tree is large, these have them. ``rows`` are the numbers of nodes of the trees;
    ``chosen``, int32 [c] each, are those to yield, all by default.
    """
    is_large = max(rows, default=0) >= LEAST_SPARSE
    for number, (tree, used) in enumerate(zip(trees, rows, strict=True)):
        fields = nodes.views(tree, with_boxes=False)
        picked = None if chosen is None else chosen[number]
        if picked is not None:
            fields = {name: field[picked] for name, field in fields.items()}
        lower, upper = box_differences(tree, used, picked)
        wide = {"stat": sparse_rows(fields["stat"]), "lower": lower, "upper": upper}
        made: dict[str, np.ndarray | SparseRows] = {**fields, **wide}
        if not is_large:
            made |= {name: dense_rows(field) for name, field in wide.items()}
        yield made


def _learn(
    ensemble: Ensemble,
    calibration: FittedCalibration | None,
    rows: RowsToLearn,
    n_threads: int,
) -> FittedCalibration | None:
    """Let an ensemble learn rows X, y, w; return the calibration after them, if there is one."""
    X, y, w = ensemble.prepare(rows[0]), *rows[1:]
    if calibration is None:
        Ensemble.update(ensemble, X, y, w, n_threads)
        return None
    with _as_one(ensemble):
        sampled = forecast_and_learn(ensemble, X, y, w, n_threads)
        return calibration.after(sampled, y, len(ensemble.store))


def _whole(alone: Callable[[], AbstractContextManager[None]]) -> AbstractContextManager[None]:
    """Hold off interrupts where others may read the forest, which goes on then.

    A forest that begins is dropped where it fails.
    """
    return nullcontext() if alone is nullcontext else interrupts_held()


@contextmanager
def _as_one(ensemble: Ensemble, *refusals: type[BaseException]) -> Iterator[None]:
    """Mark trees as torn if they learn rows, and what is kept beside them does not.

    A calibration, the first rows or exact sums: trees that are ahead of it are those of no stream.
    ``refusals`` leave both at the same row.
    """
    before = ensemble.total_weight
    try:
        yield
    except refusals:
        raise
    except BaseException:
        ensemble.store.is_torn = ensemble.store.is_torn or ensemble.total_weight != before
        raise
