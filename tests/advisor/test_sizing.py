"""Sizing: closed forms, order, commands that reproduce figures, pruning that loses nothing, reasons."""

import math
import re
import shlex

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roofline import Scenario, analyze, load_hardware, load_model
from roofline.advisor.search.goal import Quality
from roofline.advisor.sizing import search
from roofline.advisor.sizing.configurations import BATCHES, Candidate, Candidates, Simulated, configurations
from roofline.advisor.sizing.deployments import Figures, targets_of
from roofline.advisor.sizing.queueing import load
from roofline.advisor.sizing.sizing import size
from roofline.advisor.sizing.workload import Service
from roofline.core.errors import RooflineError

MODEL = load_model("llama-3.1-8b")
FEW = ["l4", "a100-sxm-80gb", "h100-sxm", "mi300x"]


def test_bad_services_are_told() -> None:
    for arguments, message in (
        ((0, 100, 100), "request rate must be above 0"),
        ((5, 100, 1), "at least 2 tokens"),
        ((5, 100, 100, -1.0), "TTFT must be above 0"),
        ((5, 100, 100, 1.0, 1.0, 1.5), "quantile must be at least 0.5"),
    ):
        with pytest.raises(RooflineError, match=message):
            Service(*arguments)
    with pytest.raises(RooflineError, match="only encodes"):
        size(load_model("bert-base"), Service(5, 100, 100))
    with pytest.raises(RooflineError, match="unknown hardware"):
        size(MODEL, Service(5, 100, 100), ["h100-sxn"])
    with pytest.raises(RooflineError, match="maximum context"):
        size(MODEL, Service(5, 200_000, 100), FEW)
    with pytest.raises(RooflineError, match="not among the hardware"):
        size(MODEL, Service(5, 100, 100), ["l4"], prices={"h100-sxm": 3.0})


def test_at_low_load_ttft_is_the_prefill_and_tpot_the_step_of_one_sequence() -> None:
    found = size(MODEL, Service(1e-4, 1000, 100), ["h100-sxm"], Quality.LOSSLESS)
    best = found.choice("fewest").best
    alone = analyze(Scenario(MODEL, load_hardware("h100-sxm"), batch=1, prompt=1000, generate=100)).expected
    assert (best.replicas, best.command_batch) == (1, 1)
    for got, true in ((best.ttft, alone.ttft), (best.tpot, alone.tpot), (best.prefill, alone.ttft)):
        assert list(got) == pytest.approx(list(true), rel=1e-3)


@pytest.mark.parametrize("engine", ["vllm", "vllm-v0", "sglang", "tensorrt-llm", "lmdeploy"])
def test_a_replica_holds_as_many_sequences_as_solve_says_fit(engine: str) -> None:
    """One truth of memory: the slots of a size are the batch that fits, up to what the engine or sizing allow."""
    service, batches, held = Service(1, 8000, 500), np.arange(1, 2000), set()
    candidates = Candidates(service)
    for configuration in configurations(load_model("llama-3.1-70b"), service, ["h100-sxm"], Quality.CALIBRATED, engine):
        candidate = candidates.of(configuration)
        assert candidate is not None
        fitting = analyze(configuration.prefill.with_options(batch=batches).scenario()).memory.fits
        limit = configuration.engine.memory.on(configuration.hardware).sequences or BATCHES[-1]
        assert candidate.slots == min(np.sum(fitting), limit, BATCHES[-1]), (configuration.formats, configuration.split)
        held.add(candidate.slots)
    assert max(held) > 150


def test_little_holds_at_the_chosen_load() -> None:
    service = Service(40, 1000, 200, 2, 0.05, quantile=None)
    best = size(MODEL, service, ["h100-sxm"]).choice("fewest").best
    assert best.batch == pytest.approx(40 / best.replicas * 199 * best.tpot.mid, rel=1e-6)
    assert 0 < best.utilisation < 1


def test_no_time_is_below_the_bound_that_prunes() -> None:
    for service in (Service(2, "uniform:200:3000", 200), Service(2, 1000, "exponential:mean=300")):
        for name, model in (
            ("h100-sxm", MODEL),
            ("mi300x", load_model("mixtral-8x7b")),
            ("m4-max", MODEL),
            ("h100-sxm", load_model("gpt-oss-20b")),
            ("m4-max", load_model("gpt-oss-20b")),
            ("b200-sxm", load_model("minimax-m2")),
            ("a100-sxm-80gb", load_model("minimax-m2")),
        ):
            candidates = Candidates(service)
            for configuration in configurations(model, service, [name], Quality.CALIBRATED, None):
                candidate = candidates.of(configuration)
                if candidate is None or not candidate.slots:
                    continue
                replica = Simulated(candidate).replica("mid")
                assert np.all(candidate.best.step <= replica.step * (1 + 1e-9))
                assert candidate.best.prefill.quantile <= replica.prefill.quantile * (1 + 1e-9)
                assert np.all(candidate.best.ceilings >= replica.ceilings * (1 - 1e-9))


@pytest.mark.parametrize(
    "service", [Service(8, 1500, 250, 1.5, 0.04), Service(None, 500, 500), Service(None, 9000, 20)]
)
def test_pruning_loses_nothing(service, monkeypatch) -> None:
    names = [*FEW, "rtx-4090"]
    pruned = size(MODEL, service, names)

    def nothing(self: search.Search, candidate: Candidate, _: float) -> Figures:
        priced = self._price(candidate.configuration) is not None
        powered = candidate.configuration.hardware.tdp is not None
        return Figures(0, 0, 0 if priced else None, 0 if powered else None, 0, 0)

    monkeypatch.setattr(search.Search, "_figures_bound", nothing)
    whole = size(MODEL, service, names)
    assert whole.simulated > pruned.simulated
    for before, after in zip(pruned.choices, whole.choices, strict=True):
        assert before.best.command == after.best.command
        assert before.best.figures == after.best.figures
        assert before.runner_up.figures == after.runner_up.figures
        assert before.best.modelled_energy == after.best.modelled_energy


@settings(max_examples=2)
@given(st.floats(0.5, 200), st.floats(1, 4), st.floats(0.3, 3), st.floats(0.012, 0.1), st.sampled_from([None, 0.9]))
def test_more_requests_never_take_less_and_looser_targets_never_more(rate, factor, ttft, tpot, quantile) -> None:
    prices = {"l4": 0.7, "h100-sxm": 3.5}

    def needs(*service: float) -> list[float]:
        found = size(MODEL, Service(service[0], 1500, 200, *service[1:], quantile), list(prices), prices=prices)
        if not found.feasible:
            return [math.inf, math.inf]
        return [found.choice("cheapest").best.figures.cost, found.choice("fewest").best.devices]

    asked = needs(rate, ttft, tpot)
    for got, most in zip(asked, needs(rate * factor, ttft, tpot), strict=True):
        assert got <= most
    for looser in (needs(rate, ttft * factor, tpot), needs(rate, ttft, tpot * factor)):
        for got, least in zip(asked, looser, strict=True):
            assert least <= got


def reproduced(run, command: str) -> dict:
    import json

    status, out, _ = run(*shlex.split(command)[1:], "--format", "json")
    assert status == 0
    return json.loads(out)["generation"]


@pytest.mark.parametrize(
    ("model", "service", "names"),
    [
        ("llama-3.1-8b", Service(20, 2000, 300, 2, 0.05), ["l4", "h100-sxm"]),
        ("llama-3.1-70b", Service(3, "uniform:500:3000", "exponential:mean=200", 4, 0.1), ["a100-sxm-40gb", "mi300x"]),
        ("llama-3.1-405b", Service(0.5, 1000, 200, 8, 0.2), ["a100-sxm-80gb"]),
        ("llama-2-13b", Service(None, 200, 1000), ["m3-max", "rtx-4090"]),
    ],
)
def test_commands_reproduce_step_and_prefill(model, service, names, run) -> None:
    found = size(load_model(model), service, names)
    assert found.feasible
    for choice in found.choices:
        for deployment in filter(None, (choice.best, choice.runner_up)):
            step = reproduced(run, deployment.command)["expected_tpot_s"]
            prefill = reproduced(run, deployment.prefill_command)["expected_ttft_s"]
            for name in ("low", "mid", "high"):
                assert step[name] == pytest.approx(getattr(deployment.step, name), rel=1e-9)
                assert prefill[name] == pytest.approx(getattr(deployment.prefill, name), rel=1e-9)


def test_the_whole_meets_its_targets_and_one_replica_fewer_would_not() -> None:
    service = Service(60, 1500, 300, 1, 0.03)
    for choice in size(MODEL, service, FEW).choices:
        best = choice.best
        assert best.ttft.mid <= service.ttft
        assert best.tpot.mid <= service.tpot
        assert best.slots <= best.simulated.candidate.slots <= BATCHES[-1]
        if best.replicas > 1:
            replica = best.simulated.replica("mid")
            share = service.rate / (best.replicas - 1)
            # The edge of the rate is closed to a thousandth.
            assert not targets_of(replica, service).slots(load(replica, share * 1.002, service.quantile))


def test_the_pessimistic_end_takes_no_less() -> None:
    service = Service(60, 1500, 300, 2, 0.05)
    devices = [size(MODEL, service, FEW[:2], at=at).choice("fewest").best.devices for at in ("low", "mid", "high")]
    assert devices == sorted(devices)


def test_setups_of_the_same_hardware_have_no_price_below_which_one_is_the_choice() -> None:
    found = size(load_model("llama-3.1-70b"), Service(0.001, 2000, 300, 2, 0.05), ["h100-sxm"])
    for choice in found.choices:
        assert choice.runner_up is not None
        assert choice.runner_up.hardware is choice.best.hardware
        assert set(choice.differs) & {"formats", "parallelism"}
        assert not {change.what for change in choice.changes} & {"price", "price_ratio"}
    assert not found.choice("efficient").runner_up_has_lower_modelled_energy
    unpriced = size(MODEL, Service(5, 2000, 300), ["mi300x"], prices={})
    assert not {change.what for choice in unpriced.choices for change in choice.changes} & {"price", "price_ratio"}
    assert size(MODEL, Service(5, 2000, 300), FEW).choice("cheapest").differs[0] == "hardware"


@pytest.mark.parametrize(
    ("prompt", "generate", "share"),
    [
        ("uniform:100:250000", 300, "48%"),
        ("lognormal:mean=100000,p95=150000", 300, "13%"),
        (200, "exponential:mean=50000", "7.3%"),
        (200_000, "exponential:mean=500", "100%"),
    ],
)
def test_a_service_of_which_much_is_beyond_the_context_is_refused_with_the_nearest(prompt, generate, share) -> None:
    with pytest.raises(RooflineError) as refused:
        size(MODEL, Service(5, prompt, generate), ["h100-sxm"])
    message = str(refused.value)
    assert message.startswith(f"{share} of requests with their answers exceed the maximum context")
    what, written, factor = re.search(r"(prompts|answers) of (\S+), (\S+) times as long, would do$", message).groups()
    near = {"prompts": (written, generate), "answers": (prompt, written)}[what]
    found = size(MODEL, Service(5, *near), ["h100-sxm"])
    assert 0 <= found.beyond < 0.01
    assert 0.01 <= float(factor) < 1


def test_a_file_of_which_much_is_beyond_the_context_is_refused(tmp_path) -> None:
    file = tmp_path / "lengths.csv"
    file.write_text("1000,9\n200000,1\n")
    with pytest.raises(RooflineError, match=r"^10% of requests .*: prompts 0\.65 times as long would do$"):
        size(MODEL, Service(5, str(file), 300), ["h100-sxm"])


def test_a_tail_beyond_the_context_is_sized_and_counted() -> None:
    found = size(MODEL, Service(1, "lognormal:mean=20000,p95=60000", 300), ["h100-sxm"])
    assert found.feasible
    assert 1e-3 < found.beyond < 0.01
    assert size(MODEL, Service(1, "lognormal:mean=2000,p95=6000", 300), ["h100-sxm"]).beyond < 1e-5


def test_what_would_change_a_choice_does() -> None:
    service = Service(9, 1500, 300, 2, 0.05)
    names = ["l4", "h100-sxm"]
    prices = {"l4": 0.75, "h100-sxm": 3.4}
    choice = size(MODEL, service, names, prices=prices).choice("cheapest")
    changes = {change.what: change.value for change in choice.changes}
    other = choice.runner_up.hardware.name
    best = choice.best.hardware.name

    def chosen(rate: float = 9.0, tpot: float = 0.05, price: float = prices[other]) -> str:
        asked = Service(rate, 1500, 300, 2, tpot)
        return size(MODEL, asked, names, prices={**prices, other: price}).choice("cheapest").best.hardware.name

    assert chosen(price=changes["price"] * 0.999) == other
    assert chosen(price=changes["price"] * 1.001) == best
    assert "rate_above" in changes or "rate_below" in changes
    for name in ("rate_above", "rate_below"):
        if name in changes:
            assert chosen(rate=changes[name] * (1.0005 if name == "rate_above" else 0.9995)) == other
    tighter = Service(9, 1500, 300, 2, changes["tpot"] * 0.97)
    again = size(MODEL, tighter, [best], prices={best: prices[best]}).choice("cheapest").best
    assert again.tpot.mid <= changes["tpot"] * 0.97
    assert (again.command, again.slots) != (choice.best.command, choice.best.slots)


@pytest.mark.parametrize(
    ("ttft", "tpot", "binding"), [(2, 0.0015, ("tpot",)), (0.002, 0.05, ("ttft",)), (0.002, 0.0015, ("ttft", "tpot"))]
)
@pytest.mark.parametrize("rate", [5, None])
def test_what_cannot_be_met_says_why_and_how_near_one_gets(rate, ttft, tpot, binding) -> None:
    found = size(MODEL, Service(rate, 1000, 100, ttft, tpot), ["h100-sxm", "l4"])
    assert not found.feasible
    assert found.binding == binding
    asked = {"ttft": ttft, "tpot": tpot}
    if len(binding) == 1:
        near = found.nearest[binding[0]]
        assert size(MODEL, Service(rate, 1000, 100, **{**asked, binding[0]: near * 1.001}), ["h100-sxm", "l4"]).feasible
        far = Service(rate, 1000, 100, **{**asked, binding[0]: near * 0.98})
        assert not size(MODEL, far, ["h100-sxm", "l4"]).feasible
    assert all(found.nearest[name] > asked[name] for name in binding)


def test_too_little_memory_says_how_much_is_needed() -> None:
    found = size(load_model("llama-3.1-70b"), Service(1, 1000, 100), ["t4"], Quality.LOSSLESS)
    assert found.binding == ("memory",)
    assert found.nearest["memory"] > 16e9


def test_what_is_chosen_is_within_the_quality_budget_and_what_the_engine_runs() -> None:
    plain = size(MODEL, Service(5, 1000, 100), FEW, Quality.LOSSLESS)
    assert {choice.best.configuration.formats for choice in plain.choices} == {"bf16"}
    old = size(load_model("llama-2-7b"), Service(1, 500, 100), ["v100-sxm2-32gb"])
    assert "fp8" not in old.choice("fewest").best.configuration.formats.split(",")[0]


def test_a_version_of_an_engine_is_offered_the_formats_of_that_engine() -> None:
    offered = [
        {made.formats for made in configurations(MODEL, Service(5, 1000, 100), FEW, Quality.CALIBRATED, name)}
        for name in ("vllm", "vllm@0.5")
    ]
    assert offered[0] == offered[1]
    older = size(MODEL, Service(5, 1000, 100), FEW, Quality.LOSSLESS, engine="vllm@0.5")
    assert older.choice("cheapest").best.configuration.engine.label == "vllm 0.5"


def test_alice_buys_a_computer() -> None:
    """One user, long answers (Yuan et al. 2024, section 2.2): decode counts, and only what stands on a desk."""
    found = size(load_model("llama-2-13b"), Service(None, 200, 1000))
    value, fastest = found.choice("best value"), found.choice("fastest")
    assert {choice.objective.name for choice in found.choices} == {"best value", "cheapest", "fastest", "efficient"}
    assert value.best.hardware.price.buy is not None
    for choice in found.choices:
        best = choice.best
        assert (best.replicas, best.batch, best.utilisation) == (1, 1, None)
        assert "h100" not in best.hardware.name
        assert best.configuration.devices <= 2
    assert fastest.best.tpot.mid <= value.best.tpot.mid
    per_dollar = [1 / (deployment.figures.cost * deployment.tpot.mid) for deployment in (value.best, value.runner_up)]
    assert per_dollar[0] >= per_dollar[1]


def test_bob_serves_documents() -> None:
    """Many users, long prompts: prefill takes most of the time, so that the batch stays small."""
    service = Service(4, "lognormal:mean=6000,p95=15000", "uniform:100:400", 5, 0.1)
    found = size(MODEL, service, ["l40s", "h100-sxm", "a100-sxm-80gb"])
    best = found.choice("cheapest").best
    replica = best.simulated.replica("mid")
    busy = 4 / best.replicas * replica.prefill.mean
    assert busy > 0.5 * best.utilisation
    assert best.batch < 32
    assert found.choice("fastest").best.tpot.mid <= best.tpot.mid
