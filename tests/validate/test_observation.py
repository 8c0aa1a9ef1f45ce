"""How this project times kernels: cold operands, or those that a cache holds."""

from __future__ import annotations

import numpy as np
import pytest

from roofline.specs.hardware import load_hardware
from roofline.timing.kernels import Row, kernel_bound, kernel_time
from roofline.validate import observation
from roofline.validate.observation import MEASURED, Timed
from tests.validate.test_kernels import CASES, cases, defaults

H100 = load_hardware("h100-sxm")


def observed(op: str, row: Row, warm: np.ndarray, **changes: float) -> Timed:
    format = str(row["dtype"])
    constants = {**defaults(op, format), **MEASURED.known(op, format, changes)}
    return MEASURED.observe(observation.observed(op, {**row, "op": op}, warm), H100, constants)


@pytest.mark.parametrize(("op", "dtype"), cases())
def test_rows_of_one_call_are_as_if_each_stood_by_itself(op: str, dtype: str) -> None:
    columns, _, along = CASES[op]
    columns = {**columns, "dtype": dtype, along: np.array([1.0, 24.0, 24.0, 3000.0])}
    warm = np.array([False, False, True, True])
    together = observed(op, columns, warm)
    assert np.all(np.isfinite(together.seconds))
    for index in range(4):
        row = {**columns, along: columns[along][index : index + 1]}
        own = observed(op, row, warm[index : index + 1])
        np.testing.assert_allclose(own.seconds[0], together.seconds[index], rtol=1e-12)
        np.testing.assert_allclose(own.bound[0], together.bound[index], rtol=1e-12)
    cold = {**columns, along: columns[along][:2]}
    np.testing.assert_allclose(together.seconds[:2], kernel_time(op, cold, H100, defaults(op, dtype)), rtol=1e-12)
    np.testing.assert_allclose(together.bound[:2], kernel_bound(op, {**cold, "op": op}, H100), rtol=1e-12)


def test_cold_weights_are_never_faster_than_warm_ones() -> None:
    columns = {"dtype": "bf16", "m": 16.0, "n": np.array([1024.0, 4096.0, 16384.0]), "k": 4096.0}
    cold, warm = (observed("gemm", columns, np.full(3, state)) for state in (False, True))
    assert np.all(cold.seconds >= warm.seconds)
    assert cold.seconds[0] > warm.seconds[0]
    assert np.all(warm.bound < cold.bound)


def test_a_cache_holds_what_is_far_below_its_size_and_nothing_far_above() -> None:
    """Keys and values from the L2 at ten times the memory's bandwidth."""
    columns = {**CASES["attention_decode"][0], "dtype": "bf16", "kv_len": np.array([1024.0, 2.0**21])}
    cold, warm = (observed("attention_decode", columns, np.full(2, state), l2_speedup=10.0) for state in (False, True))
    few, many = warm.seconds / cold.seconds
    assert few < 0.95
    assert many == pytest.approx(1.0, rel=1e-6)
