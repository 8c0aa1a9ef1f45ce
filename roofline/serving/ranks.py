"""What the ranks of a step wait for: the one whose experts have the most rows, and the slowest device."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np
from msgspec.structs import replace

from roofline.graph.parallel import Parallelism
from roofline.scenario.scenario import Scenario
from roofline.serving.tables import Array

SLOWER_RANK = 0.05
"""Standard deviation of the time of a step on one device over that on its siblings, whose last all ranks wait for.

Fitted to TPOT of 666 deployments of three engines on six devices under load (0.052), beside experts' uneven loads; with
an engine or a device held out of the fit, errors of it are as low. Devices of one kind in one cluster differ by 8% on
average and 22% at most (Sinha et al. 2022, arXiv 2208.11035).
"""

UNEVEN_EXPERTS = 1.08
"""Standard deviation of the logarithm of experts' loads, without copies of those with the most.

Loads of DeepSeek-V3's ranks are log-normal rather than anything else (deepseek-ai/DeepEP, pull request 393). Over 58
layers of DeepSeek-R1 among 32 ranks they deviate by 0.48 of their mean, and the busiest has 2.56 times the mean
(NVIDIA/TensorRT-LLM, examples/wide_ep/ep_load_balancer): 0.50 and 2.6 with experts of 1.08. Among 8 ranks, 1.4 times.
"""


def busiest(tokens: Array, ranks: int, chosen: int, variance: float = 0.0) -> Array:
    """Tokens with which each rank has the rows that the rank with the most has of `tokens`, to `chosen` experts each.

    Rows of a rank are log-normal: those drawn are binomial, and `variance` is that of experts' loads over the number of
    experts.
    """
    if ranks == 1:
        return tokens
    deviation = np.sqrt(np.log1p((ranks - 1) * (1 / (chosen * tokens) + variance)))
    return np.asarray(tokens * np.exp(deviation * (largest(ranks) - deviation / 2)))


def uneven(parallel: Parallelism) -> float:
    """The deviation of the logarithm of experts' loads: none where those with the most have copies."""
    return 0.0 if parallel.redundant else UNEVEN_EXPERTS


def under_load(scenario: Scenario) -> Scenario:
    """The scenario with experts that are loaded as those of a server."""
    settings = scenario.settings
    return scenario.changed(settings=replace(settings, uneven_experts=uneven(settings.parallel)))


def largest(count: int) -> float:
    """The expected largest of so many normal deviates (Blom 1958)."""
    return NormalDist().inv_cdf((count - 0.375) / (count + 0.25))


def waited(parallel: Parallelism) -> float:
    """The time of a step over that of a device alone; waits over nodes are in `roofline.timing.network_collectives`."""
    ranks = max(parallel.tensor * parallel.sequence, parallel.expert)
    return 1.0 if parallel.span(ranks).across_nodes else 1 + SLOWER_RANK * largest(ranks)
