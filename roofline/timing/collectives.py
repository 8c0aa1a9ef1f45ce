"""Collectives beyond the fabric of a node: over several nodes, and through a host.

Over several nodes. Constants of a collective are those of its library within a node;
`roofline.timing.kernels.collective` adds the network, whose time is known by kind, not by cluster: `Network.spread` is
p10 and p90 of what clusters of a kind, and ranks that wait for the last of them, make of it, independent of the error
of the constants. Ranks of a step wait longer for a collective than those of a benchmark, which start together: LATE
seconds longer, and EXCHANGED where experts exchange the tokens of data-parallel ranks.

Over PCIe. The achieved fraction of the link is the host's, the other constants are the library's:

    efficiency(r) = fraction of the link that a ring all-reduce among r devices achieves on the host

Latency, the ramp to full bandwidth and the low-latency protocol are NCCL's and carry over between machines: with the
constants of an L40S machine and its own fractions, all-reduces of an RTX PRO 6000 server are predicted within 12% on
the mean, the other way round within 13%, although 8 devices achieve fractions that differ by a factor of 9. The
interval covers the machines of the host's kind. Where no host is named, the expected time is that of `DEFAULT_HOST`,
and the interval covers all bundled hosts.

Two devices that are peers exchange small messages with the engine's own all-reduce, though NCCL is faster: vLLM and
SGLang ask only whether a node has two devices, and whether a message has no more than `OWN_BYTES`. The kernel reads the
other device's memory, at 15 GB/s on an RTX PRO 6000 and 18 GB/s on an L40S, where NCCL writes 36 and 20 GB/s.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache

import numpy as np
from msgspec.structs import replace

from roofline.specs.hardware import Hardware
from roofline.specs.host import DEFAULT_HOST, RANKS, Host, list_hosts, load_host
from roofline.timing.calibration import Expected, Match
from roofline.timing.intervals.kernels import wider
from roofline.timing.kernels import Row

LATE = 20e-6
"""Seconds that a collective over nodes takes in a step beyond its time in a benchmark.

Of DeepSeek-R1's 122 all-reduces among 16 H100 in two nodes, with one request a worker (InferenceX), 5 to 11 us with
TensorRT-LLM 1.2 (13.9 and 14.6 ms a token), 28 us with SGLang 0.5.8.
"""

EXCHANGED = 100e-6
"""Seconds that an exchange of expert ranks over nodes takes beyond a benchmark's: it waits for the slowest rank.

110 us of 116 exchanges among 16 H100 in two nodes with TensorRT-LLM 1.2, which gathers, 160 with few requests in SGLang
0.5.8 with DeepEP (InferenceX); 16 H200 with SGLang (lmsys.org/blog/2025-07-17-mtp) give 100, and did not choose it.
"""

OWN_BYTES = 8 * 2**20 - 1
"""Bytes of a message beyond which engines leave an all-reduce to NCCL (max_size in vLLM's custom_all_reduce.py)."""

PEERLESS = "GeForce"
"""Cards whose driver allows no peer-to-peer transfers over PCIe, so that engines switch their own kernel off."""


class SizedMatch(Match, frozen=True, kw_only=True):
    """The constants of the kernels that run up to a `limit` of a column (`below`) and beyond it (`above`)."""

    column: str
    limit: float
    below: Match
    above: Match

    def chosen(self, row: Row) -> Match:
        """The constants of the kernel that runs for a single row."""
        return self.below if float(np.ravel(row[self.column])[0]) <= self.limit else self.above

    def expected(self, row: Row, hardware: Hardware) -> Expected:
        """Expected seconds of the kernel that runs for each row."""
        large, small = self.above.expected(row, hardware), self.below.expected(row, hardware)
        below = np.asarray(row[self.column], float) <= self.limit
        times, inside = (np.where(below, one, other) for one, other in zip(small[:2], large[:2], strict=True))
        return Expected(times, inside, self.basis, self.origin)


class NetworkMatch(Match, frozen=True, kw_only=True):
    """The constants `one` of an exchange over nodes, and p10 and p90 of its time on networks of the kind over that."""

    one: Match
    networks: tuple[float, float]
    routed: bool = False

    def chosen(self, row: Row) -> Match:
        """The constants of the exchange itself."""
        return self.one.chosen(row)

    def expected(self, row: Row, hardware: Hardware) -> Expected:
        """Expected seconds, with the errors of the constants and of the network."""
        found = self.one.expected(row, hardware)
        return found._replace(times=wider(found.times + self.late, self.networks))

    @property
    def late(self) -> float:
        """Seconds of an exchange in a step beyond a benchmark's."""
        if self.routed:
            return EXCHANGED
        return LATE if self.one.fit.op == "collective" else 0.0


class HostMatch(Match, frozen=True, kw_only=True):
    """Constants of a collective on a host, and those on the `fastest` and the `slowest` machine that it may be."""

    fastest: Match
    slowest: Match

    def expected(self, row: Row, hardware: Hardware) -> Expected:
        """Expected seconds: p50 on the host, p10 on the fastest machine, p90 on the slowest one."""
        found, low, high = (Match.expected(match, row, hardware) for match in (self, self.fastest, self.slowest))
        return found._replace(times=np.stack([low.low, found.mid, high.high]))


def over_network(match: Match, hardware: Hardware, routed: bool = False) -> Match:
    """The constants of a collective over the network of the hardware, or of an exchange of `routed` tokens."""
    network = hardware.crossing
    source = f"{match.source}; network {network.name}{'' if hardware.network else ' (not named)'}"
    return NetworkMatch.of(match, source=source, one=match, networks=network.spread, routed=routed)


def of_two_peers(own: Match | None, nccl: Match, hardware: Hardware, ranks: int) -> Match:
    """The constants of an all-reduce over PCIe by an engine with an `own` kernel: those of NCCL but for two peers."""
    if own is None or ranks != 2 or hardware.vendor != "NVIDIA" or PEERLESS in hardware.title:
        return nccl
    return SizedMatch.of(own, column="bytes", limit=OWN_BYTES, below=own, above=nccl)


def on_host(match: Match, hardware: Hardware) -> Match:
    """The constants of a collective over the PCIe links of the hardware's host."""
    host = hardware.host or load_host(DEFAULT_HOST)
    match = replace(match, source=f"{match.source}; host {host.name}{'' if hardware.host else ' (not named)'}")
    fastest, slowest = (_with_fractions(match, fractions) for fractions in _extremes(hardware.host))
    return HostMatch.of(_with_fractions(match, host.all_reduce), fastest=fastest, slowest=slowest)


def _with_fractions(match: Match, fractions: Mapping[int, float]) -> Match:
    """The constants with other fractions of the link."""
    constants = {**match.fit.parameters, **{f"efficiency_{ranks}": fractions[ranks] for ranks in RANKS}}
    return replace(match, fit=replace(match.fit, parameters=constants))


@lru_cache(maxsize=64)
def _extremes(named: Host | None) -> tuple[Mapping[int, float], Mapping[int, float]]:
    """The largest and the smallest fraction by number of devices: of a host, or of all bundled ones."""
    hosts: Iterable[Host] = [named] if named is not None else [load_host(name) for name in list_hosts()]
    most = {ranks: max(min(host.all_reduce[ranks] / host.spread[0], 1.0) for host in hosts) for ranks in RANKS}
    return most, {ranks: min(host.all_reduce[ranks] / host.spread[1] for host in hosts) for ranks in RANKS}
