"""Metamorphic laws of random scenarios, for `make fuzz`: more of a resource is never slower, more work never faster.

Bounds and memory obey them exactly. Expected times may break them by a hundredth, and by more where the law says why.
The ends of an interval are not held to it: their width is that of measured kernels of the same regime of sizes, which
may change where the middle does not.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from msgspec.structs import replace

from roofline import RooflineError, Scenario, analyze, list_hardware
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
    # leaves less to overlap. It is measured (`roofline.timing.kernels.common.sharpness`). By up to 4%, and by 9% for
    # 4-bit weights of llama.cpp at a few rows, the cause of which is open.
    "matrix peak": Law(_on(scaled_peaks), 1.1),
    "vector peak": Law(_on(scaled_vector_peaks), 1.05),
    "links": Law(_on(scaled_links)),
    "shorter generation": Law(_fewer("generate", 2)),
    "smaller batch": Law(_fewer("batch", 1)),
    # MLA kernels split the keys by thresholds of the context, so that a longer one may be faster: up to a fifth.
    "shorter prompt": Law(_fewer("prompt", 1), 1.25),
    # Twice the devices for one or two batches. Ranks that share experts wait for each other and exchange tokens, the
    # buffers of which take memory.
    "more replicas": Law(_more_devices, np.inf, np.inf),
    # Fewer bits run other kernels, which may convert what they read.
    "fewer weight bits": Law(lambda scenario, factor: with_weight_bits(scenario, 1 / factor), np.inf),
    "fewer KV bits": Law(lambda scenario, factor: with_kv_bits(scenario, 1 / factor), np.inf),
}


def laws(generator: random.Random, folder: Path) -> None:
    """A random scenario, and what each law changes about it."""
    try:
        scenario = _scenario(generator)
        before = _figures(scenario)
    except RooflineError:  # a model on that hardware or in that format
        return
    for name, law in LAWS.items():
        factor = generator.choice(FACTORS)
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
        found[f"{name} expected"] = float(getattr(analysis.expected, name).mid)
    return found
