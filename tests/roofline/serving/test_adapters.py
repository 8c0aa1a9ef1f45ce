"""Many adapters: one batch for all, models of their own, and adapters that come from host memory."""

from __future__ import annotations

import pytest

from roofline import RooflineError, Scenario, analyze, serve
from roofline.serving.load import Load
from roofline.serving.outcome import Outcome
from roofline.serving.replica import replica_of

LENGTHS = {"prompt": "lognormal:mean=256,p95=600", "generate": "lognormal:mean=128,p95=300"}


def served(*techniques: str, **options: object) -> Outcome:
    scenario = Scenario("llama-7b", "a100-sxm-80gb", techniques=list(techniques), **LENGTHS)  # type: ignore[arg-type]
    return serve(scenario, offline=800, **options).outcomes[0]  # type: ignore[arg-type]


def test_one_batch_for_all_adapters() -> None:
    """12 times the throughput of a model for each adapter, run without it, and 2 ms more a token (Punica)."""
    alone, plain, many = (
        analyze(Scenario("llama-2-7b", "a100-sxm-80gb", batch=batch, techniques=techniques))
        for batch, techniques in ((1, []), (32, []), (32, ["punica"]))
    )
    gain = many.expected.tokens_per_second.mid / alone.expected.tokens_per_second.mid
    assert gain == pytest.approx(12, rel=0.3)
    assert many.expected.tpot.mid - plain.expected.tpot.mid == pytest.approx(2e-3, rel=0.3)


def test_adapters_beside_one_model_against_models_of_their_own() -> None:
    """Up to 4 times the throughput of five models on one device (S-LoRA, abstract)."""
    gain = (
        served("punica:adapters=5,rank=8").requests_per_second
        / served(policy="alpaserve", tenants=(1,) * 5).requests_per_second
    )
    assert 2 < gain < 5


def test_one_adapter_is_no_slower_than_two() -> None:
    for given in ("adapters={}", "adapters={},experts=1"):
        one, two = (
            analyze(Scenario("qwen3-30b-a3b", "h100-sxm", techniques=["lora:rank=16," + given.format(count)], batch=8))
            for count in (1, 2)
        )
        assert one.expected.ttft.mid <= two.expected.ttft.mid
        assert one.expected.tpot.mid < two.expected.tpot.mid
        assert one.memory.weights < two.memory.weights


def test_thousands_of_adapters_cost_little() -> None:
    """Orders of magnitude more adapters at nearly the same throughput (S-LoRA, abstract)."""
    few, many, popular = (
        served(f"s-lora:{given}") for given in ("adapters=200", "adapters=2000", "adapters=2000,skew=1")
    )
    assert 0.85 * few.requests_per_second < many.requests_per_second < popular.requests_per_second


def test_a_batch_has_no_more_adapters_than_slots() -> None:
    load = Load(rate=1.0)

    def sequences(given: str) -> int:
        scenario = Scenario("llama-7b", "a100-sxm-80gb", techniques=[f"lora:rank=8,{given}"])
        return replica_of(scenario, load.of(scenario)).scheduler.sequences

    assert sequences("adapters=10000,slots=16") == 16
    assert sequences("adapters=17,slots=16") > 40
    assert sequences("adapters=16,slots=16") == sequences("adapters=1")


def test_slots_take_room_of_the_kv_cache() -> None:
    def room(*techniques: str) -> int:
        scenario = Scenario("llama-2-7b", "a100-sxm-80gb", techniques=list(techniques))
        return replica_of(scenario, Load(rate=1.0).of(scenario)).kv_tokens

    added = 64 * 2 * 32 * 16 * (4 * (4096 + 4096) + 3 * (4096 + 11008))
    assert room() - room("lora:rank=16,adapters=100,slots=64") == pytest.approx(added / 524_288, rel=0.01)


@pytest.mark.parametrize("given", ["slots=9", "adapters=4,slots=5", "largest=8"])
def test_what_adapters_do_not_have_is_refused(given: str) -> None:
    with pytest.raises(RooflineError):
        Scenario("llama-7b", "a100-sxm-80gb", techniques=[f"lora:rank=16,{given}"])


def test_experts_have_adapters_of_their_own() -> None:
    def weights(given: str) -> float:
        return float(
            analyze(Scenario("mixtral-8x7b", "b200-sxm", techniques=[f"lora:rank=16,adapters=8{given}"])).memory.weights
        )

    assert weights(",experts=1") - weights("") == pytest.approx(32 * 8 * 8 * 16 * 3 * (4096 + 14336) * 2)
