"""Attention and experts on devices of their own."""

from typing import Any

import pytest

from roofline import Scenario, analyze, serve
from roofline.core.errors import RooflineError
from roofline.scenario.analysis import Analysis

APART = "attention-ffn-disaggregation:devices=16,micro_batches={}"


def apart(batch: int, micro_batches: int, replicas: int = 16, model: str = "step-3") -> Analysis:
    technique = APART.format(micro_batches)
    options: dict[str, Any] = {"quant": "fp8", "kv": "fp8", "prompt": 4096, "generate": 2}
    return analyze(Scenario(model, "h800-sxm", dp=replicas, batch=batch, techniques=technique, **options))


def lanes(found: Analysis) -> tuple[float, float, float]:
    """Bound seconds of a micro-batch on devices of attention, on those of experts, and on links."""
    assert found.decode is not None
    spent = [0.0, 0.0, 0.0]
    batches = found.decode.passes[0].repeat
    for op in found.decode.ops:
        lane = 2 if op.op.is_all_to_all else 1 if op.op.of_experts else 0
        spent[lane] += op.count * op.bound_time / batches
    return spent[0], spent[1], spent[2]


@pytest.mark.parametrize("batch", [16, 512, 4096])
@pytest.mark.parametrize("micro_batches", [1, 2, 3, 6])
def test_a_step_takes_the_busiest_pool_or_the_way_of_a_micro_batch(batch: int, micro_batches: int) -> None:
    found = apart(batch, micro_batches)
    attention, experts, sent = lanes(found)
    longest = max(attention, experts, sent / 2, (attention + experts + sent) / micro_batches)
    assert found.decode is not None
    assert found.decode.bound_time == pytest.approx(micro_batches * longest, rel=1e-9)


def test_experts_compute_the_tokens_of_all_replicas_and_attention_those_of_one() -> None:
    few, many = lanes(apart(2048, 2, 8)), lanes(apart(4096, 2, 16))
    assert many[0] == pytest.approx(few[0], rel=0.01)
    assert many[1] > few[1]


def test_devices_count_and_experts_are_in_the_memory_of_their_own() -> None:
    found, together = apart(1024, 2), analyze(Scenario("step-3", "h800-sxm", ep=16, quant="fp8", kv="fp8"))
    assert found.parallel.devices == 32
    experts = 56 * 48 * 3 * 7168 * 5120 / 16  # bytes in FP8, without scales
    assert together.memory.weights - found.memory.weights == pytest.approx(experts, rel=0.01)


def test_more_replicas_have_more_sequences_in_the_same_time() -> None:
    """Attention's devices hold the cache: with twice as many, twice the batch takes less than twice as long."""
    one, two = (apart(1024 * count, 2, 16 * count).expected.tpot for count in (1, 2))
    assert one is not None
    assert two is not None
    assert one.mid < two.mid < 2 * one.mid


@pytest.mark.parametrize(
    ("model", "options"),
    [
        ("llama-3.1-8b", {}),
        ("step-3", {"ep": 8}),
        ("step-3", {"pp": 2}),
        ("mixtral-8x22b", {"hw": "rtx-4090", "techniques": "afd:devices=2"}),
    ],
)
def test_what_has_no_such_pools_is_refused(model: str, options: dict[str, Any]) -> None:
    with pytest.raises(RooflineError):
        Scenario(model, **{"hw": "h800-sxm", "techniques": "afd", **options})


def test_a_load_is_refused() -> None:
    with pytest.raises(RooflineError, match="analyze"):
        serve(Scenario("step-3", "h800-sxm", quant="fp8", dp=8, techniques=APART.format(2)), rate=1.0)
