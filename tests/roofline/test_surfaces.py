"""One question through every surface: answer, serve, launch, choose, size and the page give one number."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from roofline import Scenario, answer, choose, serve, size
from roofline.core.errors import RooflineError
from roofline.launch import launch
from roofline.reports.view.documents import load as page
from roofline.reports.view.questions import Question
from roofline.reports.view.setups import Specs
from tests.cases import sampled

MODELS = ("llama-3.1-8b", "qwen3-8b", "mistral-7b", "gemma-2-9b", "qwen3-30b-a3b", "gpt-oss-20b")
HARDWARE = ("h100-sxm", "a100-sxm-80gb", "l40s", "mi300x", "rtx-4090", "b200-sxm")


def drawn(count: int) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Random scenarios, as options, with their loads."""
    some = random.Random(52)
    for _ in range(count):
        tokens = {"prompt": some.choice((128, 600, 2048)), "generate": some.choice((32, 150, 400))}
        layout = {"tp": some.choice((2, 4))} if some.random() < 0.3 else {}
        kv = {"kv": "fp8"} if some.random() < 0.3 else {}
        options = {"model": some.choice(MODELS), "hw": some.choice(HARDWARE), **tokens, **layout, **kv}
        yield (
            options,
            {"rate": some.choice((0.2, 1.0))} if some.random() < 0.4 else {"concurrency": some.choice((1, 5))},
        )


@pytest.mark.parametrize(("options", "load"), sampled(list(drawn(20)), 3))
def test_surfaces_agree(options: dict[str, Any], load: dict[str, Any]) -> None:
    scenario = Scenario(**options)
    try:
        (expected,) = serve(scenario, **load).outcomes
    except RooflineError:  # it does not fit: no surface gives times of it
        assert answer(scenario, **load).scenario != scenario
        return
    times = expected.ttft.mean.mid, expected.tpot.mean.mid
    found = answer(scenario, **load)
    if found.scenario == scenario:  # nothing else was chosen
        assert found.outcome == expected
    else:
        assert serve(found.scenario, **load).outcomes == (found.outcome,)
    forecast = launch(scenario, **load).forecast
    after = forecast.metrics["ttft_mean"].mid if forecast.steady is None else forecast.steady
    assert after == pytest.approx(1e3 * times[0], rel=1e-9)
    rows = choose("offload", scenario, users=load.get("concurrency"), rate=load.get("rate")).rows
    assert next(row for row in rows if row.label == "all on the device").outcome == expected
    with_limits = {**load, "ttft": "100s", "tpot": "10s", "quality": "lossless"}
    best = size(scenario.with_(tp=options.get("tp", 1), kv=options.get("kv", "auto")), **with_limits).choices[0].best
    assert (best.outcome.ttft.mean.mid, best.outcome.tpot.mean.mid) == pytest.approx(times, rel=1e-9)
    by, value = next(iter(load.items()))
    setup = {name: str(text) for name, text in options.items()} | {"load.by": by, f"load.{by}": str(value)}
    specs = Specs()
    (served,) = page(Question([setup]), specs)["serving"]
    specs.close()
    shown = served["points"][0]
    assert (shown["ttft_s"]["mean"]["mid"], shown["tpot_s"]["mean"]["mid"]) == pytest.approx(times, rel=1e-9)
