"""The rank that a step waits for: the one whose experts have the most rows."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from roofline.graph.parallel import Parallelism
from roofline.scenario.scenario import Scenario
from roofline.serving.tables import Array
from roofline.specs.sublayers import MixtureOfExperts
from roofline.timing.waits import largest

UNEVEN_EXPERTS = 1.08
"""Standard deviation of the logarithm of experts' loads, without copies of those with the most.

Loads of DeepSeek-V3's ranks are log-normal rather than anything else (deepseek-ai/DeepEP, pull request 393). Over 58
layers of DeepSeek-R1 among 32 ranks they deviate by 0.48 of their mean, and the busiest has 2.56 times the mean
(NVIDIA/TensorRT-LLM, examples/wide_ep/ep_load_balancer): 0.50 and 2.6 with experts of 1.08. Among 8 ranks without
groups of experts, 1.4 times.
"""

UNEVEN_GROUPS = 0.033
"""Variance of the loads of groups of experts over their squared mean, for as many more groups as are chosen.

DeepSeek-V3 chooses 4 of 8 groups by their two best experts, then experts of these (arXiv 2412.19437, section 2.1.2), so
that a group of popular experts is chosen for its others, too. Of 40 sampled layers with experts as uneven as above the
loads of groups have a variance of 0.055 where all are chosen, 0.080 with 4 of 8, 0.110 with 3 and 0.154 with 2: the
busiest of 8 ranks has 1.4, 1.5, 1.6 and 1.7 times the mean. Groups hardly matter to ranks of a part of a group: loads
of 32 deviate by 0.49 of the mean without groups and by 0.51 with them.
"""


def busiest(tokens: Array, ranks: int, chosen: int, variance: float = 0.0, grouped: float = 0.0) -> Array:
    """Tokens with which each rank has the rows that the rank with the most has of `tokens`, to `chosen` experts each.

    Rows of a rank are log-normal: those drawn are binomial, `variance` is that of experts' loads over the number of
    experts, and `grouped` is what the choice of groups adds to that of a rank's load.
    """
    if ranks == 1:
        return tokens
    deviation = np.sqrt(np.log1p((ranks - 1) * (1 / (chosen * tokens) + variance) + grouped))
    return np.asarray(tokens * np.exp(deviation * (largest(ranks) - deviation / 2)))


def uneven(parallel: Parallelism) -> float:
    """The deviation of the logarithm of experts' loads: none where those with the most have copies."""
    return 0.0 if parallel.redundant else UNEVEN_EXPERTS


def grouped(spec: MixtureOfExperts, ranks: int) -> float:
    """The variance of a rank's load over its squared mean that the choice of groups of experts adds.

    Ranks of several groups have the mean of these.
    """
    if spec.groups == 1:
        return 0.0
    of_groups = UNEVEN_GROUPS * (spec.groups / spec.top_groups - 1)
    return of_groups * (min(ranks, spec.groups) - 1) / (spec.groups - 1)


def under_load(scenario: Scenario) -> Scenario:
    """The scenario with experts that are loaded as those of a server."""
    settings = scenario.settings
    return scenario.changed(settings=replace(settings, uneven_experts=uneven(settings.parallel)))
