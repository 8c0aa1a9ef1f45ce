"""FP8 blocks of 128 that tensor ranks may not cut (vLLM's validate_fp8_block_shape, issues 25292 and 54178)."""

import pytest
from msgspec.structs import replace

from roofline import Scenario
from roofline.graph.blocks import cut_blocks
from roofline.graph.parallel import Parallelism


@pytest.mark.parametrize(
    ("model", "whole", "cut"),
    [("qwen3-4b-fp8", 4, 8), ("qwen3-235b-a22b-fp8", 4, 8), ("deepseek-v3", 16, 32), ("qwen3-235b-a22b", 8, 256)],
)
def test_ranks_hold_whole_blocks(model: str, whole: int, cut: int) -> None:
    scenario = Scenario(model, "h100-sxm")

    def parts(ranks: int) -> list[tuple[str, int]]:
        return list(cut_blocks(scenario.model, scenario.run_precision, "vllm", Parallelism(tensor=ranks)))

    assert not parts(whole)
    assert bool(parts(cut)) is (scenario.run_precision.weights.linear.name == "fp8_block")


def test_blocks_of_32_divide_among_four() -> None:
    """2304 columns on four ranks are 18 blocks of 32 (DeepSeek-V4.1); experts in FP4 have no such blocks."""
    scenario, four = Scenario("deepseek-v4.1-flash", "b200-sxm", tp=4), Parallelism(tensor=4)
    precision, coarse = scenario.run_precision, replace(scenario.model, block=128)
    assert not list(cut_blocks(scenario.model, precision, "vllm", four))
    assert list(cut_blocks(coarse, precision, "vllm", four)) == [("shared experts", 2304)]


def test_devices_named_with_their_count_are_laid_out_as_the_engine_starts() -> None:
    """Experts of 1536 stay whole on 8 ranks, an MLP of 9728 is divided by 4, in two replicas; explicit degrees stay."""
    experts = Scenario("qwen3-235b-a22b-fp8", "8xh100-sxm").settings.parallel
    assert (experts.tensor, experts.expert) == (8, 8)
    assert Scenario("qwen3-235b-a22b-fp8", "8xh100-sxm", quant="bf16").settings.parallel.expert == 1
    dense = Scenario("qwen3-4b-fp8", "8xh100-sxm").settings.parallel
    assert (dense.tensor, dense.pipeline, dense.data) == (4, 1, 2)
    assert Scenario("qwen3-4b-fp8", "h100-sxm", tp=8).settings.parallel.tensor == 8
