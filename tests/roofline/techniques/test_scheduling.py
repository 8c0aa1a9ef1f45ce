"""Schedulers of the serving survey: the command that simulates each, and Petals' hops."""

from __future__ import annotations

import re

import pytest

from roofline import RooflineError, Scenario, UnsupportedError, analyze, load_hardware, load_model, parse_precision
from roofline.graph.parallel import Parallelism
from roofline.scenario.settings import Settings
from roofline.serving.policies import POLICIES
from roofline.serving.replicas import FLEETS, PLACEMENT
from roofline.techniques import apply_techniques, find_technique

LLAMA = Scenario(
    load_model("llama-2-70b"), load_hardware("t4"), prompt=128, generate=16, precision=parse_precision("fp16", "nf4")
)


@pytest.mark.parametrize("name", ["FastServe", "VTC", "Llumnix", "AlpaServe", "SpotServe"])
def test_what_no_scenario_has_names_the_command_that_simulates_it(name: str) -> None:
    entry = find_technique(name)
    assert entry.change is None
    assert entry.published
    policy = re.search(r"--policy (\w+)", entry.command)
    assert policy is not None
    assert policy[1] in {*POLICIES, *FLEETS, PLACEMENT}
    with pytest.raises(UnsupportedError, match=f"{entry.name} is no change of a scenario"):
        apply_techniques(LLAMA, [name])


def test_a_token_crosses_the_network_once_more_than_there_are_machines() -> None:
    """Published: 2.29 steps/s at 5 ms or less and 1.57 at 100 ms, a difference of 0.20 s for three machines."""

    def tpot(**values: object) -> float:
        request = ",".join(f"{key}={value}" for key, value in values.items())
        return float(analyze(apply_techniques(LLAMA, [f"petals:{request}"])).generation.tpot)

    assert tpot(rtt="100 ms") - tpot(rtt="5 ms") == pytest.approx(4 * 0.095 / 2)
    assert tpot(rtt="100 ms") - tpot(rtt="5 ms") == pytest.approx(1 / 1.57 - 1 / 2.29, rel=0.1)
    sent = 2 * 8192 * 2  # two transfers of a 16-bit residual stream between three machines
    assert tpot(bandwidth="1 MB/s") - tpot(bandwidth="2 MB/s") == pytest.approx(sent / 2e6)


def test_petals_places_one_device_on_every_machine() -> None:
    scenario = apply_techniques(LLAMA, ["petals:stages=4"])
    assert scenario.settings.parallel == Parallelism(pipeline=4, nodes=4)
    assert analyze(scenario).memory.weights < analyze(LLAMA).memory.weights / 3
    with pytest.raises(RooflineError, match="petals conflicts with the parallelism"):
        apply_techniques(
            Scenario(LLAMA.model, LLAMA.hardware, settings=Settings(parallel=Parallelism(tensor=2))), ["petals"]
        )
