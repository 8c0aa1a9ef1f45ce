"""Layers on two devices of different kinds."""

import pytest

from roofline import Scenario, analyze
from roofline.core.errors import RooflineError
from roofline.launch.bundle import launch
from roofline.scenario.cost import billed_pools

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


@pytest.mark.parametrize("hardware", ["2x4090+2x3090", "rtx-3090+nothing", "rtx-3090+"])
def test_others_are_refused(hardware: str) -> None:
    with pytest.raises(RooflineError):
        Scenario(MODEL, hardware)
