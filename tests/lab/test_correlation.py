"""Correlations of errors, recovered from synthetic ones."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from lab.score.correlation import between, correlations, within


def rows(together: float, apart: float, groups: int = 1, own: int = 2) -> pd.DataFrame:
    """Errors of 2000 groups of 10 shapes: a part that the group shares and one of each row, as standard deviations.

    `groups` and `own` are the seeds of the two parts.
    """
    common, single = np.random.default_rng(groups), np.random.default_rng(own)
    group, member = np.divmod(np.arange(20000), 10)
    error = together * common.standard_normal(2000)[group] + apart * single.standard_normal(20000)
    frame = pd.DataFrame({"fit": 0, "hardware": "h100-sxm", "m": group, "n": member, "k": 1, "dtype": "bf16"})
    return frame.assign(tokens=group, error=error, square=error**2)


@pytest.mark.parametrize(("together", "apart", "expected"), [(0.1, 0.1, 0.5), (0.05, 0.1, 0.2), (0.0, 0.1, 0.0)])
def test_correlation_is_the_fraction_of_variance_between_groups(together: float, apart: float, expected: float) -> None:
    found = correlations(rows(together, apart), "gemm")
    assert found.same_tokens == pytest.approx(expected, abs=0.04)
    assert found.lowest == found.same_tokens == found.highest
    assert found.same_shape == pytest.approx(0.0, abs=0.04)
    assert found.spread == pytest.approx(np.hypot(together, apart), rel=0.05)


def test_a_bias_counts_as_correlation() -> None:
    frame = rows(0.0, 0.1)
    biased = frame.assign(error=frame["error"] + 0.1).assign(square=lambda found: found["error"] ** 2)
    assert within(biased, ("fit",)) == pytest.approx(0.5, abs=0.04)


def test_groups_of_one_row_are_ignored() -> None:
    frame = pd.DataFrame({"m": [1, 1, 2], "error": [0.1, 0.1, 5.0]})
    assert within(frame.assign(square=frame["error"] ** 2), ("m",)) == pytest.approx(1.0)


def test_correlation_between_kinds() -> None:
    first = rows(0.1, 0.1)
    value, groups = between(first, rows(0.1, 0.1, own=3), ("hardware", "tokens"))
    assert groups == 2000
    assert value == pytest.approx(0.5, abs=0.04)
    assert between(first, rows(0.1, 0.1, groups=4, own=5), ("hardware", "tokens"))[0] == pytest.approx(0.0, abs=0.04)
