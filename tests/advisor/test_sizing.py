"""Sizing: closed forms, order, commands that reproduce figures, pruning that loses nothing, reasons."""

import json
import math
import re
import shlex

import pytest

from roofline import load_hardware, load_model
from roofline.advisor.search.goal import Quality
from roofline.advisor.sizing import search
from roofline.advisor.sizing.bounds import Candidate
from roofline.advisor.sizing.configurations import Given, configurations, formats_for
from roofline.advisor.sizing.deployments import Figures, replicas_for
from roofline.advisor.sizing.search import Search
from roofline.advisor.sizing.sizing import _beyond, read_service, size
from roofline.advisor.sizing.workload import Service
from roofline.core.errors import RooflineError
from roofline.serving.pools import parse_pools
from roofline.serving.replica import replica_of
from roofline.serving.times import slots_of
from roofline.specs.engine import load_engine
from tests.cases import sampled

MODEL = load_model("llama-3.1-8b")
FEW = ["l4", "a100-sxm-80gb", "h100-sxm", "mi300x"]


def searched(model, service: Service, hardware: list[str], engine: str | None = None) -> Search:
    return Search(model, service, hardware, Quality.CALIBRATED, {}, engine, "mid", lambda _done, _all: None)


def test_bad_services_are_told() -> None:
    for arguments, message in (
        ((5, 100, 100, -1.0), "ttft must be seconds above 0"),
        ((5, 100, 100, 1.0, 1.0, "0.95", 10), "a rate or requests in flight, not both"),
        ((None, 100, 100, 1.0, 1.0, "0.95", 0), "concurrency must be between 1 and"),
    ):
        with pytest.raises(RooflineError, match=message):
            Service(*arguments)
    with pytest.raises(RooflineError, match="at least 2 tokens"):
        size(MODEL, Service(5, 100, 1))
    with pytest.raises(RooflineError, match="maximum context"):
        size(MODEL, Service(5, 200_000, 100), FEW)
    with pytest.raises(RooflineError, match="not among the hardware"):
        size(MODEL, Service(5, 100, 100), ["l4"], price={"h100-sxm": 3.0})


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["vllm", "tensorrt-llm", "lmdeploy"])
def test_no_replica_runs_more_sequences_than_the_bound_allows(engine: str) -> None:
    service, held = Service(1, 8000, 500), set()
    for candidate in searched(load_model("llama-3.1-70b"), service, ["h100-sxm"], engine).fitting:
        load = service.load(1)
        slots = slots_of(replica_of(candidate.configuration.scenario, load), load)
        assert slots <= candidate.slots <= max(1.1 * slots, slots + 2)
        held.add(candidate.slots)
    assert max(held) > 150


@pytest.mark.parametrize(
    ("service", "hardware", "model", "engine"),
    sampled(
        [
            (Service(2, "uniform:200:3000", 200, 4, 0.1), "h100-sxm", "llama-3.1-8b", None),
            (Service(2, 1000, "exponential:mean=300"), "mi300x", "mixtral-8x7b", None),
            (Service(None, 1500, 250, 2, 0.06, concurrency=40), "b200-sxm", "minimax-m2", None),
            (Service(None, 700, 400), "m4-max", "gpt-oss-20b", None),
            (Service(None, 50, 600, concurrency=8), "l40s", "llama-3.1-8b", "sglang"),
            (Service(None, 20_000, 300, concurrency=4), "h100-sxm", "llama-3.1-8b", "tensorrt-llm"),  # beyond a step
        ],
        1,
    ),
)
def test_no_deployment_is_better_than_the_bounds_that_prune(service, hardware, model, engine) -> None:
    """Up to 2%, the interpolation of the tables that serve."""
    found = searched(load_model(model), service, [hardware], engine)
    indices = found.capable[:: max(1, len(found.capable) // 4)]
    for index in indices:
        candidate, deployment = found.fitting[index], found._deployment(index)
        if deployment is None:
            continue
        outcome = deployment.outcome
        for bounds in (candidate.roof, candidate.decoding, candidate.expected):
            least = found._least(candidate, bounds, math.inf)
            assert least.devices <= deployment.devices
            assert least.energy is None or least.energy <= 1.02 * deployment.figures.energy
            assert least.tpot <= 1.02 * deployment.tpot.mid
            assert bounds.ttft <= 1.02 * deployment.ttft.mid
            assert bounds.loaded(deployment.replicas) <= 1.02 * deployment.tpot.mid
            assert bounds.rate[-1] * 1.02 >= outcome.requests_per_second


@pytest.mark.slow
@pytest.mark.parametrize(
    ("service", "names", "quality"),
    [
        (Service(8, 1500, 250, 1.5, 0.04), ["a100-sxm-80gb", "l4", "h100-sxm", "l40s"], Quality.LOSSLESS),
        (Service(None, 500, 500), ["a100-sxm-80gb", "l4"], Quality.CALIBRATED),
        (Service(None, 900, 200, 2, 0.05, concurrency=60), ["l4"], Quality.CALIBRATED),
    ],
)
def test_pruning_loses_nothing(service, names, quality, monkeypatch) -> None:
    pruned = size(MODEL, service, names, quality)

    def nothing(self: search.Search, candidate: Candidate, _bounds, most: float, _fewest: int) -> Figures | None:
        priced = self._price(candidate.configuration) is not None
        return None if self._exactly(candidate, most) == 0 else Figures(0, 0, 0 if priced else None, 0, 0, 0)

    monkeypatch.setattr(search.Search, "_least", nothing)
    whole = size(MODEL, service, names, quality)
    assert whole.simulated > pruned.simulated
    for before, after in zip(pruned.choices, whole.choices, strict=True):
        assert before.best.figures.devices == after.best.figures.devices
        for one, other in ((before.best, after.best), (before.runner_up, after.runner_up)):
            assert (one is None) is (other is None)
            if one is None:
                continue
            key = [before.objective.key(deployment.figures)[0] for deployment in (one, other)]
            assert key[0] <= 1.02 * key[1], before.objective.name


@pytest.mark.slow
@pytest.mark.parametrize(("rate", "ttft", "tpot", "quantile"), [(40.0, 0.7, 0.03, "p95")])
def test_more_requests_never_take_less_and_looser_targets_never_more(rate, ttft, tpot, quantile) -> None:
    factor, prices = 1.7, {"l4": 0.7, "h100-sxm": 3.5}

    def needs(*service: float) -> list[float]:
        asked = Service(service[0], 1500, 200, *service[1:], quantile)
        found = size(MODEL, asked, list(prices), Quality.LOSSLESS, price=prices)
        if not found.feasible:
            return [math.inf, math.inf]
        return [found.choice("cheapest").best.figures.cost, found.choice("fewest").best.devices]

    asked = needs(rate, ttft, tpot)
    for got, most in zip(asked, needs(rate * factor, ttft, tpot), strict=True):
        assert got <= most
    for looser in (needs(rate, ttft * factor, tpot), needs(rate, ttft, tpot * factor)):
        for got, least in zip(asked, looser, strict=True):
            assert least <= got


def served(run, command: str) -> dict:
    status, out, _ = run(*shlex.split(command)[1:], "--format", "json")
    assert status == 0
    (point,) = json.loads(out)["points"]
    return point


@pytest.mark.parametrize(
    ("model", "service", "names", "told"),
    sampled(
        [
            (
                "qwen3-235b-a22b",
                Service(None, "uniform:500:3000", "exponential:mean=200", 4, 0.1, concurrency=50),
                ["h200-sxm"],
                Given({"tensor": 4}, "fp8"),
            ),
            ("llama-3.1-405b", Service(0.5, 1000, 200, 8, 0.2), ["a100-sxm-80gb"], Given()),
            ("llama-2-13b", Service(None, 200, 1000), ["m3-max", "rtx-4090"], Given()),
            ("llama-3.1-8b", Service(3, 900, 300, 2, hits=0.5), ["h100-sxm"], Given(techniques=("eagle-3",))),
        ],
        2,
    ),
)
def test_roofline_serve_reproduces_each_row(model, service, names, told, run) -> None:
    found = size(load_model(model), service, names, given=told)
    assert found.feasible
    for choice in found.choices:
        for deployment in filter(None, (choice.best, choice.runner_up)):
            point = served(run, deployment.command)
            assert point["requests_per_s"] == pytest.approx(deployment.outcome.requests_per_second, rel=1e-5)
            for name in ("ttft", "tpot"):
                for each in ("mean", "p50", "p95", "p99"):
                    estimate = getattr(getattr(deployment.outcome, name), each)
                    assert list(point[f"{name}_s"][each].values()) == pytest.approx(list(estimate), rel=1e-5)


def test_the_whole_meets_its_targets_and_one_replica_fewer_would_not() -> None:
    service = Service(60, 1500, 300, 1, 0.03)
    for choice in size(MODEL, service, FEW).choices:
        best = choice.best
        assert best.ttft.mid <= service.ttft
        assert best.tpot.mid <= service.tpot
        if choice.objective.name != "fastest":
            # The edge of the largest load is closed to a hundredth.
            assert best.replicas - 1 <= replicas_for(service.amount, best.max_load) <= best.replicas
            assert (best.replicas - 1) * best.max_load < 1.01 * service.amount


@pytest.mark.slow
def test_users_in_flight_are_shared_and_none_waits_without_a_target() -> None:
    service = Service(None, 4000, 500, concurrency=3000)
    best = size(MODEL, service, ["h100-sxm"], Quality.LOSSLESS).choice("fewest").best
    assert best.outcome.running + best.outcome.waiting == pytest.approx(math.ceil(3000 / best.replicas))
    assert best.outcome.queued < 1


@pytest.mark.slow
def test_the_pessimistic_end_takes_no_less() -> None:
    service = Service(60, 1500, 300, 2, 0.05)
    found = [size(MODEL, service, FEW[:2], Quality.LOSSLESS, at=at) for at in ("mid", "high")]
    devices = [each.choice("fewest").best.devices for each in found]
    assert devices == sorted(devices)


@pytest.mark.slow
def test_setups_of_the_same_hardware_have_no_price_below_which_one_is_the_choice() -> None:
    found = size(load_model("llama-3.1-70b"), Service(0.001, 2000, 300, 2, 0.05), ["h100-sxm"])
    for choice in found.choices:
        assert choice.runner_up is not None
        assert choice.runner_up.hardware is choice.best.hardware
        assert set(choice.differs) & {"formats", "parallelism"}
        assert not {change.what for change in choice.changes} & {"price", "price_ratio"}
    assert not found.choice("efficient").runner_up_has_lower_modelled_energy
    unpriced = size(MODEL, Service(5, 2000, 300), ["mi300x"], price={})
    assert not {change.what for choice in unpriced.choices for change in choice.changes} & {"price", "price_ratio"}
    assert size(MODEL, Service(5, 2000, 300), FEW, Quality.LOSSLESS).choice("cheapest").differs[0] == "hardware"


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
    assert 0 <= _beyond(MODEL, Service(5, *near)) < 0.01
    assert 0.01 <= float(factor) < 1


def test_a_file_of_which_much_is_beyond_the_context_is_refused(tmp_path) -> None:
    file = tmp_path / "lengths.csv"
    file.write_text("1000,9\n200000,1\n")
    with pytest.raises(RooflineError, match=r"^10% of requests .*: prompts 0\.65 times as long would do$"):
        size(MODEL, Service(5, str(file), 300), ["h100-sxm"])


@pytest.mark.slow
def test_a_tail_beyond_the_context_is_sized_and_counted() -> None:
    found = size(MODEL, Service(1, "lognormal:mean=20000,p95=60000", 300), ["h100-sxm"])
    assert found.feasible
    assert 1e-3 < found.beyond < 0.01
    assert _beyond(MODEL, Service(1, "lognormal:mean=2000,p95=6000", 300)) < 1e-5


@pytest.mark.slow
def test_what_would_change_a_choice_does() -> None:
    service = Service(9, 1500, 300, 2, 0.05)
    names = ["l4", "h100-sxm"]
    prices = {"l4": 0.75, "h100-sxm": 3.4}
    choice = size(MODEL, service, names, Quality.LOSSLESS, prices).choice("cheapest")
    changes = {change.what: change.value for change in choice.changes}
    other = choice.runner_up.hardware.name
    best = choice.best.hardware.name

    def chosen(rate: float = 9.0, tpot: float = 0.05, price: float = prices[other]) -> str:
        asked = Service(rate, 1500, 300, 2, tpot)
        found = size(MODEL, asked, names, Quality.LOSSLESS, {**prices, other: price})
        return found.choice("cheapest").best.hardware.name

    assert chosen(price=changes["price"] * 0.999) == other
    assert chosen(price=changes["price"] * 1.001) == best
    assert "load_above" in changes or "load_below" in changes
    for name in ("load_above", "load_below"):
        if name in changes:
            # The edge of the largest load is closed to a hundredth.
            assert chosen(rate=changes[name] * (1.01 if name == "load_above" else 0.99)) == other
    tighter = Service(9, 1500, 300, 2, changes["tpot"] * 0.97)
    again = size(MODEL, tighter, [best], Quality.LOSSLESS, {best: prices[best]}).choice("cheapest").best
    assert again.tpot.mid <= changes["tpot"] * 0.97
    assert again.command != choice.best.command


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rate", "ttft", "tpot", "binding"),
    [(5, 2, 0.0015, ("tpot",)), (None, 0.002, 0.05, ("ttft",)), (5, 0.002, 0.0015, ("ttft", "tpot"))],
)
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
    found = size(load_model("llama-3.1-70b"), Service(1, 1000, 100), ["rtx-2080-ti"], Quality.LOSSLESS)
    assert found.binding == ("memory",)
    assert found.nearest["memory"] > 11e9


@pytest.mark.slow
def test_what_is_chosen_is_within_the_quality_budget_and_what_the_engine_runs() -> None:
    plain = size(MODEL, Service(5, 1000, 100), FEW, Quality.LOSSLESS)
    assert {choice.best.configuration.formats for choice in plain.choices} == {"bf16"}
    old = size(load_model("llama-2-7b"), Service(1, 500, 100), ["v100-sxm2-32gb"])
    assert "fp8" not in old.choice("fewest").best.configuration.formats.split(",")[0]


@pytest.mark.slow
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
        assert (best.replicas, best.batch) == (1, 1)
        assert best.outcome.running + best.outcome.waiting == pytest.approx(1)
        assert "h100" not in best.hardware.name
        assert best.configuration.devices <= 2
    assert fastest.best.tpot.mid <= value.best.tpot.mid
    per_dollar = [1 / (deployment.figures.cost * deployment.tpot.mid) for deployment in (value.best, value.runner_up)]
    assert per_dollar[0] >= per_dollar[1]


@pytest.mark.slow
def test_bob_serves_documents() -> None:
    """Many users, long prompts: prefill takes most of the time, so that the batch stays small."""
    service = Service(4, "lognormal:mean=6000,p95=15000", "uniform:100:400", 5, 0.1)
    found = size(MODEL, service, ["l40s", "h100-sxm", "a100-sxm-80gb"], Quality.LOSSLESS)
    best = found.choice("cheapest").best
    assert best.outcome.prefill_share > 0.4
    assert best.batch < 64
    assert found.choice("fastest").best.tpot.mid <= best.tpot.mid


@pytest.mark.slow
def test_attention_of_moe_models_is_data_parallel_where_that_serves_more() -> None:
    """Multi-head latent attention keeps one copy of the KV cache a rank, which tensor parallelism repeats."""
    service = Service(None, 2000, 500, concurrency=2000)
    best = size(load_model("deepseek-v3"), service, ["b200-sxm"], Quality.LOSSLESS).choice("fewest").best
    assert best.configuration.degrees["data"] == best.configuration.degrees["expert"] > 1


def test_degrees_that_are_given_leave_no_other() -> None:
    splits = {
        tuple(given.items()): {
            made.split
            for made in configurations(
                load_model("qwen3-235b-a22b"), Service(1, 100, 100), ["h200-sxm"], Quality.LOSSLESS, None, Given(given)
            )
        }
        for given in ({"tensor": 8, "expert": 8}, {"pipeline": 2}, {"data": 4, "expert": 4})
    }
    assert list(splits.values()) == [
        {"tp=8 ep=8"},
        {"pp=2", "tp=2 pp=2", "tp=4 pp=2", "tp=8 pp=2"},
        {"dp=4 ep=4"},
    ]


def test_formats_are_those_that_documents_state_for_the_engine_there() -> None:
    def offered(engine: str, hardware: str) -> set[tuple[str, str]]:
        device = load_hardware(hardware)
        return {found[:2] for found in formats_for(MODEL, device, load_engine(engine), Quality.CALIBRATED)}

    assert {scheme for scheme, _ in offered("vllm", "b200-sxm")} >= {"", "fp8", "nvfp4", "awq"}
    assert "w8a8" in {scheme for scheme, _ in offered("vllm", "a100-sxm-80gb")}
    assert ("", "int8") in offered("lmdeploy", "a100-sxm-80gb")
    assert not any(scheme == "nvfp4" for scheme, _ in offered("vllm", "h100-sxm"))


@pytest.mark.slow
def test_prefill_and_decode_apart_meet_the_service_with_the_command_that_says_so() -> None:
    asked = {"rate": 20, "prompt": 2000, "generate": 300, "ttft": 1.0, "tpot": 0.02, "hw": "h100-sxm"}
    found = size("llama-3.1-8b", **asked, disaggregation=True).apart
    assert found is not None
    assert found.outcome.devices == found.devices
    assert found.outcome.ttft.p95.mid <= 1
    assert found.outcome.tpot.p95.mid <= 0.02
    pools = parse_pools(found.command.split("--disaggregation ")[1])
    assert (pools.prefills, pools.decodes) == (found.ratio.prefills, found.ratio.decodes)
    assert size("llama-3.1-8b", **asked).apart is None
    with pytest.raises(RooflineError, match="sized for a rate"):
        size("llama-3.1-8b", **{**asked, "rate": None, "concurrency": 8}, disaggregation=True)


@pytest.mark.slow
def test_encoders_under_many_requests_are_sized_and_counted_once() -> None:
    assert size("bge-m3", rate=500, hw=["l4", "rtx-4080"]).feasible
    found = size("llama-3.3-70b", concurrency=50, hw=["rtx-4090", "h100-sxm"], ttft=1.0)
    assert found.simulated <= found.capable


def test_a_service_has_users_by_either_name() -> None:
    (one, _), (other, _) = (read_service(None, None, {name: 20}, "llama-3.1-8b") for name in ("users", "concurrency"))
    assert one == other
    with pytest.raises(RooflineError):
        read_service(None, None, {"users": 20, "concurrency": 3}, "llama-3.1-8b")
