"""The ratio of prefill to decode: layouts and numbers of replicas of both pools.

A replica of prefill serves up to P requests/s within a limit of TTFT, one of decode D within one of TPOT, both at p95;
the first is found with prompts alone, the second where the prompts are received. Of p and d replicas min(p P, d D) is
served. On N devices each pair of layouts has the p and d with the most; for a rate the fewest devices that serve it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from roofline.core.errors import RooflineError
from roofline.graph.parallel import Parallelism
from roofline.scenario.scenario import Scenario
from roofline.serving.disaggregated import BELOW, LEAST, stage_of
from roofline.serving.layouts import servers
from roofline.serving.load import Load
from roofline.serving.outcome import Targets
from roofline.serving.pools import DEGREES, Pools, decode_replica, only_prompts, prefill_replica
from roofline.serving.replica import Replica

SHARES = 1 - np.geomspace(1 - LEAST, 1 - BELOW, 10)
"""Shares of the largest rate at which the times of a replica are found."""

P95 = 2
"""The row of p95 among the statistics of a steady state."""


class Ratio(Struct, frozen=True):
    """Replicas of both pools, and the requests/s that they serve."""

    prefills: int
    decodes: int
    prefill: Parallelism
    decode: Parallelism
    rate: float

    @property
    def devices(self) -> int:
        return self.prefills * self.prefill.devices + self.decodes * self.decode.devices

    @property
    def pools(self) -> Pools:
        """The pools, whose KV cache goes over the network."""
        return Pools(self.prefills, self.decodes, parallel=self.decode, prefill_parallel=self.prefill)

    @property
    def text(self) -> str:
        """The pools as `parse_pools` reads them."""
        parts = [f"prefills={self.prefills}", *_degrees("prefill-", self.prefill)]
        return ",".join((*parts, f"decodes={self.decodes}", *_degrees("", self.decode)))

    @property
    def written(self) -> str:
        """In words, as in `2P of TP 4, 1D of DP 8`: workers of prefill and of decode."""
        return f"{self.prefills}P of {_layout_words(self.prefill)}, {self.decodes}D of {_layout_words(self.decode)}"


def _layout_words(parallel: Parallelism) -> str:
    if parallel.data > 1:
        return f"attention DP {parallel.data}"
    return f"TP {parallel.tensor}"


def _degrees(pool: str, parallel: Parallelism) -> list[str]:
    return [f"{pool}{name}={getattr(parallel, part)}" for name, part in DEGREES.items() if getattr(parallel, part) > 1]


class _Layout(Struct, frozen=True):
    """A layout of a pool's replica, and the requests/s that one serves within its limit."""

    parallel: Parallelism
    rate: float


def ratios_on(scenario: Scenario, load: Load, devices: int, limits: Targets) -> list[Ratio]:
    """The best ratio of each pair of layouts on at most so many devices, by the rate that it serves."""

    def best(one: _Layout, other: _Layout) -> Ratio | None:
        first, second = one.parallel.devices, other.parallel.devices
        counts = ((count, (devices - count * first) // second) for count in range(1, devices // first + 1))
        found = [
            Ratio(count, rest, one.parallel, other.parallel, min(count * one.rate, rest * other.rate))
            for count, rest in counts
            if rest
        ]
        return max(found, key=lambda each: each.rate, default=None)

    found = _pairs(scenario, load, devices - 1, limits, best)
    return sorted(found, key=lambda each: (-each.rate, each.devices))


def ratios_for(scenario: Scenario, load: Load, rate: float, limits: Targets) -> list[Ratio]:
    """The fewest replicas of each pair of layouts that serve a rate, by their devices."""

    def fewest(one: _Layout, other: _Layout) -> Ratio:
        prefills, decodes = (math.ceil(rate / each.rate - 1e-9) for each in (one, other))
        served = min(prefills * one.rate, decodes * other.rate)
        return Ratio(prefills, decodes, one.parallel, other.parallel, served)

    found = _pairs(scenario, load, scenario.hardware.node_devices, limits, fewest)
    return sorted(found, key=lambda each: (each.devices, -each.rate))


def _pairs(
    scenario: Scenario, load: Load, most: int, limits: Targets, ratio: Callable[[_Layout, _Layout], Ratio | None]
) -> Iterator[Ratio]:
    widest = min(most, scenario.hardware.node_devices)
    counts = (2**power for power in range(widest.bit_length()))
    layouts = [each for count in counts for each in servers(scenario.model, scenario.hardware, scenario.profile, count)]
    whole = [each for each in layouts if each.pipeline == 1 and not each.is_mixed]
    tensor, experts = (
        [
            Parallelism(tensor=each.tensor, data=each.data, expert=each.expert)
            for each in whole
            if (each.data > 1) is apart
        ]
        for apart in (False, True)
    )
    asked = replace(load, rate=1.0, concurrency=None, offline=None, rounds=None)
    policy = scenario.profile.scheduler
    if scenario.settings.piece or policy.piece:
        raise RooflineError(
            "pools are sized by steady states, whose steps have all of their tokens for one prompt: omit it",
            options=["long_prefill_token_threshold"],
        )
    first = list(
        _served(scenario, tensor, lambda one: prefill_replica(one, asked, policy), only_prompts(asked), limits)
    )
    second = list(_served(scenario, [*tensor, *experts], lambda one: decode_replica(one, asked, policy), asked, limits))
    for one in first:
        for other in second:
            if (found := ratio(one, other)) is not None:
                yield found


def _served(
    scenario: Scenario, layouts: Iterable[Parallelism], made: Callable[[Scenario], Replica], load: Load, limits: Targets
) -> Iterator[_Layout]:
    """The layouts on which a replica fits and meets its limit."""
    for parallel in layouts:
        try:
            replica = made(
                scenario.changed(settings=replace(scenario.settings, parallel=parallel, decode_hardware=None))
            )
            stage = stage_of(replica, load, 1)
        except RooflineError:
            continue
        rates = SHARES * stage.saturation
        steady = stage.at(rates)
        times, limit = (steady.tpot, limits[1]) if replica.received else (steady.ttft, limits[0])
        met = times[P95] <= limit
        if met[0]:
            yield _Layout(parallel, float(rates[np.flatnonzero(met)[-1]]))
