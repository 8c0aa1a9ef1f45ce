"""The rank that a step waits for: the one whose experts have the most rows."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from roofline.graph.parallel import Parallelism
from roofline.scenario.scenario import Scenario
from roofline.serving.tables import Array
from roofline.timing.waits import largest

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
