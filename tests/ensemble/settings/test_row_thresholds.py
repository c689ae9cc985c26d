"""Rows go to the same side of a threshold of theirs as of one of scaled rows."""

from __future__ import annotations

import numpy as np

from dmondrian.ensemble.settings.row_thresholds import thresholds_of_rows

LARGEST = np.float32(np.finfo(np.float32).max)
INF = np.float32(np.inf)


def goes_left(x: np.ndarray, scales: np.ndarray, thresholds: np.ndarray) -> np.ndarray:
    """Return what a tree does with rows times its scales, the largest number beyond float32."""
    scaled = np.clip(x.astype(np.float64) * scales, -float(LARGEST), float(LARGEST))
    result: np.ndarray = scaled.astype(np.float32) <= thresholds
    return result


def test_the_threshold_is_the_largest_row_that_goes_left() -> None:
    rng = np.random.default_rng(0)
    scales = (10.0 ** rng.uniform(-6, 6, 20_000)).astype(np.float32)
    thresholds = (rng.standard_normal(20_000) * 10.0 ** rng.uniform(-9, 9, 20_000)).astype("f4")
    found = thresholds_of_rows(thresholds.reshape(-1, 4), scales.reshape(-1, 4)).ravel()
    assert found.dtype == np.float32
    assert goes_left(found, scales, thresholds).all()
    assert not goes_left(np.nextafter(found, INF), scales, thresholds).any()
    assert (found != thresholds / scales).any()  # else the quotient would do


def test_thresholds_at_the_ends_of_float32() -> None:
    thresholds = np.array([INF, LARGEST, -LARGEST, 1e38, -1e38, 0.0, 1e-45], np.float32)
    x = np.array([-LARGEST, -1e30, -1e-45, 0.0, 1e-45, 1e30, 3e38, LARGEST], np.float32)
    for scale in (np.float32(20.0), np.float32(0.03), np.float32(1.0)):
        scales = np.full(len(thresholds), scale)
        found = thresholds_of_rows(thresholds, scales)
        for value in x:
            rows = np.full(len(thresholds), value)
            assert np.array_equal(rows <= found, goes_left(rows, scales, thresholds)), scale


def test_products_near_zero_are_those_of_many_rows() -> None:
    rng = np.random.default_rng(1)
    thresholds = np.concatenate([[0.0, 1e-44, -1e-44, 3e-39], rng.normal(0.0, 1e-42, 200)])
    for scale in (1e-33, 0.03, 0.7, 30.0):
        scales = np.full(len(thresholds), scale, np.float32)
        own = thresholds.astype(np.float32)
        found = thresholds_of_rows(own, scales)
        assert goes_left(found, scales, own).all()
        assert not goes_left(np.nextafter(found, INF), scales, own).any()
