"""The scheduler of a profile: read, written back, and refused."""

import pytest
import yaml
from msgspec.structs import replace

from roofline.core.errors import SpecError
from roofline.specs.engine import list_engines, load_engine
from roofline.specs.engine_files import parse_engine
from roofline.specs.engine_written import render
from roofline.specs.scheduler import MIXED, PLAIN_SCHEDULER, PREFILL_FIRST, Scheduler, parse_scheduler


@pytest.mark.parametrize("name", list_engines())
def test_profiles_are_read_back(name) -> None:
    engine = load_engine(name)
    again = parse_engine(yaml.safe_load(render(engine)), name).scheduler
    times = ("latency", "request", "prompt_token", "encoding", "dispatch")
    for time in times:
        assert getattr(again, time) == pytest.approx(getattr(engine.scheduler, time), rel=1e-3)
    same = {time: getattr(again, time) for time in times}
    assert again == replace(engine.scheduler, **same)


def test_engines_schedule_as_documented() -> None:
    assert load_engine("vllm").scheduler.order == MIXED
    assert load_engine("sglang").scheduler.order == PREFILL_FIRST
    assert load_engine("tensorrt-llm").scheduler.reserved == 1
    assert load_engine("ideal").scheduler == PLAIN_SCHEDULER


def test_all_fields_are_read() -> None:
    given = {"order": PREFILL_FIRST, "tokens": 512, "whole": True, "latency": "3 ms", "spread_ttft": [0.5, 2]}
    found = parse_scheduler(given, "file")
    assert found == replace(
        Scheduler(), order=PREFILL_FIRST, tokens=512, whole=True, latency=0.003, spread_ttft=(0.5, 2.0)
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([], "'scheduler' must be a mapping"),
        ({"order": "fair"}, "'scheduler.order' must be 'mixed' or 'prefill first', got 'fair'"),
        ({"tokens": True}, "'scheduler.tokens' must be a whole number"),
        ({"reserved": 2}, "'scheduler.reserved' must be a number <= 1"),
        ({"latency": "601 s"}, "'scheduler.latency' must be a number <= 600"),
        ({"poll": 10**400}, "'scheduler.poll' must be a whole number <= 1000000000"),
    ],
)
def test_bad_values_are_told(content, message) -> None:
    with pytest.raises(SpecError, match=message):
        parse_scheduler(content, "file")
