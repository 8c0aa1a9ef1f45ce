"""Time of a collective within one topology: the faster of two protocols, each with a latency and a bandwidth.

    low latency      t1 = latency + sent / (low_latency_share e link)
    high bandwidth   t2 = ((handshake latency)^p + (sent / (e link))^p)^(1/p)
    time             t  = min(t1, t2)

`link` is the bandwidth of a device's link in one direction; on a mesh its part to the other ranks, in a ring over nodes
the concurrent bandwidth within and across nodes (`Hardware.ring_bandwidth`). `sent` is the part of the message that a
device sends: 2 (r-1)/r of it for a ring all-reduce among r ranks, (r-1)/r for all-gather, reduce-scatter and all-to-all
(Thakur et al., 2005); the whole message is `bytes`. Where the switch reduces (NVLink SHARP), the bound of an all-reduce
is bytes / link, while `e` still refers to the bytes of a ring, so that constants compare across devices. Libraries
switch between protocols by size (NCCL: LL, which sends flags with the data, and Simple, which synchronises first). The
latency grows with the ranks (more steps, a wider barrier), and the achieved fraction of the link depends on them, so
both are fitted at 2, 4 and 8 ranks. They are interpolated in log2(ranks); beyond 8, the latency is extrapolated from 4
and 8, and the efficiency is constant.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from roofline.core.errors import UnknownNameError
from roofline.core.parameters import Parameter, Unit
from roofline.specs.engine import ALL_REDUCES
from roofline.specs.hardware import Hardware, Span
from roofline.timing.kernels.common import Array, Columns, Mask, aligned, column, smooth_maximum, text

RANKS = (2, 4, 8)
"""Numbers of ranks that the constants are fitted at."""

OWN_ALL_REDUCES = ALL_REDUCES
"""Engines' all-reduce kernels, which send from device to device: that of vLLM and SGLang, that of TensorRT-LLM."""

EAGER = "custom_all_reduce_eager"
"""The first of them in a benchmark without CUDA graphs."""

SENT: Mapping[str, float] = {
    "all_reduce": 2.0,
    **dict.fromkeys((*OWN_ALL_REDUCES, EAGER), 2.0),
    "all_gather": 1.0,
    "reduce_scatter": 1.0,
    "alltoall": 1.0,
}
"""Bytes sent, in units of (r-1)/r of the message, by the names of measurement files."""

_LATENCY = {2: 7e-6, 4: 10e-6, 8: 15e-6}

PARAMETERS = (
    *(
        parameter
        for ranks in RANKS
        for parameter in (
            Parameter(f"latency_{ranks}", Unit.SECONDS, 1e-6, 300e-6, _LATENCY[ranks], f"tiny message, {ranks} ranks"),
            Parameter(f"efficiency_{ranks}", Unit.RATIO, 0.01, 1.0, 0.75, f"fraction of the link, {ranks} ranks"),
        )
    ),
    Parameter("sharpness", Unit.RATIO, 0.4, 5.0, 1.0, "exponent of the ramp from latency to bandwidth"),
    Parameter("low_latency_share", Unit.RATIO, 0.02, 1.0, 0.3, "bandwidth of the low-latency protocol over the other"),
    Parameter("handshake", Unit.RATIO, 1.0, 10.0, 2.0, "latency of the high-bandwidth protocol over the other"),
)


def _sent(columns: Columns) -> tuple[Array, Array]:
    collective = text(columns, "collective")
    if collective not in SENT:
        raise UnknownNameError("collective", collective, SENT)
    ranks = np.maximum(column(columns, "ranks"), 1.0)
    return SENT[collective] * (ranks - 1.0) / ranks * column(columns, "bytes"), ranks


def _link(columns: Columns, hardware: Hardware, reducing: bool = False) -> Array:
    """Bytes a second among the ranks, over the link that spans them (`reach`, else adjacent ranks).

    `reducing`: bytes of a ring's all-reduce, where the switch may reduce (`Interconnect.all_reduce_share`).
    """
    across = bool(np.any(column(columns, "across_nodes", 0.0)))
    ranks, reducing = column(columns, "ranks"), reducing and SENT[text(columns, "collective")] == SENT["all_reduce"]
    if across and text(columns, "collective") != "alltoall":
        members = int(np.max(column(columns, "members", 1.0)))
        return np.asarray(
            np.vectorize(lambda count: hardware.ring_bandwidth(int(count), members, reducing), otypes=[float])(ranks)
        )
    reach, ranks = aligned(column(columns, "reach") if "reach" in columns else ranks, ranks)

    def bandwidth(reached: float, count: float) -> float:
        link = hardware.link(Span(int(reached), across))
        return link.bandwidth_among(int(count)) / (link.all_reduce_share(int(count)) if reducing else 1.0)

    if ranks.size and (ranks == ranks.flat[0]).all() and (reach == reach.flat[0]).all():  # one link, as in most passes
        return np.full(reach.shape, bandwidth(reach.flat[0], ranks.flat[0]))
    groups, which = np.unique(np.stack([reach.reshape(-1), ranks.reshape(-1)]), axis=1, return_inverse=True)
    return np.array([bandwidth(*span) for span in groups.T])[which].reshape(reach.shape)


def collective_bound(columns: Columns, hardware: Hardware, resident: Mask = False) -> Array:
    """The bound in seconds: bytes sent by a device over its link bandwidth; a switch that reduces takes them once."""
    del resident
    return _sent(columns)[0] / _link(columns, hardware, reducing=True)


def collective_time(
    columns: Columns, hardware: Hardware, parameters: Mapping[str, float], resident: Mask = False
) -> Array:
    """Seconds for columns `collective, ranks, bytes`, optional `across_nodes`, `members` of a node and `reach`."""
    del resident
    sent, ranks = _sent(columns)
    position = np.log2(ranks)
    latency = np.interp(position, np.log2(RANKS), [parameters[f"latency_{count}"] for count in RANKS])
    growth = max(0.0, parameters["latency_8"] - parameters["latency_4"])
    latency = latency + growth * np.maximum(position - 3.0, 0.0)
    efficiency = np.interp(position, np.log2(RANKS), [parameters[f"efficiency_{count}"] for count in RANKS])
    sending = sent / (efficiency * _link(columns, hardware))
    low_latency = latency + sending / parameters["low_latency_share"]
    high_bandwidth = smooth_maximum(latency * parameters["handshake"], sending, parameters["sharpness"])
    return np.where(ranks > 1, np.minimum(low_latency, high_bandwidth), 0.0)
