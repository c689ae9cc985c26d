"""One lifetime for each column.

A Mondrian process in which column j has the rate r_j splits a box at the rate sum_j r_j L_j for
sides L_j, column j with the probability in proportion to r_j L_j: it is the process of all rates 1
on the box of sides r_j L_j. So lifetimes lambda_j are columns that are multiplied by lambda_j and a
lifetime of 1; rows x and x' are in one cell with probability exp(-sum_j lambda_j |x_j - x'_j|).

Relies on feature scales. Promises the bytes of a forest of the columns so multiplied.

Shapes: d features.
"""

from __future__ import annotations

from typing import Any

from dmondrian.errors import ParameterError
from dmondrian.estimators.base import BaseForest
from dmondrian.estimators.feature_scales import given_scales, is_per_column


class ColumnLifetimes(BaseForest):
    """Base of the forests whose ``lifetime`` may be one number per column."""

    lifetime: Any

    @property
    def _has_column_lifetimes(self) -> bool:
        return is_per_column(self.lifetime)

    @property
    def _way(self) -> str | None:
        """How the lifetime is chosen, where it is said in a word."""
        return self.lifetime if isinstance(self.lifetime, str) else None

    def _given_scales(self, n_features: int) -> tuple[float, ...] | None:
        if not self._has_column_lifetimes:
            return super()._given_scales(n_features)
        if self.domain == "cube":
            raise ParameterError(
                "a lifetime for each column multiplies the columns, and the cube [0, 1]^d is what "
                'it is: use domain="range", or one lifetime'
            )
        if self.feature_scales is not None:
            raise ParameterError(
                "a lifetime for each column and feature_scales both multiply the columns: give "
                "one of the two, or their product as the lifetimes"
            )
        return given_scales(self.lifetime, n_features, "lifetime")
