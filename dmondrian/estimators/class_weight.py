"""Weights of classes: what a row's weight is multiplied by, for its label.

Relies on :mod:`dmondrian.estimators.sample_weight`. Promises that a row of a class of weight w is
learned as one of ``sample_weight`` w is, and that labels which are not there are refused where
another class would go without its weight.

Shapes: n rows, K classes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dmondrian._text.wording import label_as_key
from dmondrian.errors import ParameterError
from dmondrian.estimators._sklearn_private import StrOptions
from dmondrian.estimators.sample_weight import checked_weights

BALANCED = "balanced"
ALLOWED: list[Any] = [dict, StrOptions({BALANCED}), None]
"""Types of the parameter ``class_weight``."""


def check_numbers(class_weight: Mapping[Any, Any]) -> None:
    """Refuse weights of classes that are no finite numbers >= 0.

    Raises
    ------
    ParameterError
        With the label.
    """
    for label, weight in class_weight.items():
        is_number = isinstance(weight, (int, float, np.integer, np.floating))
        if isinstance(weight, bool) or not is_number or not 0.0 <= weight < np.inf:
            raise ParameterError(
                f"class_weight={dict(class_weight)!r} gives {label!r} the weight {weight!r}: "
                "expected a finite number >= 0"
            )


def weights_of_classes(class_weight: Mapping[Any, Any], classes: Sequence[Any]) -> np.ndarray:
    """Return the weight of each class, float64 [K].

    Parameters
    ----------
    class_weight : mapping of label to weight
        Labels that are no texts may be written as texts, as the keys of a job file are. Classes
        that it does not name have weight 1.
    classes : sequence of K labels

    Raises
    ------
    ParameterError
        If a weight is no finite number >= 0; or if it names a label that is not there, and a class
        goes without a weight. (scikit-learn's rule: folds may lack a class.)
    """
    check_numbers(class_weight)
    weights, used = np.ones(len(classes)), []
    for k, label in enumerate(classes):
        names = [
            name for name in dict.fromkeys([label, label_as_key(label)]) if name in class_weight
        ]
        if len(names) > 1:
            raise ParameterError(
                f"class_weight={dict(class_weight)!r} names the class {label!r} twice, as text "
                "and as a label"
            )
        if names:
            weights[k] = float(class_weight[names[0]])
            used.append(names[0])
    unknown = [name for name in class_weight if name not in used]
    if unknown and len(used) < len(classes):
        raise ParameterError(
            f"class_weight={dict(class_weight)!r} names {unknown[:5]!r}, which are not among the "
            f"{len(classes)} classes {list(classes[:5])!r}: correct the labels"
        )
    return weights


def balanced_weights(codes: np.ndarray, w: np.ndarray | None, n_classes: int) -> np.ndarray:
    """Return weights with which all classes weigh the same, and all rows what they did.

    Parameters
    ----------
    codes : int64 [n]
    w : float64 [n] or None
        Weights of rows; a row of weight 2 counts as two.
    n_classes : int

    Returns
    -------
    float64 [K]
        n / (K n_k), of sums of weights; 1 for a class without any.

    References
    ----------
    King, Zeng (2001), "Logistic regression in rare events data", Political Analysis 9(2), section
    4.2; scikit-learn has the same.
    """
    sums = np.bincount(codes, weights=w, minlength=n_classes).astype(np.float64)
    weights = np.ones(n_classes)
    np.divide(sums.sum() / np.count_nonzero(sums), sums, out=weights, where=sums > 0.0)
    return weights


def weighted_rows(
    of_classes: np.ndarray, codes: np.ndarray, w: np.ndarray | None, seen: float
) -> np.ndarray | None:
    """Return the weights of rows times those of their classes, float64 [n]; None if all are 1.

    Parameters
    ----------
    of_classes : float64 [K]
    codes : int64 [n]
    w : float64 [n] or None
    seen : float
        Total weight of earlier rows.

    Raises
    ------
    ParameterError
        If a product is not finite, or does not change the total before it.
    """
    row_weights = of_classes[codes]
    if w is None and (row_weights == 1.0).all():
        return None
    with np.errstate(over="ignore", under="ignore"):
        product = row_weights if w is None else row_weights * w
    if not np.isfinite(product).all():
        raise ParameterError("sample_weight times class_weight is infinite: rescale the weights")
    return checked_weights(product, len(codes), seen)
