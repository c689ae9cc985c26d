"""Base class of the forest classifiers: labels, learning, and the most probable class.

Relies on :class:`dmondrian.estimators.base.BaseForest`. Promises that labels of any kind come
back as they went in.

Shapes: n rows, d features, K classes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal, Self

import numpy as np
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d

from dmondrian.errors import DataError, ParameterError
from dmondrian.estimators._sklearn_private import (
    StrOptions,
    check_partial_fit_first_call,
    fit_context,
)
from dmondrian.estimators.base import BaseForest
from dmondrian.estimators.class_weight import (
    ALLOWED,
    BALANCED,
    balanced_weights,
    check_numbers,
    weighted_rows,
    weights_of_classes,
)
from dmondrian.estimators.row_parts import budget_of, rows_of
from dmondrian.estimators.sample_weight import check_some_weight
from dmondrian.estimators.single_row import mean_of_single_row, row_by_row
from dmondrian.uncertainty.temperature_scaling import AUTO, Calibration, calibrated


class ForestClassifier(ClassifierMixin, BaseForest):
    """Base of the classifiers; not to be used directly."""

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **BaseForest._parameter_constraints,
        "calibrate": ["boolean", StrOptions({AUTO})],
        "class_weight": ALLOWED,
    }

    calibrate: bool | Literal["auto"]
    class_weight: dict[Any, float] | Literal["balanced"] | None = None
    classes_: np.ndarray
    n_classes_: int

    @fit_context(prefer_skip_nested_validation=True)
    def fit(
        self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        *,
        max_rows: int | None = None,
        time_budget: float | None = None,
    ) -> Self:
        """Learn rows from nothing, in their order.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n, d)
            Taken as float32. Splits follow the ranges of the columns: scale them.
        y : array-like of shape (n,)
            Labels: strings, integers or booleans.
        sample_weight : array-like of shape (n,), optional
            Non-negative; for trees a whole weight w equals w repeats of the row (to the byte up
            to 256, beyond that by a closed form that differs in the last digits). A calibration
            forecasts the row once, and repeats each by itself.
        max_rows : int, optional
            Learn the first rows alone, so many. The classes are still those of all labels.
        time_budget : float, optional
            Seconds after which no more rows are begun; those left are passed over, with a warning.
            Settings that are chosen from the first rows are chosen to the end, which may take
            longer. ``n_samples_fit_`` is how many rows ``fit`` learned, which depends on the
            machine; the forest is that of these rows, and ``partial_fit`` goes on with the others.

        Returns
        -------
        This estimator
        """
        return self._fit(X, y, sample_weight, None, max_rows, time_budget)

    def _fit(
        self,
        X: Any,
        y: Any,
        sample_weight: Any,
        times: Any = None,
        max_rows: int | None = None,
        time_budget: float | None = None,
    ) -> Self:
        """Do what :meth:`fit` does; ``times`` are those of estimators that take them."""
        budget = budget_of(time_budget)
        with self._learner(anew=True) as learner:
            X, y, w = learner._validate_rows(X, y, sample_weight, first=True, numeric=False)
            check_classification_targets(y)
            n = rows_of(max_rows, len(y))
            check_some_weight(w if w is None else w[:n])
            learner.classes_, codes = np.unique(y, return_inverse=True)
            learner.n_classes_ = len(learner.classes_)
            w = learner._class_weighted(codes, w, 0.0)
            check_some_weight(w if w is None else w[:n], "sample_weight times class_weight")
            learner._take_times(times, len(codes))
            learner._check_budget(budget)
            learner._learn_all(X[:n], codes[:n], None if w is None else w[:n], learner.n_classes_)
        return self

    @row_by_row
    @fit_context(prefer_skip_nested_validation=True)
    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> Self:
        """Learn more rows, in their order.

        Parameters
        ----------
        X, y, sample_weight
            As in :meth:`fit`.
        classes : array-like of shape (K,)
            All labels that will ever come; needed at the first call.

        Returns
        -------
        This estimator

        Raises
        ------
        DataError
            If a label is not one of the classes; nothing is learned then.
        """
        return self._fit_more(X, y, classes, sample_weight)

    def _fit_more(
        self, X: Any, y: Any, classes: Any, sample_weight: Any, times: Any = None
    ) -> Self:
        """Do what :meth:`partial_fit` does; ``times`` are those of estimators that take them."""
        if classes is not None and not np.size(classes):
            raise ParameterError("classes is empty; expected all labels that will ever come")
        with self._learner(anew=False) as learner:
            first = learner is not self
            check_partial_fit_first_call(learner, classes)
            learner._check_class_weight("partial_fit")
            if first:
                learner._check_stream()
            else:
                learner._check_unchanged()
            X, y, w = learner._validate_rows(X, y, sample_weight, first=first, numeric=False)
            is_flat = type(y) is np.ndarray and y.ndim == 1
            codes = learner._encode(y if is_flat else column_or_1d(y))
            learner.n_classes_ = len(learner.classes_)
            seen = 0.0 if first else learner.forest_.total_weight
            w = learner._class_weighted(codes, w, seen)
            learner._take_times(times, len(codes))
            learner._learn(X, codes, w, learner.n_classes_, first=first)
        return self

    def _encode(self, y: np.ndarray) -> np.ndarray:
        """Return class indices; refuse labels that are not classes."""
        if _is_text(y) != _is_text(self.classes_):
            raise DataError(
                f"y has labels of dtype {y.dtype}, the classes are {self.classes_.dtype}: give "
                "both as text or both as numbers"
            )
        try:
            codes = np.searchsorted(self.classes_, y)
        except TypeError as error:  # None, or dates among numbers
            raise DataError(
                f"y has labels {_first(y)} that have no order among the classes "
                f"{_first(self.classes_)} ({error}): leave out rows without a label"
            ) from error
        codes = np.minimum(codes, len(self.classes_) - 1)
        is_unknown = self.classes_[codes] != y
        if is_unknown.any():
            unknown = np.unique(y[is_unknown])
            raise DataError(
                f"y has labels {_first(unknown)} that are not among the {len(self.classes_)} "
                f"classes {_first(self.classes_)}: name all labels in classes= at the first "
                "partial_fit"
            )
        return codes

    def _check_class_weight(self, how: str) -> None:
        """Refuse weights of classes that are no numbers, or need all rows at once."""
        if self.class_weight == BALANCED:
            raise ParameterError(
                'class_weight="balanced" counts the rows of each class, which only fit knows '
                f"beforehand: give {how} numbers, such as class_weight={{label: weight}}"
            )
        if self.class_weight is not None:
            check_numbers(self.class_weight)  # type: ignore[arg-type]  # not "balanced"

    def _check_run(self) -> None:
        self._check_class_weight("a run")
        super()._check_run()

    def _weights_of_classes(self, classes: Sequence[Any]) -> np.ndarray | None:
        """Return the weight of each class, float64 [K]; None where all are 1."""
        if self.class_weight is None:
            return None
        weights = weights_of_classes(self.class_weight, classes)  # type: ignore[arg-type]  # checked
        return None if (weights == 1.0).all() else weights

    def _class_weighted(
        self, codes: np.ndarray, w: np.ndarray | None, seen: float
    ) -> np.ndarray | None:
        """Return weights of rows times those of their classes."""
        if self.class_weight == BALANCED:
            weights = balanced_weights(codes, w, len(self.classes_))
            return weighted_rows(weights, codes, w, seen)
        of_classes = self._weights_of_classes(self.classes_.tolist())
        if of_classes is None:
            return w
        return weighted_rows(of_classes, codes, w, seen)

    def _checked_labels(self, y: np.ndarray) -> np.ndarray:
        """Return encoded labels, float64 [n]; refuse invalid ones."""
        return self._encode(column_or_1d(y)).astype(np.float64)

    def _label_finder(self) -> Callable[[Any], float | None]:
        # What has a weight is left to the general way.
        weights = self._weights_of_classes(self.classes_.tolist())
        codes = {
            label: float(code)
            for code, label in enumerate(self.classes_.tolist())
            if weights is None or weights[code] == 1.0
        }
        return codes.get

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return class probabilities.

        Parameters
        ----------
        X : array-like of shape (n, d)

        Returns
        -------
        float64 array of shape (n, K), columns as in ``classes_``
        """
        proba = mean_of_single_row(self, X, is_to_be_calibrated=True)
        if proba is not None:
            return proba
        with self._turns.reading():
            proba = self._mean_prediction(X)
            return calibrated(proba, self.forest_.calibration)

    @property
    def calibration_exponent_(self) -> float:
        """Current power of the averaged probabilities; 1 without calibration."""
        calibration = self._fitted_forest().calibration
        return calibration.exponent if isinstance(calibration, Calibration) else 1.0

    @property
    def calibration_weight_(self) -> float:
        """Current weight of these powers beside the probabilities as they are."""
        calibration = self._fitted_forest().calibration
        return calibration.weights[0] if isinstance(calibration, Calibration) else 1.0

    def predict_log_proba(self, X: Any) -> np.ndarray:
        """Return logs of class probabilities.

        Parameters
        ----------
        X : array-like of shape (n, d)

        Returns
        -------
        float64 array of shape (n, K), in nats
        """
        return np.log(self.predict_proba(X))

    def predict(self, X: Any) -> np.ndarray:
        """Return the most probable class of each row; ties go to the first class.

        Parameters
        ----------
        X : array-like of shape (n, d)
        """
        attributes = self.__dict__
        forest = attributes.get("forest_")
        proba = self.predict_proba(X)
        classes = self.classes_
        if attributes.get("forest_") is not forest:  # another fit ended meanwhile
            with self._turns.reading():
                proba, classes = self.predict_proba(X), self.classes_
        return classes[proba.argmax(axis=1)]

    def _node_forecasts(self, stat: np.ndarray, offset: float) -> dict[str, np.ndarray]:
        return {"counts": stat[:, 1:].copy()}


def _is_text(labels: np.ndarray) -> bool:
    """Whether labels are strings, of a fixed width or, as data frames have them, objects."""
    if labels.dtype.kind == "O":
        return len(labels) > 0 and all(isinstance(label, str) for label in labels)
    return labels.dtype.kind in "US"


def _first(labels: np.ndarray) -> str:
    """Return the first of some labels, as a list that ends in dots where it is cut."""
    shown = str(labels[:5].tolist())
    return shown if len(labels) <= 5 else f"{shown[:-1]}, ...]"
