"""Engines are hedged on families of devices where their kernels were not measured."""

from __future__ import annotations

import pytest

from roofline import Scenario
from roofline.scenario.analysis import analyze
from roofline.whatif.odds import UNMEASURED, odds


@pytest.mark.parametrize(
    ("hardware", "measured"),
    [("h100-sxm", True), ("rtx-4090", True), ("ryzen-ai-max-395", False), ("dgx-spark", False)],
)
def test_an_engine_is_not_sure_to_be_faster_where_it_was_not_measured(hardware: str, measured: bool) -> None:
    """However large the ratio is; formats of one engine share what is not known of it there."""
    given = {"hw": hardware, "prompt": 4000}
    first, second = (analyze(Scenario("qwen3-8b", engine=engine, **given)) for engine in ("vllm", "llama.cpp"))
    found = odds(first, second, ratio=50.0)
    assert (UNMEASURED not in found.doubts) == (found.confidence == "sure") == measured
    narrower = analyze(Scenario("qwen3-8b", engine="vllm", quant="awq", **given))
    assert UNMEASURED not in odds(narrower, first).doubts
