"""What devices that work together wait for: the slowest of them."""

from __future__ import annotations

from statistics import NormalDist

from roofline.bound.roof import Placement
from roofline.graph.parallel import Collective

SLOWER_RANK = 0.05
"""Standard deviation of the time of a step on one device over that on its siblings, whose last all ranks wait for.

Fitted to TPOT of 666 deployments of three engines on six devices under load (0.052), beside experts' uneven loads; with
an engine or a device held out of the fit, errors of it are as low. Static batches did not choose it: 139 published ones
of five engines on 2 to 8 devices are predicted 0.1% too fast in the median with it, and 5% without. Devices of one kind
in one cluster differ by 8% on average and 22% at most (Sinha et al. 2022, arXiv 2208.11035).
"""


def largest(count: int) -> float:
    """The expected largest of so many normal deviates (Blom 1958)."""
    return NormalDist().inv_cdf((count - 0.375) / (count + 0.25))


def waited(placement: Placement) -> float:
    """The time of kernels among ranks over that of a device alone; waits over nodes are in `collectives`."""
    links = [op.link for op, _, _ in placement.ops if op.link and op.link.collective != Collective.POINT_TO_POINT]
    widest = max(links, key=lambda link: (link.reach, link.ranks), default=None)
    if widest is None or widest.ranks == 1 or placement.nodes.span(widest.reach).across_nodes:
        return 1.0
    return 1 + SLOWER_RANK * largest(max(link.ranks for link in links))
