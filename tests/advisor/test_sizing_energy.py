"""Energy of sizings: the model of `roofline.scenario.energy` at a load, upper ends elsewhere, bounds below them."""

from __future__ import annotations

import pytest

from roofline import analyze, load_model
from roofline.advisor.search.goal import Quality
from roofline.advisor.sizing.deployments import Deployment
from roofline.advisor.sizing.sizing import size
from roofline.advisor.sizing.workload import Service
from roofline.scenario.energy import batch_energy
from tests.cases import sampled

MODEL = load_model("llama-3.1-8b")
MODELLED = ["h100-sxm", "a100-sxm-80gb"]


def deployments(service: Service, hardware: list[str]) -> list[Deployment]:
    choices = size(MODEL, service, hardware, Quality.LOSSLESS).choices
    return [
        deployment for choice in choices for deployment in (choice.best, choice.runner_up) if deployment is not None
    ]


def test_a_service_draws_static_power_always_and_what_its_requests_move_and_compute() -> None:
    service = Service(6, 2000, 300, 2, 0.05)
    for deployment in deployments(service, MODELLED):
        energy = deployment.hardware.energy
        assert energy is not None
        prefill = batch_energy(analyze(deployment.configuration.scenario), "mid")
        decode = batch_energy(deployment.static, "mid")
        assert prefill is not None
        assert decode is not None
        moved = [(phase.compute + phase.memory + phase.link) for phase in (prefill.prefill, decode.decode)]
        assert all(phase.total < phase.limit for phase in (prefill.prefill, decode.decode))  # nothing is throttled
        request = moved[0] + moved[1] / deployment.batch
        by_hand = energy.static * deployment.devices / (6 * 300) + request / 300
        assert deployment.modelled_energy == pytest.approx(by_hand)
        assert deployment.figures.energy == pytest.approx(deployment.hardware.tdp * deployment.devices / (6 * 300))


def test_next_to_no_load_leaves_the_static_power() -> None:
    for deployment in deployments(Service(1e-5, 1000, 100), ["h100-sxm"]):
        assert deployment.modelled_energy == pytest.approx(121.7 * deployment.devices / (1e-5 * 100), rel=1e-3)


@pytest.mark.parametrize(
    ("rate", "lengths"),
    sampled([(None, (2000, 300)), (200, ("lognormal:mean=2000,p95=6000", "exponential:mean=300"))], 1),
)
def test_modelled_energy_lies_between_the_static_and_the_thermal_design_power(rate, lengths) -> None:
    for deployment in deployments(Service(rate, *lengths), MODELLED):
        energy, tdp = deployment.hardware.energy, deployment.hardware.tdp
        assert energy is not None
        assert tdp is not None
        most = deployment.figures.energy
        assert most * energy.static / tdp < deployment.modelled_energy <= most


@pytest.mark.slow
def test_nothing_is_modelled_without_figures() -> None:
    choice = size(MODEL, Service(5, 2000, 300), ["l40s", "h100-sxm"], Quality.LOSSLESS).choice("efficient")
    known = {deployment.hardware.name: deployment.modelled_energy for deployment in (choice.best, choice.runner_up)}
    assert known["l40s"] is None
    assert known["h100-sxm"] > 0
    assert not choice.runner_up_has_lower_modelled_energy
    assert not any(deployment.figures.energy for deployment in deployments(Service(5, 2000, 300), ["trainium-2"]))


def test_the_order_of_upper_ends_is_contradicted_where_the_model_does() -> None:
    """Two A100 PCIe have a lower TDP than one H100, which draws less for what it does."""
    found = size(MODEL, Service(5, 2000, 300, 2, 0.05), ["h100-sxm", "a100-pcie-80gb"], Quality.LOSSLESS)
    choice = found.choice("efficient")
    assert choice.best.hardware.name == "a100-pcie-80gb"
    assert choice.best.figures.energy < choice.runner_up.figures.energy
    assert choice.runner_up_has_lower_modelled_energy == (
        choice.runner_up.modelled_energy < choice.best.modelled_energy
    )
    assert choice.runner_up_has_lower_modelled_energy
