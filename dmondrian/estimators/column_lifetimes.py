"""Lifetimes per column.

A Mondrian process with rate r_j for column j splits a box of sides L_j at rate sum_j r_j L_j, in
column j with probability proportional to r_j L_j: it is the process with rates 1 on the box of
sides r_j L_j. So lifetimes lambda_j are implemented as columns multiplied by lambda_j with lifetime
1; rows x and x' are in one cell with probability exp(-sum_j lambda_j |x_j - x'_j|).

Relies on feature scales. Promises the bytes of a forest of the multiplied columns.

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
    def _lifetime_choice(self) -> str | None:
        """Name of the method that chooses the lifetime; None for numbers."""
        return self.lifetime if isinstance(self.lifetime, str) else None

    def _given_scales(self, n_features: int) -> tuple[float, ...] | None:
        if not self._has_column_lifetimes:
            return super()._given_scales(n_features)
        if self.domain == "cube":
            raise ParameterError(
                "a lifetime for each column multiplies the columns, and the cube [0, 1]^d is "
                'fixed: use domain="range", or one lifetime'
            )
        if self.feature_scales is not None:
            raise ParameterError(
                "a lifetime for each column and feature_scales both multiply the columns: give "
                "one of the two, or their product as the lifetimes"
            )
        return given_scales(self.lifetime, n_features, "lifetime")
