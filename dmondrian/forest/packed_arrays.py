"""Arrays of numbers as text in JSON: the bytes in base64, few for many numbers and quickly read.

Promises that what comes back is finite, and of the shape and type that was asked for.
"""

from __future__ import annotations

import base64
from typing import Any

import numpy as np

from dmondrian.errors import CorruptError


def packed(numbers: np.ndarray) -> str:
    """Return an array's bytes as text."""
    return base64.b64encode(numbers.astype(numbers.dtype.newbyteorder("<")).tobytes()).decode()


def unpacked(stored: Any, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Return finite numbers of :func:`packed`, or lists of them, as an array of this shape.

    Raises
    ------
    CorruptError
        If they are not.
    """
    try:
        if isinstance(stored, str):
            kind = np.dtype(dtype).newbyteorder("<")
            numbers = np.frombuffer(base64.b64decode(stored, validate=True), kind).reshape(shape)
        else:
            numbers = np.array(stored, np.float64)
    except (TypeError, ValueError, OverflowError):
        numbers = np.empty(0)
    if numbers.size == 0 and 0 in shape:
        numbers = numbers.reshape(shape)
    if numbers.shape != shape or not np.isfinite(numbers).all():
        raise CorruptError(f"expected finite numbers of shape {shape}, found {str(stored)[:80]}")
    return numbers.astype(dtype)
