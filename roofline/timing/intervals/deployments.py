"""What intervals have by the kind of a deployment: ranks over several nodes, and one node under load.

Kernels and engines are measured within a node. A layer whose ranks are in several nodes depends further on how the
cluster was set up and on the kernels of the engine's fork, which nobody states: independently of all else, its time is
within OVER_NODES of the expected one. On one node under load the schedulers' spreads, which leave room for models that
their fit did not see, are wider than 80% of the medians that benchmarks measure: the distances are a part of them.
"""

from __future__ import annotations

import math

from roofline.graph.parallel import Parallelism
from roofline.specs.hardware import Hardware

OVER_NODES = (0.6, 2.0)
"""p10 and p90 of the measured time of a pass over the expected one, of layers over several nodes.

Decode of DeepSeek-R1 takes 0.52 to 0.71 times the expected time on 16 and 32 H20 with a fork's kernels
(lmsys.org/blog/2025-09-26-sglang-ant-group), 0.9 on 16 H200, 0.92 to 0.97 on 16 H100 with TensorRT-LLM 1.2, 1.65 and 2
times there in 2025 (tenstorrent/tt-inference-server, issue 356), and 1.1 to 1.9 times with drafts there and over MoRI
on 16 MI355X (InferenceX).
"""

Scales = tuple[tuple[float, float], tuple[float, float]]
"""Distances of p10 and of p90 over others: of TTFT, and of TPOT."""

WHOLE: Scales = (1.0, 1.0), (1.0, 1.0)
ONE_NODE: Scales = (1.0, 1.0), (1.0, 0.75)
EXPERT_RANKS: Scales = (0.8, 0.8), (0.8, 0.8)
"""Distances of p10 and p90 from p50 under load over those of a scheduler's spread: of several nodes and of pools apart,
of one node with tensor parallelism, and of one with expert ranks."""

MEDIANS = 0.65
"""Distances of the p10 and p90 of a median over those of a mean, without drafts, whose acceptance is random.

A mean has kernels that compile and stalls in it, a median has not. Of InferenceX's medians (350 rows of one node) 7 and
8% lie outside of either end (TPOT; TTFT 6 and 6%), of 53 rows from February 2026 on 13 and 4% (9 and 6%), of pools'
(111 rows) 13 and 7%. Of other loops' means (253 rows) 8 and 11% (TTFT 4 and 11%) do.
"""

Errors = tuple[float, float]
"""Distances of the logarithms of p10 and p90 from that of p50."""

NONE: Errors = (0.0, 0.0)


def network_errors(parallel: Parallelism, hardware: Hardware) -> Errors:
    """The errors of a pass whose layers have ranks in several nodes, as those of replicas have not.

    MoRI's constants are of its authors' figures alone: decode over it takes 1.0 to 2.0 times the expected time on 8
    MI355X, too (InferenceX, December 2025).
    """
    shared = parallel.data if parallel.expert > 1 or parallel.sequence > 1 else 1
    across = parallel.on(hardware).span(parallel.tensor * shared).across_nodes
    if not across and parallel.exchange != "mori":
        return NONE
    return -math.log(OVER_NODES[0]), math.log(OVER_NODES[1])


def scheduled(parallel: Parallelism, hardware: Hardware, *, apart: bool) -> Scales:
    """The distances of latencies under load over those of the scheduler's spread."""
    alone = apart or (parallel.on(hardware).nodes or 1) > 1
    return WHOLE if alone else EXPERT_RANKS if parallel.expert > 1 else ONE_NODE


def farther(factors: tuple[float, float], errors: Errors) -> tuple[float, float]:
    """p10 and p90 over the expected time with further, independent errors."""
    low, high = (math.hypot(math.log(factor), error) for factor, error in zip(factors, errors, strict=True))
    return math.exp(-low), math.exp(high)
