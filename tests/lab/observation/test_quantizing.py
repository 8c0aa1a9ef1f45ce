"""Activations that a benchmark quantizes in PyTorch operators, by published timings."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from lab.observation.collector import Collector
from lab.observation.quantizing import eager_quantization
from roofline import load_hardware
from roofline.timing.chains import load_calibration
from roofline.validate.tables.rows import Measurements

H100 = load_hardware("h100-sxm")


@pytest.mark.parametrize(
    ("hardware", "elements", "microseconds"),
    [
        ("h200-sxm", 2.0**21.5, 31.6),
        ("h200-sxm", 2.0**24.5, 207.0),
        ("gb200", 2.0**21.5, 24.2),
        ("l40s", 2.0**21.5, 47.2),
    ],
)
def test_eager_quantization(hardware: str, elements: float, microseconds: float) -> None:
    """Medians of vLLM 0.14's FP8 GEMMs less what a GEMM takes (ai-dynamo/aiconfigurator); chosen on those of H100."""
    found = float(eager_quantization(np.asarray(elements), "fp8", load_hardware(hardware)))
    assert found * 1e6 == pytest.approx(microseconds, rel=0.25)


def test_eager_quantization_is_the_benchmarks() -> None:
    """Of vLLM 0.14's table: a served model compiles it, as later versions do."""
    row = {"dtype": "fp8", "m": 8192.0, "n": 4096.0, "k": 4096.0}
    part = Measurements("gemm", pd.DataFrame({**row, "eager": [1.0], "cache": ["cold"]}), "table")
    old, new = (load_calibration(H100, engine="vllm", version=version) for version in ("0.14", "0.24"))
    eager = float(Collector().expected(Collector().rows(part), H100, old).mid[0])
    served, newer = (float(one.expected("gemm", row, H100).mid) for one in (old, new))
    assert served == pytest.approx(newer, rel=0.15)
    assert eager > 1.5 * served
