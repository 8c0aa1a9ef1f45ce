"""The estimator of the fits."""

import numpy as np
import pytest

from roofline.validate.fit.posterior import mode, rooted


def test_without_a_prior_or_outliers_it_is_least_squares() -> None:
    x = np.linspace(0, 1, 20)
    found = mode(lambda at: at[0] + at[1] * x - (2 + 3 * x), lambda at: at[:0], np.zeros(2), scale=0.1)
    assert found == pytest.approx([2, 3])


def test_a_prior_holds_what_the_rows_do_not_tell() -> None:
    """One row of deviation 1 at 4, a prior of deviation 1 at 0: the middle."""
    assert mode(lambda at: at - 4, np.copy, np.zeros(1), scale=1.0) == pytest.approx([2])


@pytest.mark.parametrize("outliers", [False, True])
def test_a_far_row_counts_less(outliers: bool) -> None:
    rows = np.array([0.0, 0.1, -0.1, 8.0])
    plain = mode(lambda at: at - rows, lambda at: at[:0], np.zeros(1), scale=0.1)
    robust = mode(lambda at: at - rows, lambda at: at[:0], np.zeros(1), scale=0.1, knee=1.0, outliers=outliers)
    assert abs(robust[0]) < 0.1 < plain[0]


def test_small_residuals_are_quadratic() -> None:
    small = np.array([-1e-3, 2e-3])
    assert rooted(small, 1.0) == pytest.approx(small, rel=1e-5)
    assert rooted(small, 1.0, outliers=True) == pytest.approx(small, rel=1e-5)
