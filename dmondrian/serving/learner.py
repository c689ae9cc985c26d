"""The learner of a server: keeps rows until their labels come, has them learned, and saves.

::

    serving/<position>.arrow    keys at that checkpoint: rows that wait, and those that were learned

Relies on the run's lease, so that one server alone learns, and on `save` of estimators, which adds
a checkpoint. Promises that a row whose key is remembered is learned once, in the order in which
labels came; that a request is learned whole or not at all; and that the keys that are read at a
start are those of the checkpoint which is read: they are written before it.

What can be lost when the process is killed is what it did since its last save, both labels that
were learned and rows that wait: as if it had not come. Every answer names the position that is
saved; labels sent again, with their rows, are then learned once, as those of remembered keys are
passed over.

Shapes: n rows, d columns.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dmondrian.checkpoint import Run
from dmondrian.checkpoint.copying import SERVING, keys_name
from dmondrian.checkpoint.lease import Lease
from dmondrian.checkpoint.pruning import prune_while_training
from dmondrian.errors import (
    CorruptError,
    DataError,
    DMondrianError,
    NotFoundError,
    ParameterError,
    StoreError,
)
from dmondrian.serving.served_model import ServedModel
from dmondrian.serving.waiting_keys import WaitingKeys

MOST_BYTES = 2**31  # of stored keys
KEPT = 3
"""Checkpoints that stay, the newest ones."""

SLICE = 256
"""Rows learned at a time, between which forecasts have their turn."""


@dataclass
class LearnRequest:
    """Labels that came in one request.

    Attributes
    ----------
    labels : list
    keys : list of str or None
    rows : float32 array of shape (n, d) or None
        Those that came with the labels; None for rows that wait under the keys.
    """

    labels: list[Any]
    keys: list[str] | None
    rows: np.ndarray | None


class Learner:
    """A saved estimator that goes on learning.

    Parameters
    ----------
    model : ServedModel
        Of the newest checkpoint of a saved estimator.
    most_waiting : int
        Largest number of rows that wait for labels, and of keys that are remembered.
    save_rows, save_seconds : int, float
        A save is due after so many rows, or so long after the first that is not saved.

    Attributes
    ----------
    keys : WaitingKeys
    saved : int
        Position of the last save.
    n_learned : int
        Rows since the start.
    failure : str or None
        Why nothing more is learned.

    Raises
    ------
    ParameterError
        The model cannot learn here.
    FencedError
        Another process works on it.
    """

    def __init__(
        self, model: ServedModel, most_waiting: int, save_rows: int, save_seconds: float
    ) -> None:
        check_learns(model)
        self.model = model
        self._run = Run.open(model.address.url)
        self._save_rows, self._save_seconds = save_rows, save_seconds
        self.saved = model.position
        self.n_learned = 0
        self.failure: str | None = None
        self._unsaved = 0
        self._unsaved_since: float | None = None
        self._lease = Lease.take(self._run.store)
        self._lease.__enter__()
        try:
            newest = self._run.manifests()
            if not newest or newest[-1] != model.position:
                raise ParameterError(
                    f"{model.address.url} has a newer checkpoint than {model.position}: serve the "
                    "newest one to have it learn"
                )
            self.keys = self._stored_keys(most_waiting)
        except BaseException:
            self.close()
            raise

    def _stored_keys(self, most: int) -> WaitingKeys:
        try:
            data = self._run.store.get(keys_name(self.saved), MOST_BYTES)
        except NotFoundError:
            return WaitingKeys(self.model.n_columns, most)
        try:
            return WaitingKeys.from_arrow(data, self.model.n_columns, most)
        except CorruptError as error:
            name = f"{keys_name(self.saved)} in {self._run.url}"
            raise CorruptError(
                f"{name} is damaged ({error}): restore it from a copy; or delete it, and the rows "
                "that wait for their labels are lost, and which keys were learned"
            ) from error

    def wait_for_labels(self, keys: Sequence[str], rows: np.ndarray) -> None:
        """Keep rows whose labels will come.

        Parameters
        ----------
        keys : n texts
        rows : float32 [n, d]

        Raises
        ------
        KeyedError
            A key is taken.
        """
        self.keys.check_new(keys, rows)
        self.keys.check_fits(len(keys))
        self.keys.add(keys, rows)
        self._note()

    def begin(self, request: LearnRequest) -> tuple[np.ndarray, np.ndarray, int]:
        """Check a learn request as a whole and take its keys; nothing is changed if it is refused.

        Returns
        -------
        rows : float32 [n, d]
            To be learned, without those that were.
        labels : [n]
        passed : int
            Rows that were learned before.

        Raises
        ------
        DataError, ParameterError
            A label cannot be learned.
        KeyedError
            No row waits under a key, or another one.
        """
        labels = self._labels(request.labels)
        keys, rows = request.keys, request.rows
        if keys is None:
            assert rows is not None  # one of the two came
            return rows, labels, 0
        new = [at for at, key in enumerate(keys) if not self.keys.is_learned(key)]
        new_keys = [keys[at] for at in new]
        if rows is None:
            rows = (
                self.keys.rows_of(new_keys)
                if new_keys
                else np.empty((0, self.model.n_columns), np.float32)
            )
        else:
            rows = rows[new]
            self.keys.check_new(new_keys, rows)
        self.keys.note_learned(new_keys)
        return rows, labels[new], len(keys) - len(new_keys)

    def learn(self, rows: np.ndarray, labels: np.ndarray) -> None:
        """Learn rows that were checked, in order."""
        try:
            with warnings.catch_warnings():
                # Columns were put in order by name.
                warnings.filterwarnings("ignore", "X does not have valid feature names")
                self.model.estimator.partial_fit(rows, labels)
        except BaseException as error:
            self.failure = f"rows were not learned ({error}); what came since the last save is lost"
            raise
        self.n_learned += len(rows)
        self._unsaved += len(rows)
        self._note()
        self.model.learned()
        forest = self.model.estimator.forest_
        self.model.position = int(forest.total_weight + forest.waiting_weight)

    def _labels(self, labels: list[Any]) -> np.ndarray:
        """Return labels as the estimator takes them; refuse others."""
        classes = self.model.classes
        if classes is None:
            wrong = [y for y in labels if type(y) not in (int, float)]
            if wrong:
                raise DataError(f"labels should be numbers, found {wrong[:5]!r}")
            try:
                values = np.array(labels, np.float64)
            except OverflowError:
                raise DataError("a label is a number that is too large") from None
            if not np.isfinite(values).all():
                raise DataError("labels should be finite numbers")
        else:
            kinds = (int, float) if type(classes[0]) is float else (type(classes[0]),)
            known = set(classes)
            wrong = [y for y in labels if type(y) not in kinds or y not in known]
            if wrong:
                raise DataError(
                    f"labels {wrong[:5]!r} are not among the {len(classes)} classes "
                    f"({', '.join(map(repr, classes[:8]))}{', ...' if classes[8:] else ''})"
                )
            values = np.array(labels, self.model.estimator.classes_.dtype)
        self.model.estimator._checked_labels(values)
        return values

    def _note(self) -> None:
        if self._unsaved_since is None:
            self._unsaved_since = time.monotonic()

    @property
    def is_due(self) -> bool:
        """Whether it is time to save."""
        since = self._unsaved_since
        if since is None or self.failure is not None:
            return False
        return self._unsaved >= self._save_rows or time.monotonic() - since >= self._save_seconds

    @property
    def is_saved(self) -> bool:
        """Whether nothing came since the last save."""
        return self._unsaved_since is None

    def freeze_keys(self) -> WaitingKeys:
        """Return the keys that a save will write; what comes from now on is for the next."""
        self._unsaved, self._unsaved_since = 0, None
        return self.keys.copy()

    def save(self, keys: WaitingKeys) -> None:
        """Write the keys, then the checkpoint; nothing may be learned meanwhile.

        Parameters
        ----------
        keys : WaitingKeys
            As `freeze_keys` gave them.
        """
        position, store = self.model.position, self._run.store
        try:
            self._lease.check()
            store.put(keys_name(position), keys.to_arrow())
            self.model.estimator.save(self._run.url)
        except StoreError:
            self._note()  # the store may be back in a moment: it is tried again
            raise
        except DMondrianError as error:
            self.failure = f"what was learned cannot be saved: {error}"
            if position != self.saved:  # keys of rows that no checkpoint has learned
                store.delete([keys_name(position)])
            raise
        self.saved = position
        store.delete([name for name in store.list(SERVING) if name != keys_name(position)])
        prune_while_training(self._run, position, KEPT, ())

    def about(self) -> Mapping[str, Any]:
        """Return how many rows were learned, saved and wait, as JSON values."""
        return {
            "learned": self.n_learned,
            "saved": self.saved,
            "waiting": len(self.keys),
            "given_up": self.keys.given_up,
            "failure": self.failure,
        }

    def close(self) -> None:
        """Release the run, so that other processes can learn."""
        self._lease.end("served")
        self._lease.__exit__()


def check_learns(model: ServedModel) -> None:
    """Refuse models that cannot learn from requests.

    Raises
    ------
    ParameterError
        With the reason.
    """
    estimator = model.estimator
    if not model.address.is_saved_estimator:
        raise ParameterError(
            f"{model.address.url} was trained on a cluster, from a numbered stream of rows, which "
            "`dmondrian train` and `dmondrian follow` go on with; rows of requests would be none "
            "of it: serve it without --learn, or serve an estimator that was saved"
        )
    if not hasattr(estimator, "partial_fit") or model.parameters.is_density:
        raise ParameterError(f"{type(estimator).__name__} learns no labels as they come")
    if "_columns" in estimator.__dict__:
        raise ParameterError(
            "this model was fitted on data frames with categories, which are not learned from "
            "requests: encode them as numbers"
        )
    if getattr(estimator, "class_weight", None) is not None:
        raise ParameterError(
            "this model weighs rows by their classes, so that its position does not count rows: "
            "fit it without class_weight to have it learn from requests"
        )


def learn_request_of(labels: Any, keys: list[str] | None, rows: np.ndarray | None) -> LearnRequest:
    """Return labels that came in a request, as many as keys and rows.

    Raises
    ------
    DataError
        They are no list, of another length, or came with neither keys nor rows.
    """
    if not isinstance(labels, list) or not labels:
        raise DataError("labels should be a list, of one for each row")
    if keys is None and rows is None:
        raise DataError("labels came alone: send the keys of their rows, or the rows themselves")
    n = len(keys) if rows is None and keys is not None else len(rows if rows is not None else ())
    if len(labels) != n:
        raise DataError(f"{len(labels)} labels came for {n} rows")
    return LearnRequest(labels, keys, rows)
