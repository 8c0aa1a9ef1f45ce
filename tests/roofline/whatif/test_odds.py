"""Verdicts: closed forms of the probability, and what doubts do to it."""

from __future__ import annotations

import math

import pytest

from roofline import Scenario, analyze
from roofline.whatif.odds import DOUBTS, YOUNG, early_error, flip_batch, gain, odds, of_ratio

LLAMA = Scenario("llama-3.1-8b", "h100-sxm", batch=8)


def test_a_gain_of_one_is_open_and_one_beyond_p90_is_sure() -> None:
    assert of_ratio(1.0, 0.2).probability == pytest.approx(0.5)
    assert of_ratio(1.0, 0.0).probability == 0.5
    assert of_ratio(2.0, 0.0).probability == 1.0
    at_p90 = of_ratio(math.exp(1.2815515655446004 * 0.3), 0.3)
    assert at_p90.probability == pytest.approx(0.9)
    assert at_p90.gain.low == pytest.approx(1.0)


def test_a_verdict_without_doubts_is_that_of_the_gain() -> None:
    fast, slow = (analyze(LLAMA.with_(quant=name)) for name in ("fp8", None))
    found, expected = odds(fast, slow), gain(slow, fast)
    assert found.doubts == ()
    assert found.gain == pytest.approx(tuple(expected))
    assert found.confidence == "sure"
    assert odds(slow, fast).probability == pytest.approx(1 - found.probability)


@pytest.mark.parametrize(
    ("changes", "doubt"),
    [
        ({"pp": 2, "micro_batches": 2}, "pipelines"),
        ({"tp": 16}, "several nodes"),
        ({"offload": "weights=0.5"}, "offloading"),
        ({"with": ["eagle"]}, "drafts"),
    ],
)
def test_what_is_hardly_measured_hedges(changes: dict[str, object], doubt: str) -> None:
    plain, changed = analyze(LLAMA), analyze(LLAMA.with_(**changes))  # type: ignore[arg-type]
    found = odds(changed, plain)
    assert doubt in found.doubts
    narrow = gain(plain, changed)
    assert found.gain.high / found.gain.mid > narrow.high / narrow.mid
    assert odds(changed, changed).doubts == ()


def test_every_doubt_has_an_error_and_a_source() -> None:
    assert all(0 < doubt.error < 1 and doubt.source for doubt in DOUBTS)


def test_weight_only_formats_flip_where_prefill_and_large_batches_compute() -> None:
    awq, fp16 = (LLAMA.with_(quant=name, batch=1, generate=1024) for name in ("awq", None))
    batch = flip_batch(awq, fp16, "total")
    assert batch is not None
    first, second = (analyze(each.at(batch=batch)).expected.total.mid for each in (awq, fp16))
    assert first > second
    half = [analyze(each.at(batch=batch // 2)).expected.total.mid for each in (awq, fp16)]
    assert half[0] <= half[1]


def test_kernels_of_4_bits_are_as_sure_as_their_constants() -> None:
    """One kernel for both formats on A100 is a tie; on H100 vLLM has Machete for GPTQ alone, fitted to nothing."""
    for hardware, doubt in (("a100-sxm-80gb", ()), ("h100-sxm", ("this weight-only kernel",))):
        awq, gptq = (analyze(LLAMA.with_(hw=hardware, quant=name, batch=1)) for name in ("awq", "gptq"))
        found = odds(gptq, awq)
        assert found.doubts == doubt
        assert 0.49 < found.probability < 0.9


def test_releases_before_the_fitted_ones_do_not_share_their_error_over_other_devices() -> None:
    """gpt-oss-120b on A100 with vLLM 0.10 is slower on four devices than on one (vllm-project/vllm, issue 22331)."""
    early = Scenario("gpt-oss-120b", "a100-sxm-80gb", engine="vllm@0.10")
    for plain, probability in ((early, 0.7), (early.with_(engine="vllm@0.14"), 1.0)):
        found = odds(analyze(plain.with_(tp=4)), analyze(plain))
        assert (YOUNG in found.doubts) == (probability < 1)
        assert found.probability < probability
    assert early_error(early, early.with_(prompt=2048)) == 0.0


def test_a_static_batch_fills_the_stages_of_a_pipeline() -> None:
    staged = LLAMA.with_(pp=2, batch=64)
    assert staged.settings.parallel.micro_batches == 2
    assert staged.with_(micro_batches=1).settings.parallel.micro_batches == 1
    assert staged.with_(engine="llama.cpp").settings.parallel.micro_batches == 1


def test_a_step_that_the_host_launches_has_the_interval_of_hosts() -> None:
    graphs = Scenario("qwen2.5-7b", "a800-sxm-80gb", generate=64)
    measured = 22.5e-3  # and 13 ms with graphs: vllm-project/vllm-omni, issue 7960
    eager = analyze(graphs.with_(enforce_eager=True))
    assert eager.expected.tpot.low < measured < eager.expected.tpot.high
    large = [analyze(graphs.with_(enforce_eager=value, batch=512, context=4000)) for value in (False, True)]
    widths = [found.expected.ttft.high / found.expected.ttft.low for found in large]
    assert widths[1] == pytest.approx(widths[0], rel=0.01)  # where the device takes longer than its launches
    small = odds(analyze(graphs), eager, "tpot")
    assert "launches by the host" in small.doubts
