"""Top-k selection: the formula, and the rows of an indexer."""

from __future__ import annotations

import numpy as np
import pytest

from roofline import Scenario, analyze, load_hardware, load_model
from roofline.timing.chains import load_calibration
from roofline.timing.kernels import kernel_bound, kernel_time
from roofline.timing.kernels.top_k import PARAMETERS

B200 = load_hardware("b200-sxm")
DEFAULTS = {parameter.name: parameter.default for parameter in PARAMETERS}


def rows(batch: float, keys: float) -> dict[str, float]:
    return {"batch": batch, "kv_len": keys, "top_k": 2048.0}


def time(batch: float, keys: float, **constants: float) -> float:
    return float(kernel_time("top_k", rows(batch, keys), B200, {**DEFAULTS, **constants}))


def test_every_doubling_beyond_k_adds_a_pass() -> None:
    few = {"memory_efficiency": 1.0}
    assert time(1, 100, **few) == pytest.approx(time(1, 2048, **few), rel=0.01)
    for keys in (2048, 8192, 65536):
        longer = time(1, 2 * keys, **few) - time(1, keys, **few)
        assert longer == pytest.approx(DEFAULTS["doubling"], rel=0.02)


def test_many_rows_are_read_once() -> None:
    bound = 4 * 1024 * 131072 / B200.memory_bandwidth
    assert float(kernel_bound("top_k", rows(1024, 131072), B200)) == pytest.approx(bound)
    added = time(1024, 131072) - time(512, 131072)
    assert added == pytest.approx(bound / 2 / DEFAULTS["memory_efficiency"])


def test_an_indexer_selects_for_every_token() -> None:
    """Prompts pick among the keys that each token sees, 4096.5 on average of 8192; a step among all."""
    answer = analyze(Scenario(load_model("deepseek-v3.2"), B200, batch=2, prompt=8192, generate=2))
    assert answer.decode is not None
    for phase, tokens, keys in ((answer.prefill, 2 * 8192, 4096.5), (answer.decode, 2, 8193)):
        alone = load_calibration(B200).expected("top_k", rows(tokens, keys), B200)
        found = [
            (op, expected)
            for op, expected in zip(phase.ops, phase.expected_ops, strict=True)
            if op.name == "index_top_k"
        ]
        assert sum(op.count for op, _ in found) == 61
        for op, expected in found:
            assert expected.basis == "family"
            assert expected.time.mid == pytest.approx(max(float(alone.mid), op.bound_time))
            assert op.flops == pytest.approx(tokens * keys)


def test_models_without_an_indexer_have_no_top_k() -> None:
    answer = analyze(Scenario(load_model("deepseek-v3"), B200, prompt=8192, generate=2))
    assert not any(op.kind == "top_k" for op in answer.prefill.ops)


def test_grids_agree_with_scalars() -> None:
    keys = np.array([3.0, 2048.0, 2049.0, 1e6])
    together = kernel_time("top_k", {"batch": 7.0, "kv_len": keys, "top_k": 2048.0}, B200, DEFAULTS)
    np.testing.assert_allclose(together, [time(7, key) for key in keys], rtol=1e-12)
