"""Steady states against event simulations over random settings, by class of setting.

`python -m tests.roofline.serving.agreement [SETTINGS] [SEED]` prints, for each class, how many settings have a mean
TPOT within 5% and a p95 of TTFT within 15% of the mean of two simulations, and how many of these of each other: close
to saturation, queues of runs as long as these differ by more.
"""

from __future__ import annotations

import sys
from functools import cache
from itertools import product
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from roofline import Scenario, load_hardware, load_model
from roofline.graph.parallel import Parallelism
from roofline.scenario.settings import Settings
from roofline.serving.load import Load
from roofline.serving.policies import simulate
from roofline.serving.replica import Replica
from roofline.serving.steady import saturation_of, steady
from roofline.serving.steps import StepTimes
from roofline.serving.times import slots_of, times_of
from roofline.specs.engine import load_engine
from roofline.specs.scheduler import PREFILL_FIRST
from roofline.techniques import apply_techniques

DEPLOYMENTS = (
    ("llama-3.1-8b", "h100-sxm", {}),
    ("llama-3.1-70b", "h200-sxm", {"tensor": 4}),
    ("qwen3-32b", "b200-sxm", {"tensor": 2}),
    ("gpt-oss-120b", "h100-sxm", {"tensor": 2}),
    ("deepseek-r1", "b200-sxm", {"tensor": 8}),
)
RANKED = (
    ("deepseek-r1", "b200-sxm", {"data": 8, "expert": 8}),
    ("gpt-oss-120b", "h100-sxm", {"data": 4, "expert": 4}),
)
ENGINES = ("vllm", "vllm@0.8", "sglang", "tensorrt-llm")
PROMPTS = (256, 1024, 3000, "uniform:200:2000", "uniform:1000:4000", "lognormal:mean=700,p95=1800")
EQUAL = (64, 200, 800)
VARIED = ("uniform:50:400", "uniform:160:800", "exponential:mean=250")
TOKENS = (512, 2048, 8192, 16384)
TPOT, TTFT = 0.05, 0.15


class Setting(NamedTuple):
    """A replica, its load, the fraction of the largest stable rate, and its classes."""

    replica: Replica
    load: Load
    share: float
    classes: tuple[str, ...]


@cache
def steps(
    name: str, hardware: str, degrees: tuple[tuple[str, int], ...], engine: str = "vllm", drafts: bool = False
) -> StepTimes:
    settings = Settings(parallel=Parallelism(**dict(degrees)))
    scenario = Scenario(load_model(name), load_hardware(hardware), settings=settings, engine="vllm")
    if engine != "vllm":
        return steps(name, hardware, degrees, drafts=drafts).of(load_engine(engine))
    if drafts:
        scenario = apply_techniques(scenario, ["prompt-lookup:acceptance=0.5"])
    return StepTimes(scenario)


def random_setting(random: np.random.Generator) -> Setting:
    """A setting of an engine, a load and their options, each of which is on in a part of them."""
    ranked, drafts, hits = random.random(3) < (0.2, 0.15, 0.2)
    deployments = RANKED if ranked else DEPLOYMENTS
    name, hardware, degrees = deployments[random.integers(len(deployments))]
    engine = str(random.choice(ENGINES))
    profile = load_engine(engine)
    found = steps(name, hardware, tuple(degrees.items()), engine, bool(drafts))
    tokens = int(random.choice(TOKENS))
    policy = replace(
        profile.scheduler, tokens=tokens, gather=0, sequences=256 if ranked else profile.scheduler.sequences
    )
    replica = Replica(found, policy, 10**6 * found.data)
    closed, equal = random.random(2) < (0.5, 0.4)
    outputs = EQUAL if equal else VARIED
    prompt, output = PROMPTS[random.integers(len(PROMPTS))], outputs[random.integers(len(outputs))]
    load = Load(prompt=prompt, generate=output, rate=1.0, hits=0.5 if hits else 0.0)
    share, users = float(random.uniform(0.1, 0.9)), round(float(np.exp(random.uniform(0, np.log(512)))))
    slots = slots_of(replica, load)
    most = saturation_of(replica, load, times_of(replica, load, slots))
    if closed:
        load = replace(load, rate=None, concurrency=users)
        share = float(steady(replica, load, users).rate[0]) / most
    else:
        load = replace(load, rate=share * most)
    classes = {
        "open": not closed,
        "closed": closed,
        "saturated": share > 0.9,
        "equal outputs": equal,
        "varied outputs": not equal,
        "prompts first": policy.order == PREFILL_FIRST,
        "whole": policy.whole,
        "data-parallel": ranked,
        "drafts": drafts,
        "hits": hits,
        "small budget": tokens == 512,
        "plain": not (ranked or tokens == 512),
        "light": share <= 0.5,
        engine: True,
    }
    return Setting(replica, load, share, tuple(each for each, held in classes.items() if held))


def simulated(replica: Replica, load: Load, running: float, seed: int = 1, requests: int = 5000) -> np.ndarray:
    """Mean TPOT over tokens and p95 of TTFT of a run; its start and end are left out.

    The run is of twenty times those in flight: with fewer an open loop has not come to its steady state.
    """
    run = simulate(replica, load, max(requests, int(20 * running)), seed)
    sent = run.arrival / run.arrival.max()
    kept = (sent >= 0.2) & (sent < 0.9)
    ttft, spent = (run.first - run.arrival)[kept], (run.last - run.first)[kept]
    return np.array([spent.sum() / (run.output[kept] - 1).sum(), np.quantile(ttft, 0.95)])


def compared(setting: Setting, runs: int, requests: int) -> np.ndarray:
    """Mean TPOT and p95 of TTFT: steady over the mean of some runs, and one run over another."""
    replica, load = setting.replica, setting.load
    quick = steady(replica, load, load.rate or load.concurrency)
    found = [simulated(replica, load, float(quick.running[0]), seed, requests) for seed in range(1, runs + 1)]
    return np.stack([np.array([quick.tpot[0, 0], quick.ttft[2, 0]]) / np.mean(found, axis=0), found[0] / found[-1]])


def ratios(
    settings: int = 200, seed: int = 7, runs: int = 2, requests: int = 5000
) -> tuple[list[Setting], np.ndarray, np.ndarray]:
    """Random settings, and for each the ratios of TPOT and TTFT of the steady state, and of another run."""
    random = np.random.default_rng(seed)
    drawn = [random_setting(random) for _ in range(settings)]
    found = np.array([compared(each, runs, requests) for each in drawn])
    return drawn, found[:, 0], found[:, 1]


def within(drawn: list[Setting], found: np.ndarray, *classes: str) -> tuple[int, float, float, float]:
    """How many settings have all of some classes, and the parts of them with TPOT, TTFT and both within limits."""
    rows = np.array([set(classes) <= set(each.classes) for each in drawn])
    tpot, ttft = (np.abs(found[rows] - 1) <= (TPOT, TTFT)).T
    return int(rows.sum()), *(float(part.mean()) if part.size else np.nan for part in (tpot, ttft, tpot & ttft))


def main(settings: int = 200, seed: int = 7) -> None:
    """Write the table of classes."""
    drawn, *found = ratios(settings, seed)
    names = sorted({name for each in drawn for name in each.classes})
    pairs = product(("open", "closed"), ("equal outputs", "varied outputs"), ("plain", "data-parallel", "small budget"))
    head = f"{'TPOT':>7}{'TTFT':>7}{'both':>7}"
    sys.stdout.write(f"{'class':40}{'settings':>9}{head}   again{head}\n")
    for classes in [(), *((name,) for name in names), *pairs, ("open", "plain", "light"), ("closed", "plain")]:
        (count, *parts), (_, *again) = (within(drawn, each, *classes) for each in found)
        shares = "        ".join("".join(f"{part:7.0%}" for part in each) for each in (parts, again))
        sys.stdout.write(f"{', '.join(classes) or 'all':40}{count:9}{shares}\n")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3]))
