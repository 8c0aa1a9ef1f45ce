"""Energy and cost: closed forms, laws, and published measurements."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from roofline import (
    Analysis,
    Hardware,
    RooflineError,
    Scenario,
    SpecError,
    analyze,
    load_hardware,
    load_model,
    parse_precision,
)
from roofline.graph.offload import Offload
from roofline.graph.parallel import Parallelism
from roofline.scenario.cost import batch_cost, generated_tokens, hourly_rent, processed_tokens
from roofline.scenario.energy import BatchEnergy, Reading, batch_energy, energy_at_tdp, matrix_power, times
from roofline.scenario.settings import Host, Settings
from roofline.scenario.speculation import Speculation
from roofline.specs.hardware import EnergyFigures
from roofline.specs.hardware_files import parse_hardware
from roofline.specs.library import spec_files
from roofline.techniques import apply_techniques
from roofline.whatif.metrics import find_metric
from roofline.whatif.study import make_study
from roofline.whatif.sweeps import sweep

READINGS: tuple[Reading, ...] = ("bound", "low", "mid", "high")
H100 = load_hardware("h100-sxm")
LLAMA = load_model("llama-3.1-8b")
TIMED = ("energy", "energy.prefill", "energy.decode", "energy.tdp", "power", "cost", "cost.processed")


def metric(name: str, analysis: Analysis, reading: str = "mid") -> Any:
    return find_metric(f"{name}.{reading}", "expected").figure(analysis)


def part(found: BatchEnergy | None, name: str) -> float:
    """One component of the energy of both phases."""
    assert found is not None
    return float(getattr(found.prefill, name) + getattr(found.decode, name))


def free(hardware: Hardware, **figures: Any) -> Hardware:
    """Hardware with other energy figures and no power limit."""
    return replace(hardware, energy=EnergyFigures(**figures), tdp=None)


def test_energy_by_hand() -> None:
    # Every term is read off the phases: the first decode step alone is generated after the prefill.
    hardware = free(H100, static=100.0, memory=2e-11, compute={"bf16": 1e-12}, link=3e-11)
    analysis = analyze(Scenario(LLAMA, hardware, batch=4, prompt=128, generate=2))
    assert analysis.decode is not None
    found = batch_energy(analysis, "bound")
    assert found is not None
    assert part(found, "static") == pytest.approx(100 * analysis.generation.total)
    assert part(found, "memory") == pytest.approx(2e-11 * (analysis.prefill.bytes + analysis.decode.bytes))
    assert part(found, "link") == 0
    # Vector operations draw the peak power of GEMMs: 1 pJ x 989.4 TFLOP/s.
    joules = 0.0
    for op in (*analysis.prefill.ops, *analysis.decode.ops):
        matrix = float(op.op.matrix_flops.evaluate(op.extents))
        vector = op.flops - matrix + op.upcast_flops
        joules += op.count * (1e-12 * matrix + 989.4e12 * 1e-12 / 66.9e12 * vector)
    assert part(found, "compute") == pytest.approx(joules)
    assert found.total == pytest.approx(part(found, "static") + part(found, "memory") + part(found, "compute"))
    assert found.total == pytest.approx(found.prefill.total + found.decode.total)
    assert found.power == pytest.approx(found.total / analysis.generation.total)
    assert metric("energy", analysis, "bound") == pytest.approx(found.total / 8)
    assert metric("energy.prefill", analysis, "bound") == pytest.approx(found.prefill.total / 512)
    assert metric("energy.decode", analysis, "bound") == pytest.approx(found.decode.total / 4)


def test_cost_by_hand() -> None:
    analysis = analyze(Scenario(LLAMA, H100, batch=2, prompt=100, generate=10, price=7.2))
    assert batch_cost(analysis, "mid") == pytest.approx(0.002 * analysis.expected.total.mid)
    assert metric("cost", analysis) == pytest.approx(1e6 * 0.002 * analysis.expected.total.mid / 20)
    assert metric("cost", analysis) == pytest.approx(1e6 * 0.002 / analysis.expected.tokens_per_second.mid)
    assert metric("cost.processed", analysis) == pytest.approx(metric("cost", analysis) * 20 / 220)
    assert (generated_tokens(analysis), processed_tokens(analysis)) == (20, 220)


def test_default_price_is_that_of_the_spec() -> None:
    assert H100.price is not None
    assert H100.price.rent == pytest.approx(median(offer.rent for offer in H100.price.offers))
    assert H100.price.date.year == 2026
    assert hourly_rent(analyze(Scenario(LLAMA, H100))) == H100.price.rent
    assert hourly_rent(analyze(Scenario(LLAMA, H100, price=1.25))) == 1.25
    assert hourly_rent(analyze(Scenario(LLAMA, load_hardware("mi210")))) is None
    bought = load_hardware("rtx-5080")  # only a purchase price
    assert bought.price is not None
    assert bought.price.buy
    assert hourly_rent(analyze(Scenario(LLAMA, bought))) is None


@pytest.mark.parametrize(
    ("price", "said"),
    [
        (-1.0, "price must be between 0.0001 and 1000000"),
        (0.0, "price must be between 0.0001 and 1000000"),
        (float("nan"), "price takes a number"),
        (float("inf"), "price takes a number"),
    ],
)
def test_invalid_price(price: float, said: str) -> None:
    with pytest.raises(RooflineError, match=said):
        Scenario(LLAMA, H100, price=price)
    with pytest.raises(RooflineError, match="USD per device hour"):
        Scenario(LLAMA, H100).changed(price=price)


@given(
    batch=st.integers(1, 300),
    prompt=st.integers(1, 3000),
    generate=st.integers(2, 600),
    name=st.sampled_from(("h100-sxm", "a100-sxm-80gb", "a100-pcie-80gb")),
    tensor=st.sampled_from((1, 2, 4)),
)
def test_laws(batch: int, prompt: int, generate: int, name: str, tensor: int) -> None:
    settings = Settings(parallel=Parallelism(tensor=tensor))
    hardware = load_hardware(name)
    scenario = Scenario(LLAMA, hardware, batch=batch, prompt=prompt, generate=generate, settings=settings, price=2.0)
    analysis, dearer = analyze(scenario), analyze(scenario.changed(price=4.0))
    assert hardware.energy is not None
    for reading in READINGS:
        found = batch_energy(analysis, reading)
        assert found is not None
        drawn = tensor * times(analysis, reading).total
        assert found.total >= hardware.energy.static * drawn
        parts = sum(part(found, name) for name in ("static", "compute", "memory", "link"))
        assert parts >= found.total * (1 - 1e-9)
        assert found.total <= energy_at_tdp(analysis, reading) * (1 + 1e-9)
        assert hardware.energy.static <= found.power <= (hardware.tdp or 0) * (1 + 1e-9)
        assert metric("cost", dearer, reading) == pytest.approx(2 * metric("cost", analysis, reading))
    for name in TIMED:
        bound, low, mid, high = (float(metric(name, analysis, reading)) for reading in READINGS)
        assert low * (1 - 1e-9) <= mid <= high * (1 + 1e-9), name
        if name != "power":  # the longest time has the lowest power
            assert bound <= low * (1 + 1e-9), name


@pytest.mark.slow
def test_arrays_equal_scalars() -> None:
    batches, prompts = np.array([1, 8, 200]), np.array([[64], [2048]])
    grid = analyze(Scenario(load_model("gemma-2-9b"), H100, batch=batches, prompt=prompts, generate=5000))
    for name in TIMED:
        for reading in READINGS:
            figures = np.broadcast_to(metric(name, grid, reading), (2, 3))
            for row, prompt in enumerate((64, 2048)):
                for column, batch in enumerate((1, 8, 200)):
                    one = analyze(Scenario(load_model("gemma-2-9b"), H100, batch=batch, prompt=prompt, generate=5000))
                    assert figures[row, column] == pytest.approx(float(metric(name, one, reading)), rel=1e-9)


def test_energy_sums_all_decode_steps() -> None:
    hardware = free(H100, static=1e-3, memory=1e-11)
    model = load_model("gemma-2-9b")  # windows of 4096 tokens bend the bytes in the context
    whole = analyze(Scenario(model, hardware, prompt=4000, generate=301))
    found = batch_energy(whole, "bound")
    steps = analyze(Scenario(model, hardware, prompt=4000, context=np.arange(4000, 4300)))
    assert found is not None
    assert steps.decode is not None
    assert part(found, "memory") == pytest.approx(1e-11 * (whole.prefill.bytes + float(np.sum(steps.decode.bytes))))


def test_more_devices_at_the_same_time_cost_more() -> None:
    # Replicas that each run the whole batch of one: the same time, four times the devices and sequences.
    one = analyze(Scenario(LLAMA, H100, batch=8))
    four = analyze(Scenario(LLAMA, H100, batch=32, settings=Settings(parallel=Parallelism(data=4))))
    assert four.generation.total == pytest.approx(one.generation.total)
    assert batch_cost(four, "bound") == pytest.approx(4 * batch_cost(one, "bound"))
    first, second = batch_energy(one, "bound"), batch_energy(four, "bound")
    assert first is not None
    assert second is not None
    assert second.total == pytest.approx(4 * first.total)
    assert metric("energy", four) == pytest.approx(metric("energy", one))
    assert metric("cost", four) == pytest.approx(metric("cost", one))


def test_pipeline_bubbles_have_no_dynamic_energy() -> None:
    hardware = free(H100, static=1.0, memory=1e-11)
    model = load_model("llama-3.1-70b")

    def moved(pipeline: int, batches: int) -> float:
        settings = Settings(parallel=Parallelism(pipeline=pipeline, micro_batches=batches))
        found = batch_energy(analyze(Scenario(model, hardware, batch=8, settings=settings)), "bound")
        assert found is not None
        return float(part(found, "memory"))

    # What stages hand to each other is read and written as well.
    assert moved(4, 1) == pytest.approx(moved(1, 1), rel=1e-3)
    assert moved(4, 4) == pytest.approx(moved(2, 4), rel=1e-3)
    assert moved(4, 8) == pytest.approx(moved(2, 8), rel=1e-3)
    assert moved(4, 16) == moved(4, 8)  # of eight sequences


@pytest.mark.parametrize("technique", ["layerskip", "speculative-decoding:draft=llama-3.2-1b", "eagle"])
def test_draft_energy_is_independent_of_the_pipeline(technique: str) -> None:
    """Self-drafting runs through all stages, a separate draft on one."""
    hardware = free(H100, static=0.0, memory=1e-11)

    def drawn(pipeline: int, batches: int) -> float:
        settings = Settings(parallel=Parallelism(pipeline=pipeline, micro_batches=batches))
        scenario = Scenario(load_model("llama-3.1-8b"), hardware, batch=8, generate=8, settings=settings)
        found = batch_energy(analyze(apply_techniques(scenario, [technique])), "bound")
        assert found is not None
        return float(part(found, "memory"))

    assert drawn(4, 1) == pytest.approx(drawn(1, 1), rel=3e-3)
    assert drawn(2, 1) == pytest.approx(drawn(1, 1), rel=3e-3)
    assert drawn(4, 4) == pytest.approx(drawn(2, 4), rel=3e-3)  # each micro-batch reads the weights


def test_energy_with_disaggregated_decode() -> None:
    other = load_hardware("a100-sxm-80gb")
    plain = analyze(Scenario(LLAMA, H100, batch=4))
    apart = analyze(Scenario(LLAMA, H100, batch=4, settings=Settings(decode_hardware=other)))
    found, alone = batch_energy(apart, "bound"), batch_energy(plain, "bound")
    assert found is not None
    assert alone is not None
    assert part(found, "static") == pytest.approx((121.7 + 80.0) * apart.generation.total)
    assert apart.decode is not None
    assert plain.decode is not None
    prefill = 155e-12 * plain.prefill.bytes
    assert part(found, "memory") - prefill == pytest.approx((part(alone, "memory") - prefill) * 198 / 155)
    assert other.price is not None
    assert hourly_rent(apart) == pytest.approx(hourly_rent(plain) + other.price.rent)
    assert hourly_rent(analyze(apart.scenario.changed(price=2.0))) == 4.0
    assert energy_at_tdp(apart, "bound") == pytest.approx((700 + 400) * apart.generation.total)
    unknown = analyze(Scenario(LLAMA, H100, settings=Settings(decode_hardware=load_hardware("mi210"))))
    assert batch_energy(unknown, "bound") is None
    assert hourly_rent(unknown) is None


def test_energy_with_host_compute_and_offloading() -> None:
    hardware = free(H100, static=50.0, memory=1e-11, link=1e-10)
    host = replace(load_hardware("epyc-9654"), energy=EnergyFigures(30.0, 1e-10), tdp=None)
    shared = Settings(host=Host(host, 0.5, 0.5))
    found = batch_energy(analyze(Scenario(LLAMA, hardware, settings=shared)), "bound")
    assert found is not None
    assert part(found, "static") == pytest.approx(
        80 * analyze(Scenario(LLAMA, hardware, settings=shared)).generation.total
    )
    streamed = analyze(Scenario(LLAMA, hardware, generate=2, settings=Settings(offload=Offload(weights=0.5))))
    assert streamed.decode is not None
    sent = batch_energy(streamed, "bound")
    assert sent is not None
    assert part(sent, "link") == pytest.approx(1e-10 * (streamed.prefill.link_bytes + streamed.decode.link_bytes))


def test_speculative_decoding_divides_energy_by_accepted_tokens() -> None:
    hardware = free(H100, static=1.0, memory=1e-11)
    free_drafts = Settings(speculation=Speculation(length=3, accepted=2.0, verified=3))
    plain = analyze(Scenario(LLAMA, hardware, generate=2))
    drafted = analyze(Scenario(LLAMA, hardware, generate=2, settings=free_drafts))
    assert drafted.decode is not None
    assert plain.decode is not None
    found = batch_energy(drafted, "bound")
    assert found is not None
    # The one token after the first takes an iteration, whatever it yields.
    assert part(found, "memory") == pytest.approx(1e-11 * (drafted.prefill.bytes + drafted.decode.bytes))
    longer = analyze(Scenario(LLAMA, hardware, generate=1001, settings=free_drafts))
    assert longer.kept_per_iteration == pytest.approx(2.0, rel=1e-3)


def test_emissions_are_those_of_the_energy() -> None:
    """Modelled energy, or else that at TDP; a region has the intensity of its table."""

    def grams(hardware: str, carbon: float | str) -> tuple[float, float]:
        answer = analyze(Scenario("llama-3.1-8b", hardware, batch=8, carbon=carbon))
        name = "energy.mid" if load_hardware(hardware).energy else "energy.tdp.mid"
        found, joules = (find_metric(each, "bound").figure(answer) for each in ("carbon.mid", name))
        return float(found), float(joules)

    for hardware in ("h100-sxm", "groq-lpu"):
        found, joules = grams(hardware, 360.0)
        assert found == pytest.approx(joules * 100)
        assert grams(hardware, "france")[0] == pytest.approx(found * 56 / 360)
    with pytest.raises(RooflineError, match="unknown region"):
        Scenario("llama-3.1-8b", "h100-sxm", carbon="atlantis")


def test_energy_of_an_encoder() -> None:
    analysis = analyze(Scenario(load_model("bert-base"), H100, batch=8))
    assert np.isnan(metric("energy", analysis))
    assert np.isnan(metric("cost", analysis))
    assert metric("energy.prefill", analysis) > 0
    assert metric("cost.processed", analysis) > 0


def test_energy_without_figures_is_nan() -> None:
    for name in ("mi210", "m3-max"):
        analysis = analyze(Scenario(LLAMA, load_hardware(name), batch=np.array([1, 2])))
        assert batch_energy(analysis, "mid") is None
        assert np.isnan(metric("energy", analysis)).all()
        assert np.isnan(metric("cost", analysis)).all()
    assert (metric("energy.tdp", analyze(Scenario(LLAMA, load_hardware("mi210")))) > 0).all()
    assert np.isnan(metric("energy.tdp", analyze(Scenario(LLAMA, load_hardware("m3-max"))))).all()


def test_formats_without_a_figure_have_the_same_peak_power() -> None:
    hardware = free(H100, static=100.0, memory=1e-11, compute={"bf16": 0.5e-12})
    assert matrix_power(hardware, "bf16") == pytest.approx(989.4e12 * 0.5e-12)
    assert matrix_power(hardware, "fp8") == matrix_power(hardware, "bf16")
    assert matrix_power(replace(H100, energy=EnergyFigures(100.0, 1e-11)), "bf16") == 600
    assert matrix_power(free(H100, static=100.0, memory=1e-11), "bf16") == 0


# Llama 3.1 on H100 SXM by vLLM 0.11.1, text conversation: mean power (W of all devices) and energy (J a generated
# token) by the most sequences at once. Read off the vector figures of "LLM Inference Energy: A Longitudinal Analysis",
# ML.ENERGY, 2026; prompts of 634 tokens (leaderboard v3.0 post) and answers of 397 (that of 8B). Both published figures
# give the rate, so that power is tested apart from time. `fitted`: the 155 pJ/B of the spec rest on it.
MEASURED = {
    ("llama-3.1-8b", 1, None, True): {16: (513, 0.2627), 32: (560, 0.1651), 64: (610, 0.1186), 128: (669, 0.0951)},
    ("llama-3.1-70b", 4, None, True): {16: (1804, 2.091), 64: (2002, 0.7972), 128: (2184, 0.5634), 512: (2493, 0.421)},
    ("llama-3.1-405b", 8, "fp8", False): {16: (3384, 7.589), 64: (4162, 3.0825), 128: (4606, 2.4295)},
}


@pytest.mark.parametrize(("key", "points"), MEASURED.items(), ids=lambda value: str(value)[:16])
def test_power_against_measurements(
    key: tuple[str, int, str | None, bool], points: dict[int, tuple[float, float]]
) -> None:
    name, devices, scheme, fitted = key
    precision = None if scheme is None else parse_precision("bf16", scheme=scheme)
    settings = Settings(parallel=Parallelism(tensor=devices))
    errors = []
    for batch, (power, joules) in points.items():
        analysis = analyze(
            Scenario(
                load_model(name), H100, batch=batch, prompt=634, generate=397, precision=precision, settings=settings
            )
        )
        found = batch_energy(analysis, "bound")
        assert found is not None
        rate = power / joules
        work = (part(found, "compute") + part(found, "memory")) / float(generated_tokens(analysis))
        predicted = min(121.7 + work * rate / devices, 700.0)
        errors.append(predicted / (power / devices) - 1)
    # Signed errors: 8B -4, -8, -12, -16%; 70B +6, +6, +8, +4%; 405B in FP8, which was not fitted, -7, -14, -19%.
    assert max(map(abs, errors)) < (0.18 if fitted else 0.22)


def test_energy_per_token_against_measurements() -> None:
    """Power and time predicted together: -6, -14, -18 and -14%."""
    batches = {16: 0.2627, 64: 0.1186, 128: 0.0951, 512: 0.0702}
    analysis = analyze(Scenario(LLAMA, H100, batch=np.array(list(batches)), prompt=634, generate=397))
    errors = metric("energy", analysis) / np.array(list(batches.values())) - 1
    assert np.abs(errors).max() < 0.19


# ML.ENERGY leaderboard of 2023, A100-SXM4-40GB, Hugging Face at batch 1: J a response, s, tokens. Both were fitted.
@pytest.mark.parametrize(
    ("name", "joules", "seconds", "tokens"), [("llama-2-7b", 1828.8, 9.442, 420), ("llama-2-13b", 3050.1, 12.984, 379)]
)
def test_a100_energy_against_measurements(name: str, joules: float, seconds: float, tokens: int) -> None:
    analysis = analyze(Scenario(load_model(name), load_hardware("a100-sxm-40gb"), prompt=50, generate=tokens))
    found = batch_energy(analysis, "bound")
    assert found is not None
    assert 80.0 * seconds + part(found, "compute") + part(found, "memory") == pytest.approx(joules, rel=0.05)


@pytest.fixture
def spec() -> Callable[..., Hardware]:
    content = yaml.safe_load(Path(spec_files("hwspecs")["h100-sxm"]).read_text())

    def parse(**energy: object) -> Hardware:
        return parse_hardware({**content, "energy": energy}, "own.yaml")

    return parse


def test_energy_section_of_a_spec(spec: Callable[..., Hardware]) -> None:
    hardware = spec(static="90 W [idle]", memory="6 pJ/bit [power]", compute={"bf16": "0.7 pJ/FLOP"}, link="10 pJ/B")
    assert hardware.energy is not None
    assert hardware.energy.static == 90
    assert hardware.energy.memory == pytest.approx(48e-12)
    assert hardware.energy.compute == pytest.approx({"bf16": 0.7e-12})
    assert hardware.energy.link == pytest.approx(1e-11)
    assert {"energy.static", "energy.memory"} <= set(hardware.sources)


@pytest.mark.parametrize(
    ("energy", "message"),
    [
        ({"static": "90 W"}, "energy.memory"),
        ({"memory": "6 pJ/bit"}, "energy.static"),
        ({"static": "90 W", "memory": "6 pJ/bit", "compute": {"fp9": "1 pJ/FLOP"}}, "fp9"),
        ({"static": "90 W", "memory": "6 W"}, "energy.memory"),
        ({"static": "90 W", "memory": "6 mJ/B"}, "plausible"),
        ({"static": "90 W [nobody]", "memory": "6 pJ/B"}, "nobody"),
        ({"static": "90 W", "memory": "6 pJ/B", "idle": "3 W"}, "idle"),
    ],
)
def test_invalid_energy_section(spec: Callable[..., Hardware], energy: dict[str, object], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        spec(**energy)


def test_sweeps_have_energy_and_cost() -> None:
    study = make_study(
        {"hw": "h100-sxm,mi210", "batch": "1,64"}, "energy,energy.tdp,cost", model="llama-3.1-8b", at="bound"
    )
    columns = sweep(study).columns
    assert np.isnan(columns["cost"]).tolist() == np.isnan(columns["energy"]).tolist() == [False, False, True, True]
    assert np.isfinite(columns["energy.tdp"]).all()
    dear = make_study({"price": "1,2", "batch": "1,64"}, "cost", model="llama-3.1-8b", hw="mi210", at="bound")
    cost = sweep(dear).columns["cost"]
    assert cost[2:] == pytest.approx(2 * cost[:2])
    cheapest = make_study(
        {"hw": "h100-sxm,mi210,l40s"}, "ttft", top=1, by="cost", where="cost < 100", model="llama-3.1-8b", at="bound"
    )
    assert len(sweep(cheapest).columns["hw"]) == 1


@pytest.mark.parametrize(
    ("metrics", "message"),
    [
        ("cost", "no hourly price; give one, in USD per device hour"),
        ("energy", "no energy figures"),
        ("power.low", "no energy figures"),
    ],
)
def test_metrics_without_figures_are_refused(metrics: str, message: str) -> None:
    with pytest.raises(RooflineError, match=message):
        make_study({"batch": "1,2"}, metrics, model="llama-3.1-8b", hw="mi210")
