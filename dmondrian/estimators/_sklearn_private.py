"""The one importer of scikit-learn's private names, of which any release may rename any."""

from collections.abc import Callable
from typing import Any, TypeVar

from sklearn.base import _fit_context
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.multiclass import (
    _check_partial_fit_first_call as check_partial_fit_first_call,
)
from sklearn.utils.validation import _num_samples as num_samples

__all__ = [
    "Interval",
    "StrOptions",
    "check_parameters",
    "check_partial_fit_first_call",
    "constraints_of",
    "fit_context",
    "num_samples",
]

_Fit = TypeVar("_Fit", bound=Callable[..., Any])


def fit_context(*, prefer_skip_nested_validation: bool) -> Callable[[_Fit], _Fit]:
    """Return scikit-learn's decorator of methods that fit; types see the method's own signature."""
    decorate: Callable[[_Fit], _Fit] = _fit_context(
        prefer_skip_nested_validation=prefer_skip_nested_validation
    )
    return decorate


def constraints_of(kind: type) -> dict[str, list[Any]]:
    """Return what each parameter of a class of estimators may be, as scikit-learn writes it."""
    constraints: dict[str, list[Any]] = kind._parameter_constraints  # type: ignore[attr-defined]  # an estimator's
    return constraints


def check_parameters(estimator: Any) -> None:
    """Refuse values of parameters that are outside of :func:`constraints_of`, by a ValueError."""
    estimator._validate_params()
