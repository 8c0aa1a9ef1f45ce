"""Pipelines under load: as many batches in flight as stages, latency of a prompt, published throughput."""

from __future__ import annotations

from functools import cache

import pytest

from roofline import Scenario
from roofline.serving import Load, serve
from roofline.serving.steps import StepTimes


@cache
def steps(**options: int | str) -> StepTimes:
    return StepTimes(Scenario("llama-3.1-70b", "h100-sxm", engine="vllm", **options))  # type: ignore[arg-type]


def test_a_round_of_a_pipeline_is_one_pass_of_each_batch() -> None:
    four = steps(pp=4)
    assert four.flight == 4
    one = float(four.pass_seconds(16, 2000))
    assert float(four.seconds(64, 2000)) == pytest.approx(one), "four batches of 16, none of which waits"
    assert float(four.seconds(1, 2000)) == pytest.approx(float(four.pass_seconds(1, 2000)))
    assert four.single(64, 2000, 0, 0, 0, None) == pytest.approx(float(four.seconds(64, 2000)), rel=1e-6)
    assert four.single(64, 2000, 4000, 0, 2, None) == pytest.approx(float(four.seconds(64, 2000, 4000, 0, 2)), rel=1e-6)


def test_a_prompt_is_on_its_way_through_all_stages() -> None:
    four, alone = steps(pp=4), steps()
    assert float(four.seconds(0, 0, 8192)) + four.waiting(8192) == pytest.approx(
        float(four.pass_seconds(0, 0, 8192)), rel=0.15
    )
    assert alone.waiting(8192) == 0


def test_micro_batches_that_are_asked_for_are_in_flight() -> None:
    few, many = steps(pp=4, micro_batches=2), steps(pp=4, micro_batches=8)
    assert (few.flight, many.flight) == (2, 8)
    assert float(few.seconds(64, 2000)) == pytest.approx(float(few.pass_seconds(32, 2000)))
    assert float(many.seconds(64, 2000)) == pytest.approx(2 * float(many.pass_seconds(8, 2000)))


def test_layers_split_over_devices_run_in_turn() -> None:
    split = StepTimes(Scenario("llama-3.1-8b", "rtx-4090", engine="llama.cpp", quant="q8_0", pp=2))
    assert split.flight == 1


def test_pipelines_have_more_throughput_than_tensor_parallelism_offline() -> None:
    """Llama 3.1 405B in FP8 on 8 H200: 764 to 506 tokens/s (NVIDIA, Boosting Llama 3.1 405B Throughput, 2024)."""

    def throughput(**degree: int) -> float:
        scenario = Scenario("llama-3.1-405b", "h200-sxm", quant="fp8", engine="tensorrt-llm", **degree)  # type: ignore[arg-type]
        load = Load(prompt=2048, generate=128, concurrency=512)
        return float(serve(scenario, load).outcomes[0].output_tokens_per_second)

    tensor, pipeline = throughput(tp=8), throughput(pp=8)
    assert tensor == pytest.approx(506, rel=0.2)
    assert 1.2 < pipeline / tensor < 1.8
