"""Estimators with the interface of river: one row, as a dict by feature name, at a time.

Relies on river (the extra `river`) and on the estimators, which take rows one by one.
Promises that what is learned does not depend on the order of the features in a dict, and that
features that come after the first row are named in ``unknown_features``, not silently dropped.

river's own `compat.convert_sklearn_to_river` takes these estimators too. It keeps the features in
the order of the first row, on which the forest then depends, refuses rows that lack one, and asks
for all classes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from sklearn.base import clone

from dmondrian._optional import require
from dmondrian.errors import DataError, ParameterError
from dmondrian.estimators.class_weight import weights_of_classes
from dmondrian.estimators.monotone_columns import by_place

require("river", "river", "the interface of river")

from river import base  # noqa: E402 - after the error that names the extra


class _RiverModel:
    """Common part of models for river: names of features, and rows of numbers."""

    def __init__(self, estimator: Any, missing: float = 0.0) -> None:
        self.estimator = estimator
        self.missing = missing
        self._model = clone(estimator)
        self._names: list[Any] | None = None
        self.unknown_features: set[Any] = set()

    def _row(self, x: dict[Any, Any]) -> np.ndarray:
        """Return a row as float32 [1, d]; the features are those of the first one."""
        names = self._names
        if names is None:
            names = sorted(x, key=lambda name: (str(name), repr(name)))
        row = [x.get(name, self.missing) for name in names]
        try:
            return np.array([row], np.float32)
        except (TypeError, ValueError) as error:
            bad = [n for n, value in zip(names, row, strict=True) if not _is_number(value)]
            raise DataError(
                f"features {bad[:5]} are no numbers: encode them first, as river's "
                "preprocessing.OneHotEncoder does"
            ) from error

    def _is_begun(self) -> bool:
        """Whether a row was learned."""
        return hasattr(self._model, "forest_")

    @property
    def _raw_memory_usage(self) -> int:
        """Bytes of memory: what the forest holds, and the names.

        river itself follows every reference, through the compiled code to all of the program.
        """
        forest = self._model.forest_.n_bytes if self._is_begun() else 0
        return sys.getsizeof(self) + sys.getsizeof(self._names) + forest

    def _learned_row(self, x: dict[Any, Any]) -> np.ndarray:
        """Return a row that is learned; note features that the forest does not have."""
        row = self._row(x)
        if self._names is None:
            if not x:
                raise DataError("the first row has no feature: all that will be used must be there")
            names = sorted(x, key=lambda name: (str(name), repr(name)))
            constraints = getattr(self._model, "monotonic_cst", None)
            if isinstance(constraints, dict):  # the model sees rows without names
                self._model.set_params(monotonic_cst=by_place(constraints, names))
            self._names = names
        elif len(x) > len(self._names) or not x.keys() <= set(self._names):
            self.unknown_features |= x.keys() - set(self._names)
        return row


class RiverClassifier(_RiverModel, base.Classifier):
    """A classifier of this package with river's interface.

    Parameters
    ----------
    estimator : classifier of this package
        It is not changed: a clone of it learns. Its ``class_weight`` is by the labels
        that come; of labels that it does not name, 1. Its ``monotonic_cst`` may name features
        of the first row; a list goes by their order, which is that of their names.
    classes : sequence, optional
        Labels that will come. By default they need not be known: `max_classes` are provided for.
    max_classes : int, default=16
        Without `classes`, the most labels that may come. Those that did not come cost a little log
        loss, as the forest gives each a small probability, which is left out of its answers.
    missing : float, default=0.0
        What stands for a feature that a row lacks; NaN for an estimator with
        ``missing_values="encode"``.

    Attributes
    ----------
    unknown_features : set
        Features that came after the first row learned, and that the forest does not use.

    Examples
    --------
    >>> from river import datasets, evaluate, metrics
    >>> from dmondrian import AMFClassifier
    >>> from dmondrian.river import RiverClassifier
    >>> model = RiverClassifier(AMFClassifier(n_estimators=2, drift="follow", random_state=0))
    >>> metric = evaluate.progressive_val_score(datasets.Phishing(), model, metrics.LogLoss())
    >>> 0.0 < metric.get() < 0.5
    True
    """

    def __init__(
        self,
        estimator: Any,
        classes: Sequence[Any] | None = None,
        max_classes: int = 16,
        missing: float = 0.0,
    ) -> None:
        super().__init__(estimator, missing)
        self.classes = classes
        self.max_classes = max_classes
        self._labels: dict[Any, int] = {}
        for label in classes or ():
            self._labels.setdefault(label, len(self._labels))
        self._n_classes = len(self._labels) if classes is not None else max_classes
        self._class_weight = dict[Any, float]()
        if getattr(estimator, "class_weight", None) is not None:
            estimator._check_class_weight("learn_one")
            self._class_weight = dict(estimator.class_weight)
            self._model.set_params(class_weight=None)  # it learns codes of labels
        if classes is not None and self._class_weight:
            weights_of_classes(self._class_weight, list(self._labels))
        if self._n_classes < 1:
            raise ParameterError(f"{self._n_classes} classes; expected at least one")

    @property
    def _multiclass(self) -> bool:
        return True

    @classmethod
    def _unit_test_params(cls) -> Iterator[dict[str, Any]]:
        """Yield parameters for river's checks."""
        from dmondrian.estimators import AMFClassifier

        yield {"estimator": AMFClassifier(n_estimators=2, random_state=0)}

    def learn_one(self, x: dict[Any, Any], y: Any) -> None:
        """Learn a row.

        Parameters
        ----------
        x : dict of numbers by feature name
        y : label

        Raises
        ------
        DataError
            A value is no number, or a label is not among the classes; nothing is learned then.
        """
        row = self._learned_row(x)
        code = self._labels.get(y)
        if code is None:
            if len(self._labels) == self._n_classes:
                raise DataError(
                    f"label {y!r} is not among the {self._n_classes} classes "
                    f"{list(self._labels)[:5]}...: name all in classes=, or raise max_classes"
                )
            code = len(self._labels)
        # Only where a forest begins: what names no classes takes the way of single rows.
        classes = {} if self._is_begun() else {"classes": range(self._n_classes)}
        weight = self._class_weight.get(y, 1.0)
        weights = {} if weight == 1.0 else {"sample_weight": [weight]}
        self._model.partial_fit(row, np.array([code]), **classes, **weights)
        self._labels[y] = code

    def predict_proba_one(self, x: dict[Any, Any], **kwargs: Any) -> dict[Any, float]:
        """Return the probability of each label that was named or came; of none before a row.

        Parameters
        ----------
        x : dict of numbers by feature name
        **kwargs
            Of river's interface; none is known.
        """
        if kwargs:
            raise TypeError(f"predict_proba_one has no parameter {next(iter(kwargs))!r}")
        if not self._is_begun():
            return {}
        proba = self._model.predict_proba(self._row(x))[0, : len(self._labels)]
        return dict(zip(self._labels, (proba / proba.sum()).tolist(), strict=True))


class RiverRegressor(_RiverModel, base.Regressor):
    """A regressor of this package with river's interface.

    Parameters
    ----------
    estimator : regressor of this package
        It is not changed: a clone of it learns. Its ``monotonic_cst`` may name features
        of the first row; a list goes by their order, which is that of their names.
    missing : float, default=0.0
        What stands for a feature that a row lacks; NaN for an estimator with
        ``missing_values="encode"``.

    Attributes
    ----------
    unknown_features : set
        Features that came after the first row learned, and that the forest does not use.
    """

    def __init__(self, estimator: Any, missing: float = 0.0) -> None:
        super().__init__(estimator, missing)

    @classmethod
    def _unit_test_params(cls) -> Iterator[dict[str, Any]]:
        """Yield parameters for river's checks."""
        from dmondrian.estimators import AMFRegressor

        yield {"estimator": AMFRegressor(n_estimators=2, random_state=0)}

    def learn_one(self, x: dict[Any, Any], y: float) -> None:
        """Learn a row.

        Parameters
        ----------
        x : dict of numbers by feature name
        y : float

        Raises
        ------
        DataError
            A value is no number; nothing is learned then.
        """
        self._model.partial_fit(self._learned_row(x), np.array([y], np.float64))

    def predict_one(self, x: dict[Any, Any]) -> float:
        """Return the forecast of a row; 0 before any row is learned.

        Parameters
        ----------
        x : dict of numbers by feature name
        """
        if not self._is_begun():
            return 0.0
        return float(self._model.predict(self._row(x))[0])


def _is_number(value: Any) -> bool:
    """Whether a value can stand in a row of numbers."""
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True
