"""Layers on devices of different kinds."""

import pytest
from msgspec.structs import replace

from roofline import Scenario, analyze, load_hardware, serve
from roofline.core.errors import RooflineError
from roofline.launch.bundle import launch
from roofline.scenario.cost import billed_pools
from roofline.specs.hardware import Interconnect
from roofline.whatif.sensitivities import sensitivity

MODEL = "llama-3.3-70b"


def tpot(hardware: str, **options: object) -> float:
    found = analyze(Scenario("llama-2-13b", hardware, quant="q8_0", **options)).expected.tpot
    assert found is not None
    return found.mid


def test_a_plus_joins_two_devices_whose_shares_are_their_memory() -> None:
    scenario = Scenario(MODEL, "rtx-3090+rtx-3060", quant="q3_k_m")
    assert scenario.options["hw"] == "rtx-3090"
    assert scenario.options["with"] == ["mixed-devices:hardware=rtx-3060,share=0.333"]
    assert scenario.profile.name == "llama.cpp"
    assert Scenario(**scenario.options) == scenario
    assert [pool.name for pool in billed_pools(analyze(scenario))] == ["rtx-3090", "rtx-3060"]


def test_each_device_takes_the_time_of_its_share() -> None:
    """A pipeline of two stages: without what both add to a pass, the mean of the two by share."""
    alone = tpot("rtx-3090"), tpot("rtx-3060", kv="q8_0")
    assert alone[0] < tpot("rtx-3090+rtx-3060") < alone[1]


def test_it_fits_where_each_share_fits() -> None:
    assert analyze(Scenario(MODEL, "rtx-4090+rtx-3090", quant="q4_k_m")).memory.fits
    lopsided = Scenario(MODEL, "rtx-4090", quant="q4_k_m", techniques="mixed-devices:hardware=rtx-3060,share=0.5")
    assert not analyze(lopsided).memory.fits
    assert not analyze(Scenario(MODEL, "rtx-3090+rtx-3060", quant="q4_k_m")).memory.fits


def test_several_devices_of_the_second_kind_divide_its_layers() -> None:
    """As many bytes at the same bandwidth, one after the other: the time of one that holds them all."""
    two = Scenario(MODEL, "2x3090+4090", quant="q4_k_m")
    assert two.options["with"] == ["mixed-devices:hardware=2xrtx-3090,share=0.667"]
    one = Scenario(MODEL, "rtx-4090", quant="q4_k_m", techniques="mixed-devices:hardware=rtx-3090,share=0.667")
    assert analyze(two).expected.tpot == analyze(one).expected.tpot
    assert analyze(two).memory.fits
    assert not analyze(one).memory.fits
    assert [pool.name for pool in billed_pools(analyze(two))] == ["rtx-4090", "rtx-3090", "rtx-3090"]
    assert "--tensor-split 0.333,0.334,0.334" in str(launch(two).files)


def test_the_command_splits_the_layers() -> None:
    assert "--tensor-split 0.5,0.5" in str(launch(Scenario(MODEL, "rtx-4090+rtx-3090", quant="q4_k_m")).files)


def test_more_devices_of_several_kinds_take_turns() -> None:
    several = Scenario(MODEL, "2x4090+2x3090+a6000", quant="q4_k_m")
    assert [pool.name for pool in billed_pools(analyze(several))] == [
        *("a6000", "rtx-4090", "rtx-4090", "rtx-3090", "rtx-3090")
    ]
    assert "--tensor-split 0.333,0.167,0.167,0.167,0.167" in str(launch(several).files)


@pytest.mark.parametrize("technique", ["mixed-devices:hardware=rtx-3060,share=0.3", "llama-cpp-split:share=0.3"])
def test_a_load_computes_each_share_of_a_prompt_where_it_is(technique: str) -> None:
    """Seconds of a prompt over those of the device alone are the same in a static batch and under a load."""
    alone, shared = (
        Scenario(
            "llama-2-13b", "rtx-3090", quant="q4_k_m", prompt=512, generate=16, engine="llama.cpp", techniques=each
        )
        for each in ((), technique)
    )
    static = analyze(shared).expected.ttft.mid / analyze(alone).expected.ttft.mid
    loaded = [serve(each, rate=1e-3).outcomes[0].ttft.mean.mid for each in (shared, alone)]
    assert loaded[0] / loaded[1] == pytest.approx(static, rel=0.2)


STAGES = "hexgen:stages=2xa6000,layers=40/40,bandwidth=12.5 GB/s,latency=5 us"


def test_equal_stages_of_hexgen_are_a_pipeline() -> None:
    """Two stages of two equal devices each, in two nodes: tensor and pipeline parallelism of 2."""
    plain = load_hardware("a6000")
    link = Interconnect(kind="network", scope="network", bandwidth=12.5e9, latency=5e-6)
    hardware = replace(plain, interconnects=(*(each for each in plain.interconnects if each.scope != "network"), link))
    staged = analyze(Scenario("llama-2-70b", "2xa6000", techniques=STAGES))
    even = analyze(Scenario("llama-2-70b", hardware, tp=2, pp=2, nodes=2))
    assert staged.generation.tpot == pytest.approx(even.generation.tpot, rel=1e-6)
    assert staged.expected.tpot.mid == pytest.approx(even.expected.tpot.mid, rel=1e-3)
    assert staged.memory.weights == pytest.approx(even.memory.weights, rel=0.02)
    rates = [serve(each.scenario, rate=1e-3).outcomes[0].saturated_at for each in (staged, even)]
    assert rates[0] == pytest.approx(rates[1], rel=0.1)


def test_stages_of_hexgen_have_shares_of_their_own() -> None:
    """The example of unequal cards: 16 GB hold fewer layers, and the time is the sum of the stages'."""
    found = Scenario("llama-2-70b", "4xa6000+2xa5000+2xa4000", techniques="hexgen")
    layers = [round(80 * stage.share) for stage in found.settings.mixed]
    assert sum(layers) == 80
    assert layers[0] > layers[1] > layers[2]
    answer = analyze(found)
    assert answer.memory.fits
    assert len(billed_pools(answer)) == 8
    assert not analyze(
        found.with_(techniques="hexgen:stages=2xa5000/2xa4000,layers=30/20/30", hw="4xa6000")
    ).memory.fits
    fleet = serve(found.with_(dp=3, prompt=128, generate=16), rate=0.5, simulate=30, policy="balanced")
    assert fleet.replica.devices == 24


@pytest.mark.parametrize(
    "technique",
    ["hexgen:layers=40/40,stages=3xa5000", "hexgen:layers=40/41", "hexgen:stages=core-i9-13900k", "hexgen:bandwidth=x"],
)
def test_impossible_stages_are_refused(technique: str) -> None:
    with pytest.raises(RooflineError):
        Scenario("llama-2-70b", "4xa6000", techniques=technique).settings  # noqa: B018


@pytest.mark.parametrize("hardware", ["rtx-3090+nothing", "rtx-3090+", "rtx-3090+core-i9-13900k"])
def test_others_are_refused(hardware: str) -> None:
    with pytest.raises(RooflineError):
        Scenario(MODEL, hardware)


@pytest.mark.slow
def test_the_sensitivity_is_to_the_hardware_of_all_stages() -> None:
    staged = Scenario("llama-2-70b", "4xa6000+4xrtx-3090-ti", techniques="hexgen")
    found = {each.name: each for each in sensitivity(staged)}
    assert found["bandwidth"].elasticities["tpot"] < -0.3


@pytest.mark.parametrize("technique", ["petals", "tensor-parallelism"])
def test_no_other_parallelism_divides_the_layers_as_well(technique: str) -> None:
    with pytest.raises(RooflineError, match="several kinds"):
        Scenario("llama-2-70b", "4xa6000+4xrtx-3090-ti", techniques=["hexgen", technique])
