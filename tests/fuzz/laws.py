"""Metamorphic laws of random scenarios, for `make fuzz`: more of a resource is never slower, more work never faster.

So it is under load, where what requests take agrees with how many run (Little's law) and, for one at a time, with
`analyze`.

Bounds and memory obey them exactly. Expected times may break them by a hundredth, and by more where the law says why.
The ends of an interval are not held to it: their width is that of measured kernels of the same regime of sizes, which
may change where the middle does not.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from msgspec.structs import replace

from roofline import RooflineError, Scenario, analyze, list_hardware, serve
from roofline.serving.outcome import Latency
from roofline.specs.engine import list_engines
from roofline.whatif.variation import (
    scaled_bandwidth,
    scaled_capacity,
    scaled_links,
    scaled_peaks,
    scaled_vector_peaks,
    with_hardware,
    with_kv_bits,
    with_weight_bits,
)

MODELS = (
    *("llama-3.2-1b", "llama-3.1-8b", "llama-3.1-70b", "mistral-7b", "gemma-2-9b", "gemma-3-27b", "mixtral-8x7b"),
    *("qwen3-30b-a3b", "gpt-oss-20b", "gpt-oss-120b", "deepseek-v2-lite", "deepseek-v3", "qwen3-next-80b-a3b"),
)
SCHEMES = ("fp8", "W4A16", "W8A8", "awq", "nvfp4", "int8", "W4A16KV8", "q4_k_m", "mxfp4", "KV8")
TECHNIQUES = ("eagle-3", "medusa", "prompt-lookup:accept=2")
FACTORS = (1.05, 1.3, 2.0, 5.0, 20.0)

EXACT, ROUNDED = 1 + 1e-6, 1.01
"""The most that a bound and an expected time may break a law by; the bound is exact but for rounding."""


class Law(NamedTuple):
    """A variation by a factor that must not make anything worse; `expected`, `memory`: how much worse these may be."""

    vary: Callable[[Scenario, float], Scenario]
    expected: float = ROUNDED
    memory: float = EXACT


def _on(scale: Callable[[Any, float], Any]) -> Callable[[Scenario, float], Scenario]:
    return lambda scenario, factor: with_hardware(scenario, lambda hardware: scale(hardware, factor))


def _fewer(name: str, least: int) -> Callable[[Scenario, float], Scenario]:
    return lambda scenario, factor: scenario.changed(**{name: max(least, int(getattr(scenario, name) / factor))})


def _cached(scenario: Scenario, factor: float) -> Scenario:
    left = math.ceil(scenario.prompt / factor)
    return scenario.changed(prompt=left, prefix=scenario.prompt - left)


def _more_devices(scenario: Scenario, factor: float) -> Scenario:
    parallel = scenario.settings.parallel
    more = replace(parallel, data=parallel.data * 2)
    batch = scenario.batch * 2 if factor > 2 else scenario.batch
    return scenario.changed(batch=batch, settings=replace(scenario.settings, parallel=more))


LAWS: Mapping[str, Law] = {
    "bandwidth": Law(_on(scaled_bandwidth)),
    # Engines choose the tokens of a step, and so what they reserve, by the memory of a device (vLLM: from 70 GB on).
    "capacity": Law(_on(scaled_capacity), memory=1.5),
    # The shorter of two parts of a kernel overlaps less with the longer: where both take as long, a shorter one of them
    # leaves less to overlap. It is measured (`roofline.timing.kernels.common.sharpness`).
    "matrix peak": Law(_on(scaled_peaks), 1.1),
    "vector peak": Law(_on(scaled_vector_peaks), 1.05),
    "links": Law(_on(scaled_links)),
    "shorter generation": Law(_fewer("generate", 2)),
    "smaller batch": Law(_fewer("batch", 1)),
    # MLA kernels split the keys by thresholds of the context, so that a longer one may be faster: up to a fifth.
    "shorter prompt": Law(_fewer("prompt", 1), 1.25),
    "cached prefix": Law(_cached),
    # Twice the devices for one or two batches. Ranks that share experts wait for each other and exchange tokens, the
    # buffers of which take memory.
    "more replicas": Law(_more_devices, np.inf, np.inf),
    # Fewer bits run other kernels, which may convert what they read.
    "fewer weight bits": Law(lambda scenario, factor: with_weight_bits(scenario, 1 / factor), np.inf),
    # llama.cpp widens a layer of a cache in fewer than 16 bits to 16.
    "fewer KV bits": Law(lambda scenario, factor: with_kv_bits(scenario, 1 / factor), np.inf, 1.1),
}


def laws(generator: random.Random, folder: Path) -> None:
    """A random scenario, and what each law changes about it."""
    try:
        scenario = _scenario(generator)
        before = _figures(scenario)
    except RooflineError:  # a model on that hardware or in that format
        return
    speculation = scenario.settings.speculation
    for name, law in LAWS.items():
        factor = generator.choice(FACTORS)
        if name == "fewer weight bits" and speculation is not None and speculation.shared_ends:
            continue  # a draft layer has 16 bits again where the weights have fewer than 8 (`draft_precision`)
        if name == "cached prefix" and scenario.hardware.kind == "cpu" and "llama" not in scenario.profile.name:
            continue  # PyTorch's kernel is given a mask then, and skips no masked keys
        try:
            after = _figures(law.vary(scenario, factor))
        except RooflineError:
            continue
        for figure, value in after.items():
            if name == "shorter generation" and figure.startswith("tpot"):
                continue  # the mean over other contexts, and over other iterations of speculative decoding
            exchanging = name == "more replicas" and bool(scenario.model.experts)
            most = {"memory": law.memory, "bound": np.inf if exchanging else EXACT}.get(
                figure.split()[-1], law.expected
            )
            assert value <= before[figure] * most, (name, factor, figure, value / before[figure], scenario)


LOADED = ("bandwidth", "matrix peak", "links", "shorter generation")
"""Laws that hold under load as well; devices of other capacity and other prompts have other steps."""

USERS = (1, 2, 5, 12, 40, 150, 600)
CROWDED = 1.45
"""The most that requests which wait may lower the throughput: those that run fill the KV cache and displace another.

Two of 4,000 scenarios: 1.41 (DFX, whose prompts take a token a pass) and 1.44 (an RX 6700 XT whose cache is full).
"""

WAVES = 1.15
"""The most that faster steps may lengthen a request under load, as each loop is one run.

One of 4,000 scenarios of one length, whose waves meet: 1.11 (20 times the bandwidth, 7 tokens in and 13 out). Of 266
whose outputs vary, one is over 1.02.
"""

FULL = 1.1
"""The most that more requests in flight may lower the throughput of steps: by the tiles of kernels."""

ALONE = 1.35
"""The most that TPOT of one request under load may differ from `analyze`, where host work is fitted to both apart."""


def served(generator: random.Random, folder: Path) -> None:
    """A random scenario under load: what holds for its curve, and what each law changes about a point of it."""
    for _ in range(TRIES):
        try:
            scenario = _scenario(generator)
            curve = serve(scenario.changed(batch=1), concurrency=USERS)
            break
        except RooflineError:  # a model that does not fit, or a format that the engine does not run
            continue
    else:
        return
    alone = analyze(scenario.changed(batch=1)).expected.tpot
    for before, after in pairwise(curve.outcomes):
        most = CROWDED if after.waiting or after.queued else FULL
        assert after.output_tokens_per_second >= before.output_tokens_per_second / most, (before, after, scenario)
    for users, outcome in zip(USERS, curve.outcomes, strict=True):
        figures = [*_ends(outcome.ttft), *_ends(outcome.tpot), *_ends(outcome.e2e)]
        assert all(math.isfinite(figure) and figure > 0 for figure in figures), (users, outcome, scenario)
        assert outcome.kv_use <= 1, (users, outcome, scenario)
        assert outcome.running <= users * ROUNDED, (users, outcome, scenario)
        present = outcome.requests_per_second * outcome.e2e.mean.mid
        assert abs(present / users - 1) < LITTLE, (users, present, scenario)
    first = curve.outcomes[0]
    between = curve.replica.scheduler.step  # of a server alone, where it is not in the engine's parameters
    assert alone.mid / ALONE < first.tpot.mean.mid < alone.mid * ALONE + between, (first, alone, scenario)
    name, users = generator.choice(LOADED), generator.choice(USERS)
    try:
        after = serve(
            LAWS[name].vary(scenario.changed(batch=1), generator.choice(FACTORS)), concurrency=users
        ).outcomes[0]
    except RooflineError:
        return
    before, most = curve.outcomes[USERS.index(users)], LAWS[name].expected * WAVES
    assert after.e2e.mean.mid <= before.e2e.mean.mid * most, (name, users, scenario)


TRIES = 20
"""Random scenarios until one is a server."""

LITTLE = 0.02
"""The most that the requests in a closed loop may differ from their number."""


def _ends(latency: Latency) -> tuple[float, ...]:
    return tuple(getattr(interval, end) for interval in (latency.mean, latency.p95) for end in ("low", "mid", "high"))


def _scenario(generator: random.Random) -> Scenario:
    options: dict[str, Any] = {name: _number(generator, *ends) for name, ends in LENGTHS.items()}
    for name, share, values in (
        ("engine", 0.5, list_engines()),
        ("quant", 0.5, SCHEMES),
        ("tp", 0.4, (2, 4, 8)),
        ("techniques", 0.15, TECHNIQUES),
    ):
        if generator.random() < share:
            options[name] = generator.choice(values)
    return Scenario(generator.choice(MODELS), generator.choice(list_hardware()), **options)


LENGTHS = {"batch": (1, 300), "prompt": (1, 20_000), "generate": (2, 1500)}


def _number(generator: random.Random, low: int, high: int) -> int:
    return round(float(np.exp(generator.uniform(np.log(low), np.log(high)))))


def _figures(scenario: Scenario) -> dict[str, float]:
    """Bounds, expected times, and the part of the memory that is taken: less is better."""
    analysis = analyze(scenario)
    found = {"memory": float(analysis.memory.total / analysis.memory.capacity)}
    for name in ("ttft", "tpot", "total"):
        found[f"{name} bound"] = float(getattr(analysis.generation, name))
        expected = getattr(analysis.expected, name)
        found[f"{name} expected"] = float(expected.mid)
        assert found[f"{name} bound"] <= expected.low * EXACT, (name, found, expected, scenario)
        assert expected.low <= expected.mid <= expected.high, (name, expected, scenario)
    return found
