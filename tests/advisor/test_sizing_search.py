"""The search of a sizing: what it leaves out changes no answer."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from roofline import load_model, size
from roofline.advisor import Quality, Service
from roofline.advisor.sizing import search
from roofline.advisor.sizing.configurations import Given, configurations
from roofline.core.errors import RooflineError
from roofline.specs.hardware import searched_hardware

MODELS = "llama-3.2-1b", "llama-3.1-8b", "qwen3-30b-a3b", "gpt-oss-20b", "qwen3-32b"

LOADS: tuple[dict[str, Any], ...] = ({"rate": 0.5}, {"rate": 20}, {"concurrency": 1}, {"concurrency": 50}, {})


def chosen(**question: Any) -> list[tuple[Any, ...]]:
    try:
        found = size(**question)
    except RooflineError as error:
        return [(str(error),)]
    both = ((choice.objective.name, each) for choice in found.choices for each in (choice.best, choice.runner_up))
    listed = [(name, each and (each.configuration.key, each.command, each.figures)) for name, each in both]
    return [*listed, (found.binding, dict(found.nearest))]


@pytest.mark.slow
@settings(max_examples=6, deadline=None)
@given(
    model=st.sampled_from(MODELS),
    hw=st.lists(st.sampled_from(sorted(searched_hardware())), min_size=2, max_size=7, unique=True),
    load=st.sampled_from(LOADS),
    tpot=st.sampled_from([None, 0.02, 0.1]),
)
@example("mistral-7b", ["dgx-spark", "rtx-4000-sff-ada"], {"rate": 0.5}, None)  # eight devices beside one
def test_what_is_not_timed_is_no_choice(model: str, hw: list[str], load: dict[str, Any], tpot: float | None) -> None:
    question = {"model": model, "hw": hw, "prompt": 700, "generate": 100, "ttft": 5.0, "tpot": tpot, **load}
    pruned = chosen(**question)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search, "SHARES_OF_TIME", (0.0,) * len(search.SHARES_OF_TIME))
        assert pruned == chosen(**question)


def devices_of(**options: Any) -> set[str]:
    """The hardware of all configurations of a model whose FP8 cache vLLM runs on some devices alone."""
    model, service = load_model("glm-5.3-flash"), Service(1.0, 512, 128)
    found = configurations(model, service, None, Quality.LOSSLESS, "vllm", Given(options=options))
    return {each.hardware.name for each in found}


def test_hardware_that_lacks_the_given_cache_is_no_configuration() -> None:
    either, narrow = devices_of(), devices_of(kv="fp8")
    assert {"h200-sxm", "b200-sxm"} <= either
    assert "b200-sxm" in narrow
    assert "h200-sxm" not in narrow
    assert narrow < either
