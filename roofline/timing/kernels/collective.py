"""Time of a collective, within a node or over several: the faster of two protocols with a latency and a bandwidth each.

    low latency      t1 = latency + sent / (low_latency_share e link)
    high bandwidth   t2 = ((handshake latency)^p + (sent / (e link))^p)^(1/p)
    time             t  = min(t1, t2)

`e` is `efficiency` at the number of ranks, `handshake` a factor on the latency, p `sharpness`. `link` is the bandwidth
of a device's link in one direction; on a mesh its part to the other ranks, in a ring over nodes the concurrent
bandwidth within and across nodes (`ring_bandwidth`). `sent` is the part of the message that a device sends: 2 (r-1)/r
of it for a ring all-reduce among r ranks, (r-1)/r for all-gather, reduce-scatter and all-to-all (Thakur et al., 2005);
the whole message is `bytes`. Where the switch reduces (NVLink SHARP), the bound of an all-reduce is bytes / link, while
`e` still refers to the bytes of a ring, so that constants compare across devices. Libraries switch between protocols by
size (NCCL: LL, which sends flags with the data, and Simple, which synchronises first). The latency grows with the ranks
(more steps, a wider barrier), and the achieved fraction of the link depends on them, so both are fitted at 2, 4 and 8
ranks. They are interpolated in log2(ranks); beyond 8, the latency is extrapolated from 4 and 8, and the efficiency is
constant.

Over n nodes of d ranks the latency is that among d ranks, and a hop of the network (`roofline.specs.network`) for each
crossing in sequence; the achieved fraction of the bandwidth is the network's:

    all-reduce                    up and down a tree of nodes       2 ceil(log2 n) hops
    all-gather, reduce-scatter    around the ring of nodes          n - 1 hops
    all-to-all                    directly                          1 hop

A hop forwards the message in chunks, so that it begins when the first `min(bytes, CHUNK)` has crossed over one port.
(NCCL's model of its own algorithms adds up latencies likewise: src/graph/tuning.cc, `ncclTopoTuneModel`.)
"""

from __future__ import annotations

from collections.abc import Mapping

from roofline.core import numeric as np
from roofline.core.errors import UnknownNameError
from roofline.core.parameters import Parameter, Unit
from roofline.graph.parallel import ring_bandwidth
from roofline.specs.engine import ALL_REDUCES
from roofline.specs.hardware import NETWORK, Hardware, Span
from roofline.timing.kernels.model import (
    Array,
    Bound,
    Parameters,
    Row,
    Shape,
    Term,
    Terms,
    column,
    smooth_maximum,
    text,
)

RANKS = (2, 4, 8)
"""Numbers of ranks that the constants are fitted at."""

OWN_ALL_REDUCES = ALL_REDUCES
"""Engines' all-reduce kernels, which send from device to device: that of vLLM and SGLang, that of TensorRT-LLM."""

UNGRAPHED = "custom_all_reduce_ungraphed"
"""The first of them, launched anew each time: outside of CUDA graphs it copies messages to a registered buffer."""

SENT: Mapping[str, float] = {
    "all_reduce": 2.0,
    **dict.fromkeys((*OWN_ALL_REDUCES, UNGRAPHED), 2.0),
    "all_gather": 1.0,
    "reduce_scatter": 1.0,
    "alltoall": 1.0,
}
"""Bytes sent, in units of (r-1)/r of the message, by the names of measurement files."""

_LATENCY = {2: 7e-6, 4: 10e-6, 8: 15e-6}
"""Where a fit of the latency in seconds begins, by ranks."""

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


CHUNK = 512 * 2**10
"""Bytes that a hop waits for: NCCL's buffer of 4 MiB has eight steps (NCCL_BUFFSIZE, NCCL_STEPS)."""


class Exchange(Shape, frozen=True):
    """Collectives of one kind among `ranks` devices, each with a message of `bytes`; arrays of one shape.

    `reach` is the number of adjacent devices that they are spread over. Across nodes, each has `members` of them.
    """

    collective: str
    bytes: Array
    ranks: Array
    reach: Array
    across_nodes: bool = False
    members: int = 1

    @property
    def sent(self) -> Array:
        """Bytes that a device sends."""
        ranks = np.maximum(self.ranks, 1.0)
        return SENT[self.collective] * (ranks - 1.0) / ranks * self.bytes

    @property
    def hops(self) -> Array:
        """Crossings of the network in sequence; 0 within a node."""
        if not self.across_nodes:
            return np.zeros_like(self.ranks)
        nodes = np.ceil(self.ranks / self.members)
        if self.collective == "alltoall":
            return np.full_like(self.ranks, 1.0)
        return 2.0 * np.ceil(np.log2(nodes)) if self.reduces else nodes - 1.0

    @property
    def reduces(self) -> bool:
        """Whether it is an all-reduce."""
        return SENT[self.collective] == SENT["all_reduce"]

    def link(self, hardware: Hardware, reducing: bool = False) -> Array:
        """Bytes a second among the ranks, over the link that spans them.

        `reducing`: bytes of a ring's all-reduce, where the switch may reduce (`Interconnect.all_reduce_share`).
        """
        if self.across_nodes and self.collective != "alltoall":
            ring = np.vectorize(
                lambda count: ring_bandwidth(hardware, int(count), self.members, reducing), otypes=[float]
            )
            return np.asarray(ring(self.ranks))

        def bandwidth(reached: float, count: float) -> float:
            link = hardware.link(Span(int(reached), self.across_nodes))
            return link.bandwidth_among(int(count)) / (link.all_reduce_share(int(count)) if reducing else 1.0)

        reach, ranks = self.reach, self.ranks
        if isinstance(ranks, float):
            return bandwidth(reach, ranks)
        if ranks.size and (ranks == ranks.flat[0]).all() and (reach == reach.flat[0]).all():  # one link, mostly
            return np.full(reach.shape, bandwidth(reach.flat[0], ranks.flat[0]))
        groups, which = np.unique(np.stack([reach.reshape(-1), ranks.reshape(-1)]), axis=1, return_inverse=True)
        return np.array([bandwidth(*span) for span in groups.T])[which].reshape(reach.shape)


def shape(row: Row) -> Exchange:
    """The collectives of rows with `collective, ranks, bytes`, optional `across_nodes`, `members` and `reach`."""
    collective = text(row, "collective")
    if collective not in SENT:
        raise UnknownNameError("collective", collective, SENT)
    across, members = bool(np.any(column(row, "across_nodes", 0.0))), int(np.max(column(row, "members", 1.0)))
    row = {"reach": row["ranks"], **row}
    return Exchange.of(row, collective=collective, across_nodes=across, members=members)


def bound(exchange: Exchange, hardware: Hardware) -> Bound:
    """Bytes sent by a device over its link bandwidth; a switch that reduces takes them once."""
    seconds = exchange.sent / exchange.link(hardware, reducing=exchange.reduces)
    return Bound(seconds, np.zeros_like(seconds))


def terms(exchange: Exchange, hardware: Hardware, parameters: Parameters) -> Terms:
    """Latency and sending in the faster protocol of each row: one after the other, or overlapping in their ramp."""
    alone = exchange.ranks <= 1
    within = np.full_like(exchange.ranks, exchange.members) if exchange.across_nodes else exchange.ranks
    position, known = np.log2(np.maximum(within, 1.0)), np.log2(RANKS)
    latency = np.interp(position, known, [parameters[f"latency_{count}"] for count in RANKS])
    growth = max(0.0, parameters["latency_8"] - parameters["latency_4"])
    latency = latency + growth * np.maximum(position - 3.0, 0.0)
    efficiency = np.interp(position, known, [parameters[f"efficiency_{count}"] for count in RANKS])
    if exchange.across_nodes:
        network = hardware.crossing
        chunk = np.minimum(exchange.bytes, CHUNK) / (network.efficiency * hardware.link(NETWORK).bandwidth)
        latency, efficiency = (
            latency + exchange.hops * (network.hop + chunk),
            np.full_like(latency, network.efficiency),
        )
    sending = exchange.sent / (efficiency * exchange.link(hardware))
    greeting, slowly = latency * parameters["handshake"], sending / parameters["low_latency_share"]
    low = alone | (latency + slowly <= smooth_maximum(greeting, sending, parameters["sharpness"]))
    first = low & np.logical_not(alone)
    return Terms(
        (
            Term("latency", "low latency: latency among the ranks of a node, and hops", np.where(first, latency, 0.0)),
            Term("sending slowly", "low latency: sent / (low_latency_share e link)", np.where(first, slowly, 0.0)),
        ),
        Term("handshake", "high bandwidth: handshake latency", np.where(low, 0.0, greeting)),
        Term("sending", "high bandwidth: sent / (e link)", np.where(low, 0.0, sending)),
        parameters["sharpness"],
    )
