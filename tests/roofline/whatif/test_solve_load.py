"""The largest rate and concurrency within targets: against the outcomes at the answer and just beyond it."""

from __future__ import annotations

import pytest

from roofline import RooflineError, load_hardware, load_model
from roofline.scenario.scenario import Scenario
from roofline.serving import Load, serve
from roofline.serving.outcome import USUAL_TARGETS
from roofline.serving.pools import parse_pools
from roofline.whatif.solve.load import max_concurrency, max_rate, missed
from roofline.whatif.solve.targets import Targets

REQUEST = Scenario(load_model("llama-3.1-8b"), load_hardware("l40s"), prompt=1000, generate=200)


@pytest.mark.parametrize("targets", [Targets(tpot=0.05), Targets(ttft=0.5, tpot=0.1), Targets(ttft=0.2)])
def test_the_largest_rate_meets_the_targets_and_a_little_more_does_not(targets: Targets) -> None:
    answer = max_rate(REQUEST, targets)
    assert answer.value > 0
    load = Load(1000, 200, rate=answer.value)
    within, beyond = serve(REQUEST, load, [answer.value, 1.03 * answer.value]).outcomes
    assert not missed(within, load, targets)
    assert missed(beyond, load, targets)
    assert answer.limited_by == missed(answer.neighbour, load, targets)


def test_the_most_requests_in_flight_are_a_whole_number_next_to_a_miss() -> None:
    targets = Targets(tpot=0.045)
    answer = max_concurrency(REQUEST, targets)
    load = Load(1000, 200, concurrency=1)
    within, beyond = serve(REQUEST, load, [answer.value, answer.value + 1]).outcomes
    assert answer.value == int(answer.value) > 1
    assert not missed(within, load, targets)
    assert missed(beyond, load, targets) == answer.limited_by == ("tpot",)


def test_no_closed_loop_is_faster_than_the_largest_sustainable_rate() -> None:
    request = Scenario(load_model("gpt-oss-120b"), load_hardware("h100-sxm"), tp=2)
    request = request.with_(prompt=4000, generate=30)
    answer = max_concurrency(request, Targets(tpot=0.5))
    assert answer.outcome is not None
    assert answer.limited_by == ("saturation",)
    assert answer.outcome.requests_per_second <= answer.outcome.saturated_at


@pytest.mark.slow
def test_replicas_of_prefill_and_decode_apart_meet_the_targets_and_a_second_one_of_prefill_serves_more() -> None:
    targets = Targets(ttft=0.5, tpot=0.1)
    one, two = (max_rate(REQUEST, targets, parse_pools(f"prefills={count},decodes=2,link=host")) for count in (1, 2))
    assert one.outcome is not None
    assert one.outcome.devices == 3
    assert not missed(one.outcome, one.load, targets)
    assert missed(one.neighbour, one.load, targets) == one.limited_by == ("ttft",)
    assert two.value > 1.5 * one.value


def test_looser_targets_never_lower_the_answer() -> None:
    rates = [max_rate(REQUEST, Targets(tpot=tpot)).value for tpot in (0.03, 0.04, 0.06, 0.1)]
    assert rates == sorted(rates)


@pytest.mark.parametrize("given", [{}, {"ttft": 0.3}, {"tpot": 0.045}, {"ttft": 0.3, "tpot": 0.045}])
def test_what_is_not_limited_is_limited_as_usual_and_named(given: dict[str, float]) -> None:
    answer = max_rate(REQUEST, **given)
    assert {"ttft", "tpot"} - set(given) == set(answer.usual)
    limits = {"ttft": answer.targets.ttft, "tpot": answer.targets.tpot}
    assert limits == dict(zip(("ttft", "tpot"), USUAL_TARGETS, strict=True)) | given
    assert answer.outcome is not None
    assert all(getattr(answer.outcome, name).p95.mid <= limit for name, limit in limits.items())


def test_targets_that_nothing_meets_and_other_targets() -> None:
    answer = max_rate(REQUEST, Targets(tpot=0.001))
    assert (answer.value, answer.outcome, answer.limited_by) == (0.0, None, ("tpot",))
    with pytest.raises(RooflineError, match="targets of TTFT and TPOT only"):
        max_rate(REQUEST, Targets(total=1.0))
