"""Energy of sizings: the model of `roofline.scenario.energy` at a load, upper ends elsewhere, bounds below them."""

from __future__ import annotations

import pytest

from roofline import analyze, load_model
from roofline.advisor.search.goal import Quality
from roofline.advisor.sizing import search
from roofline.advisor.sizing.deployments import Setup
from roofline.advisor.sizing.sizing import size
from roofline.advisor.sizing.workload import Service
from roofline.scenario.energy import consumption
from roofline.whatif.metrics import find_metric

MODEL = load_model("llama-3.1-8b")
MODELLED = ["h100-sxm", "a100-sxm-80gb"]


def setups(service: Service, hardware: list[str]) -> list[Setup]:
    choices = size(MODEL, service, hardware, Quality.LOSSLESS).choices
    return [setup for choice in choices for setup in (choice.best, choice.runner_up) if setup is not None]


def test_one_user_draws_what_an_analysis_says() -> None:
    for setup in setups(Service(None, 2000, 300), MODELLED):
        alone = setup.simulated.alone(1)
        for figure, metric in ((setup.modelled_energy, "energy"), (setup.figures.energy, "energy.tdp")):
            assert figure == pytest.approx(float(find_metric(f"{metric}.mid", "bound").figure(alone)))


def test_a_service_draws_static_power_always_and_what_its_requests_move_and_compute() -> None:
    service = Service(6, 2000, 300, 2, 0.05)
    for setup in setups(service, MODELLED):
        energy = setup.hardware.energy
        assert energy is not None
        prefill = consumption(analyze(setup.configuration.prefill.scenario()), "mid")
        decode = consumption(setup.simulated.alone(setup.command_batch), "mid")
        assert prefill is not None
        assert decode is not None
        moved = [(phase.compute + phase.memory + phase.link) for phase in (prefill.prefill, decode.decode)]
        assert all(phase.total < phase.limit for phase in (prefill.prefill, decode.decode))  # nothing is throttled
        request = moved[0] + moved[1] / setup.command_batch
        by_hand = energy.static * setup.devices / (6 * 300) + request / 300
        assert setup.modelled_energy == pytest.approx(by_hand)


def test_next_to_no_load_leaves_the_static_power() -> None:
    for setup in setups(Service(1e-5, 1000, 100), ["h100-sxm"]):
        assert setup.modelled_energy == pytest.approx(121.7 * setup.devices / (1e-5 * 100), rel=1e-3)


@pytest.mark.parametrize("rate", [0.5, 20, 200, None])
@pytest.mark.parametrize("lengths", [(2000, 300), ("lognormal:mean=2000,p95=6000", "exponential:mean=300")])
def test_modelled_energy_lies_between_the_static_and_the_thermal_design_power(rate, lengths) -> None:
    for setup in setups(Service(rate, *lengths), MODELLED):
        energy, tdp = setup.hardware.energy, setup.hardware.tdp
        assert energy is not None
        assert tdp is not None
        most = setup.figures.energy
        assert most * energy.static / tdp < setup.modelled_energy <= most


def test_nothing_is_modelled_without_figures() -> None:
    choice = size(MODEL, Service(5, 2000, 300), ["l40s", "h100-sxm"]).choice("efficient")
    known = {setup.hardware.name: setup.modelled_energy for setup in (choice.best, choice.runner_up)}
    assert known["l40s"] is None
    assert known["h100-sxm"] > 0
    assert not choice.otherwise_modelled
    assert not any(setup.figures.energy for setup in setups(Service(5, 2000, 300), ["trainium-2"]))


def test_the_order_of_upper_ends_is_contradicted_where_the_model_does() -> None:
    """Two A100 PCIe have a lower TDP than one H100, which draws less for what it does."""
    choice = size(MODEL, Service(5, 2000, 300, 2, 0.05), ["h100-sxm", "a100-pcie-80gb"]).choice("efficient")
    assert choice.best.hardware.name == "a100-pcie-80gb"
    assert choice.best.figures.energy < choice.runner_up.figures.energy
    assert choice.otherwise_modelled == (choice.runner_up.modelled_energy < choice.best.modelled_energy)
    assert choice.otherwise_modelled


@pytest.mark.parametrize("service", [Service(8, 1500, 250, 1.5, 0.04), Service(None, 9000, 20)])
def test_no_energy_is_below_the_bound_that_prunes(service, monkeypatch) -> None:
    found = []
    ranked = search.Search._two

    def all_of(self: search.Search, *rest: object) -> object:
        found.append(self)
        return ranked(self, *rest)

    monkeypatch.setattr(search.Search, "_two", all_of)
    size(MODEL, service, ["l4", "h100-sxm", "mi300x"])
    whole = found[0]
    compared = 0
    for prospect in whole.capable:
        setup = whole._sized(prospect)
        if setup is not None:
            compared += 1
            assert whole._least(prospect, float("inf")).energy <= setup.figures.energy * (1 + 1e-9)
    assert compared > 10
