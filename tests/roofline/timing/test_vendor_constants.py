"""Constants on hardware of vendors of which few kernels are measured."""

from __future__ import annotations

import pytest

from roofline import Scenario, analyze


@pytest.mark.parametrize("hardware", ["mi300x", "mi325x"])
def test_an_fp8_cache_of_mla_is_no_slower_than_one_of_16_bits(hardware: str) -> None:
    """AITER's kernels read it; NVIDIA's, which never split the keys of a sequence, took 40 times as long there."""
    scenario = Scenario("deepseek-r1", hardware, tp=8, quant="fp8", engine="sglang", batch=4, prompt=5000, generate=2)
    plain, stored = (analyze(scenario.with_(kv=kv)).expected.tpot for kv in ("bf16", "fp8"))
    assert stored.mid == pytest.approx(plain.mid, rel=0.1)


def test_versions_of_aiter_differ_in_the_time_between_kernels() -> None:
    """SGLang on MI325X, DeepSeek-R1 in FP8, four requests in flight: 27.3 ms with 0.5.5, 14.2 with 0.5.12."""
    scenario = Scenario("deepseek-r1", "mi325x", tp=8, quant="fp8", batch=4, prompt=1024, generate=1024)
    old, new = (analyze(scenario.with_(engine=f"sglang@{version}")).expected.tpot for version in ("0.5.5", "0.5.12"))
    assert old.mid == pytest.approx(27.3e-3, rel=0.2)
    assert new.mid == pytest.approx(14.2e-3, rel=0.2)
