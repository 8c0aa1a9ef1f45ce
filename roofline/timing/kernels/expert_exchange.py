"""Time of the exchanges of expert parallelism by the libraries made for them: dispatch of tokens, combine of sums.

Each of `ranks` devices, `members` of them in a node, has `tokens` whose rows of `row_bytes` go to the devices of their
`top_k` experts; below, row is `row_bytes`, k `top_k`, `link` the bandwidth of a device's link within the node, and
`network` the part of its bandwidth to other nodes that large messages achieve. With uniform routing a token reaches
D(a) = a (1 - (1 - 1/a)^k) of `a` devices or nodes, the expected number of distinct ones in k draws, unless rows say how
many (`reached`, `reached_nodes`), as routing limited to groups of experts does.

DeepEP, low latency. A row is sent to every expert of a token, within a node over its link, to others over the network
without a CPU; both run at once:

    T_link     tokens k row members / (ranks local_efficiency link)
    T_network  tokens k row (1 - members / ranks) (1 + (spine - 1) (1 - 1 / members)) / network
    time       t = latency + per_expert experts + hops + max(T_link, T_network)

of which all rows but those for the device of equal number in a node go between rails (`roofline.specs.network`).

DeepEP, normal. A row crosses the network once for each node, and is forwarded within it to each device; `sms`
multiprocessors, which compute misses meanwhile, move what they can:

    T_link     tokens D(ranks) row (1 - 1/members) / min(local_efficiency link, sms unit_rate)
    T_network  tokens D(nodes) row (1 - 1/nodes) / (network_share network)
    time       t = latency + hops + max(T_link, T_network)

NVLink all-to-all (TensorRT-LLM), one-sided (the sender writes) or two-sided (through buffers, after a preparation):

    T_link     tokens D(ranks) row (1 - 1/ranks) / (local_efficiency link)
    T_network  tokens D(nodes) row (1 - 1/nodes) / network          0 within one node
    time       t = latency + rank_doubling log2(ranks) + prepare tokens + max(T_link, T_network)

The hops over n nodes are (crossing + doubling log2 n) times that of the network (`roofline.specs.network`).
"""

from __future__ import annotations

from msgspec import Struct

from roofline.core import numeric as np
from roofline.core.parameters import Parameter, Unit
from roofline.specs.hardware import NETWORK, Hardware, Span
from roofline.timing.kernels.model import Array, Bound, Parameters, Row, Term, Terms, aligned, column

SMS = 20.0
"""Multiprocessors that DeepEP's normal kernels take by default (Buffer.num_sms)."""

_LATENCY = Parameter("latency", Unit.SECONDS, 1e-6, 300e-6, 12e-6, "an exchange of no tokens in a node")
_LOCAL = Parameter("local_efficiency", Unit.RATIO, 0.01, 1.0, 0.6, "achieved fraction of the link in a node")
_CROSSING = Parameter("crossing", Unit.RATIO, 0.0, 20.0, 1.0, "hops of an exchange with other nodes")
_DOUBLING = Parameter("doubling", Unit.RATIO, 0.0, 20.0, 0.3, "further hops each time that the nodes double")

LOW_LATENCY = (
    _LATENCY,
    Parameter("per_expert", Unit.SECONDS, 0.0, 1e-6, 8e-9, "flags and counts of an expert"),
    _LOCAL,
    _CROSSING,
    _DOUBLING,
)
NORMAL = (
    _LATENCY,
    _LOCAL,
    Parameter("unit_rate", Unit.BANDWIDTH, 1e9, 1e12, 13e9, "bytes a second that a multiprocessor moves"),
    _CROSSING,
    _DOUBLING,
    Parameter("network_share", Unit.RATIO, 0.05, 1.2, 0.9, "achieved bandwidth over that of large messages"),
)
NVLINK = (
    _LATENCY,
    Parameter("rank_doubling", Unit.SECONDS, 0.0, 50e-6, 2e-6, "latency each time that the ranks double"),
    Parameter("prepare", Unit.SECONDS, 0.0, 1e-6, 0.0, "preparation of a token's route"),
    _LOCAL,
)


class Routing(Struct, frozen=True):
    """Exchanges of `tokens` a rank among `ranks` devices; arrays of one shape (see the module)."""

    tokens: Array
    row_bytes: Array
    top_k: Array
    experts: Array
    ranks: Array
    members: Array
    sms: Array
    reached: Array
    reached_nodes: Array

    @property
    def nodes(self) -> Array:
        """Nodes that the ranks are in."""
        return np.ceil(self.ranks / self.members)


def _distinct(among: Array, top_k: Array) -> Array:
    """Expected devices or nodes of `among` that have any of a token's experts, with uniform routing."""
    found: Array = among * (1.0 - (1.0 - 1.0 / among) ** top_k)
    return found


def shape(row: Row) -> Routing:
    """The exchanges of rows with these columns; without `members` all ranks are in one node, without `sms` on SMS."""
    names = ("tokens", "row_bytes", "top_k", "experts", "ranks")
    columns = [column(row, name) for name in names]
    members = column(row, "members") if "members" in row else columns[-1]
    top_k, ranks = columns[2], columns[4]
    found = (
        column(row, "reached") if "reached" in row else _distinct(ranks, top_k),
        column(row, "reached_nodes") if "reached_nodes" in row else _distinct(np.ceil(ranks / members), top_k),
    )
    return Routing(*aligned(*columns, members, column(row, "sms", SMS), *found))


def bound(routing: Routing, hardware: Hardware) -> Bound:
    """Every token once to each node beyond its own over the network, or to each other device of one node."""
    near = _link_bandwidth(routing, hardware)
    local = routing.tokens * routing.row_bytes * routing.reached * (1 - 1 / routing.ranks) / near
    far = _network_bytes(routing) / _network_bandwidth(routing, hardware)
    return Bound(np.zeros_like(local), np.where(routing.nodes > 1, far, local))


def low_latency_terms(routing: Routing, hardware: Hardware, parameters: Parameters) -> Terms:
    """Latency, hops, and the longer of sending over the link and over the network."""
    sent = routing.tokens * routing.top_k * routing.row_bytes
    inside = routing.members / routing.ranks
    local = sent * inside / (parameters["local_efficiency"] * _link_bandwidth(routing, hardware))
    other_rails = 1 - 1 / routing.members  # the share of a device's rows for other nodes
    far = sent * (1 - inside) / (_network_efficiency(routing, hardware) * _network_bandwidth(routing, hardware))
    if np.any(routing.nodes > 1):
        far = far * (1 + (hardware.crossing.spine - 1) * other_rails)
    return Terms(
        (
            Term("latency", "latency", parameters["latency"]),
            Term("experts", "per_expert experts", parameters["per_expert"] * routing.experts),
            _hops(routing, hardware, parameters, between=True),
            Term("sending", "max(rows in the node / link, rows to others / network)", np.maximum(local, far)),
        )
    )


def normal_terms(routing: Routing, hardware: Hardware, parameters: Parameters) -> Terms:
    """Latency, hops, and the longer of forwarding in the node and the network."""
    rows = routing.tokens * routing.row_bytes
    rate = np.minimum(
        parameters["local_efficiency"] * _link_bandwidth(routing, hardware), routing.sms * parameters["unit_rate"]
    )
    local = rows * routing.reached * (1 - 1 / routing.members) / rate
    network = (
        parameters["network_share"] * _network_efficiency(routing, hardware) * _network_bandwidth(routing, hardware)
    )
    return Terms(
        (
            Term("latency", "latency", parameters["latency"]),
            _hops(routing, hardware, parameters),
            Term(
                "sending",
                "max(rows to devices / min(link, SMs), rows to nodes / network)",
                np.maximum(local, _network_bytes(routing) / network),
            ),
        )
    )


def nvlink_terms(routing: Routing, hardware: Hardware, parameters: Parameters) -> Terms:
    """Latency, preparation, and the longer of sending over the link and, among several nodes, over the network."""
    rows = routing.tokens * routing.row_bytes * routing.reached * (1 - 1 / routing.ranks)
    rate = parameters["local_efficiency"] * _link_bandwidth(routing, hardware)
    far = _network_bytes(routing) / (_network_efficiency(routing, hardware) * _network_bandwidth(routing, hardware))
    return Terms(
        (
            Term("latency", "latency", parameters["latency"]),
            Term("ranks", "rank_doubling log2(ranks)", parameters["rank_doubling"] * np.log2(routing.ranks)),
            Term("prepare", "prepare tokens", parameters["prepare"] * routing.tokens),
            Term("sending", "rows to other ranks / (local_efficiency link)", np.maximum(rows / rate, far)),
        )
    )


def _network_bytes(routing: Routing) -> Array:
    """Bytes of a device that cross the network, each row once for a node beyond its own."""
    nodes = routing.nodes
    crossed: Array = routing.tokens * routing.row_bytes * routing.reached_nodes * (1 - 1 / nodes)
    return crossed


def _link_bandwidth(routing: Routing, hardware: Hardware) -> float:
    """Bandwidth to the devices of the node (B/s)."""
    members = int(np.max(routing.members))
    return hardware.link(Span(max(members, 2), across_nodes=False)).bandwidth_among(members)


def _network_bandwidth(routing: Routing, hardware: Hardware) -> float:
    """Bandwidth to other nodes (B/s); infinite within one."""
    return hardware.link(NETWORK).bandwidth if np.any(routing.nodes > 1) else np.inf


def _network_efficiency(routing: Routing, hardware: Hardware) -> float:
    return hardware.crossing.efficiency if np.any(routing.nodes > 1) else 1.0


def _hops(routing: Routing, hardware: Hardware, parameters: Parameters, between: bool = False) -> Term:
    """The hops of an exchange over several nodes, and `between` rails."""
    nodes = routing.nodes
    hops = np.where(nodes > 1, parameters["crossing"] + parameters["doubling"] * np.log2(nodes), 0.0)
    hop = hardware.crossing.hop + between * hardware.crossing.spine_hop if np.any(nodes > 1) else 0.0
    return Term("hops", "(crossing + doubling log2(nodes)) hop", hops * hop)
