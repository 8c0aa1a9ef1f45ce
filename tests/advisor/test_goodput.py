"""Advice for goodput: figures under load are those of `roofline serve`, and limits hold at p95 there."""

import json
import shlex

import pytest

from roofline import RooflineError, load_hardware, load_model
from roofline.advisor import Goal, Limits, Objective, advise
from roofline.advisor.search.goal import Demand
from roofline.advisor.search.trials import Trials
from roofline.scenario.scenario import Scenario
from roofline.serving import serve
from roofline.whatif.solve import Targets, max_rate

REQUEST = Scenario(load_model("llama-3.1-8b"), load_hardware("l40s"), prompt=1000, generate=200)


def goal(concurrency: int | None = None, rate: float | None = None, **limits: float) -> Goal:
    return Goal(Objective.GOODPUT, Limits(**limits), demand=Demand(concurrency, rate))


def test_users_in_flight_get_the_throughput_and_the_latencies_of_serve() -> None:
    request = REQUEST.with_(tp=2)
    base = Trials(request, goal(24, ttft=2, tpot=0.05)).base
    (outcome,) = serve(request.with_(generate="uniform:178:222"), concurrency=24).outcomes
    assert base.value == pytest.approx(outcome.requests_per_second / 2)
    assert base.used["ttft"] == pytest.approx(outcome.ttft.p95.mid / 2)
    assert base.used["tpot"] == pytest.approx(outcome.tpot.p95.mid / 0.05)


def test_without_users_it_is_the_largest_rate_within_the_limits() -> None:
    base = Trials(REQUEST, goal(ttft=1, tpot=0.05)).base
    assert base.value == pytest.approx(max_rate(REQUEST, Targets(ttft=1, tpot=0.05)).value)
    assert not base.missed
    asked = Trials(REQUEST, goal(rate=2 * base.value, ttft=1, tpot=0.05)).base
    assert asked.missed == ("rate",)
    assert asked.used["rate"] == pytest.approx(2)
    never = Trials(REQUEST, goal(tpot=0.001)).base
    assert never.missed == ("tpot",)
    assert never.value > base.value  # the largest sustainable rate, whatever its latencies


def test_a_change_to_drafts_is_judged_as_where_lengths_vary() -> None:
    """Equal outputs keep requests of a data-parallel deployment in step, which drafts end."""
    plain = Scenario(
        "deepseek-v3", "h20-141gb", engine="sglang", dp=16, ep=16, sequences=512, prompt=2000, generate=1000
    )
    both = (plain, plain.with_(**{"with": "multi-token-prediction:length=1"}))
    one, other = (Trials(each, goal(512)).base.value for each in both)
    first, second = (serve(each.with_(generate="uniform:800:1200"), concurrency=512).outcomes[0] for each in both)
    assert other / one == pytest.approx(second.requests_per_second / first.requests_per_second, rel=0.03)


@pytest.mark.slow
def test_a_plan_meets_the_limits_that_the_request_misses() -> None:
    """At most 12.5 ms: BF16 weights alone take 19 ms of an L40S's bandwidth."""
    found = advise(REQUEST, goal(8, tpot=0.0125))
    assert found.base.missed == ("tpot",)
    assert found.plan.feasible
    assert not found.plan.end.missed
    assert found.plan.end.value > found.base.value


@pytest.mark.slow
def test_sessions_find_the_cache_that_a_change_leaves_them() -> None:
    """Sessions that overflow an L40S's cache compute turns again, and fewer of them with a cache of half the bytes."""
    scenario = Scenario("llama-3.1-8b", "l40s", engine="vllm")
    of_sessions = Goal(Objective.GOODPUT, demand=Demand(sessions=8, profile="swe-agent"))
    before, after = (Trials(each, of_sessions).base for each in (scenario, scenario.with_(kv="fp8")))
    hits = [each.goal.served(each.analysis).outcome.hit for each in (before, after)]
    assert hits[1] > hits[0] + 0.05
    assert after.value > before.value
    assert after.command.endswith("--kv fp8 --sessions 8 --profile swe-agent")


@pytest.mark.slow
def test_commands_reproduce_the_goodput(run) -> None:
    asked = ("--objective", "goodput", "--concurrency", 16, "--prompt", 900, "--prefix", 300, "--generate", 100)
    status, out, err = run("advise", "llama-3.1-8b", "--hw", "h100-sxm", *asked, "--tp", 2, "--format", "json")
    assert (status, err) == (0, "")
    document = json.loads(out)
    assert document["load"] == {"concurrency": 16, "requests_per_s": None, "prefix_hits": 0.25, "varied": True}
    for entry in (document, document["recommendations"][0], document["plan"]["steps"][-1]):
        status, out, _ = run(*shlex.split(entry["command"])[1:], "--format", "json")
        assert status == 0
        (point,) = json.loads(out)["points"]
        assert entry["figures"]["goodput"] == pytest.approx(point["requests_per_s"] / 2, rel=1e-9)
        assert entry["figures"]["tpot"] == pytest.approx(point["tpot_s"]["p95"], rel=1e-9)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--objective", "tpot", "--concurrency", "8"], "is for the objective goodput (--objective)"),
        (
            ["--objective", "goodput", "--concurrency", "8", "--rate", "2"],
            "give one of them (--concurrency, --rate)",
        ),
        (["--objective", "goodput", "--at", "bound"], "goodput is of expected times"),
        (["--objective", "goodput", "--total", "3s"], "with limits of TTFT and TPOT"),
        (["--objective", "goodput", "--concurrency", "0"], "must be between 1 and"),
    ],
)
def test_user_errors_are_one_sentence(options, said, run) -> None:
    status, out, err = run("advise", "llama-3.1-8b", "--hw", "h100-sxm", *options)
    assert (status, out) == (2, "")
    assert said in err
    assert len(err.strip().splitlines()) == 1


@pytest.mark.parametrize("load", [("--concurrency", "4"), ("--rate", "4")])
def test_requests_of_one_token_have_no_target_of_the_next(run, load) -> None:
    status, shown, _ = run("advise", "llama-3.1-8b", "h100-sxm", "--objective", "goodput", *load, "--generate", "1")
    assert status == 0
    assert "requests/s within TTFT 10 s (by default)" in " ".join(shown.split())


def test_what_does_not_fit_is_told(run) -> None:
    status, _, err = run("advise", "kimi-k2", "--hw", "h100-sxm", "--objective", "goodput")
    assert status == 2
    assert "does not fit" in err


def test_lengths_of_requests_may_be_distributions() -> None:
    """The command that reproduces it has them, and answers with the same rate."""
    varied = Scenario("llama-3.2-1b", "l4", prompt="uniform:100:900", generate="lognormal:mean=100,p95=300")
    base = advise(varied, objective="goodput", concurrency=16, moves=()).case.trials.base
    (outcome,) = serve(varied, concurrency=16).outcomes
    assert base.value == pytest.approx(outcome.requests_per_second)
    assert "uniform:100:900" in base.command
    with pytest.raises(RooflineError, match="distribution"):
        advise(varied, objective="tpot")
