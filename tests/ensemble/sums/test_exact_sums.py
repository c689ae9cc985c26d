"""Sums of whole numbers give back the moments of labels."""

from __future__ import annotations

import numpy as np

from dmondrian.ensemble.sums.exact_sums import label_moments, units, whole_moments


def test_whole_numbers_give_a_moment_as_well_as_a_double_does() -> None:
    known = np.array([[4.0, 2.0, 5.0]] * 5)  # mean 1/2, variance 1
    offset, exact = 3.0, np.array([0.5, 1.0 / 3.0, -200.0, 1e-9, 7.25])
    variance = np.array([1e-10, 1e-3, 2.0, 1e-12, 0.0])
    answers = np.stack([offset + exact, exact * exact + variance], axis=1)
    reported = whole_moments(answers, offset, known)
    mean, found = label_moments(3 * reported, 3, units(known, offset))
    np.testing.assert_allclose(mean, offset + exact, rtol=1e-14)
    assert (np.abs(found - variance) <= 1e-15 * (1.0 + exact**2)).all()
    far = whole_moments(np.array([[1e9, 1e18], [np.nan, np.inf]]), offset, known[:2])
    assert far[0].tolist() == [2**40, 2**40, 0, 0]
    assert (np.abs(far) <= 2**40).all()  # a million trees add up
