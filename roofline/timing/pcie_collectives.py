"""Collectives over PCIe: the achieved fraction of the link is the host's, the other constants are the library's.

    efficiency(r) = fraction of the link that a ring all-reduce among r devices achieves on the host

Latency, the ramp to full bandwidth and the low-latency protocol are NCCL's and carry over between machines: with the
constants of an L40S machine and its own fractions, all-reduces of an RTX PRO 6000 server are predicted within 12% on
the mean, the other way round within 13%, although 8 devices achieve fractions that differ by a factor of 9.

Two devices that are peers exchange small messages with the engine's own all-reduce, though NCCL is faster: vLLM and
SGLang ask only whether a node has two devices, and whether a message has less than `OWN_BYTES`. The kernel reads the
other device's memory, at 15 GB/s on an RTX PRO 6000 and 18 GB/s on an L40S, where NCCL writes 36 and 20 GB/s.

The interval covers the machines of the host's kind. Where no host is named, the expected time is that of
`DEFAULT_HOST`, and the interval covers all bundled hosts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache

import numpy as np
from msgspec.structs import replace

from roofline.specs.hardware import Hardware
from roofline.specs.host import DEFAULT_HOST, RANKS, Host, list_hosts, load_host
from roofline.timing.calibration import Expected, Match
from roofline.timing.kernels import Row

OWN_BYTES = 8 * 2**20
"""Bytes of a message from which engines leave an all-reduce to NCCL (max_size in vLLM's custom_all_reduce.py)."""

PEERLESS = "GeForce"
"""Cards whose driver allows no peer-to-peer transfers over PCIe, so that engines switch their own kernel off."""


class OwnMatch(Match, frozen=True, kw_only=True):
    """Constants of an engine's own all-reduce, and those of `nccl` for messages of OWN_BYTES and more."""

    nccl: Match

    def expected(self, row: Row, hardware: Hardware) -> Expected:
        """Expected seconds of the kernel that an engine takes for each message."""
        own = Match.expected(self, row, hardware)
        other = self.nccl.expected(row, hardware)
        small = np.asarray(row["bytes"], float) < OWN_BYTES
        times, inside = (np.where(small, mine, theirs) for mine, theirs in zip(own[:2], other[:2], strict=True))
        return Expected(times, inside, self.basis, self.origin)


def of_two_peers(own: Match | None, nccl: Match, hardware: Hardware, ranks: int) -> Match:
    """The constants of an all-reduce over PCIe by an engine with an `own` kernel: those of NCCL but for two peers."""
    if own is None or ranks != 2 or hardware.vendor != "NVIDIA" or PEERLESS in hardware.title:
        return nccl
    fields = {name: getattr(own, name) for name in Match.__struct_fields__}
    return OwnMatch(**fields, nccl=nccl)


class HostMatch(Match, frozen=True, kw_only=True):
    """Constants of a collective on a host, and those on the `fastest` and the `slowest` machine that it may be."""

    fastest: Match
    slowest: Match

    def expected(self, row: Row, hardware: Hardware) -> Expected:
        """Expected seconds: p50 on the host, p10 on the fastest machine, p90 on the slowest one."""
        found, low, high = (Match.expected(match, row, hardware) for match in (self, self.fastest, self.slowest))
        return found._replace(times=np.stack([low.low, found.mid, high.high]))


def on_host(match: Match, hardware: Hardware) -> Match:
    """The constants of a collective over the PCIe links of the hardware's host."""
    host = hardware.host or load_host(DEFAULT_HOST)
    source = f"{match.source}; host {host.name}{'' if hardware.host else ' (not named)'}"
    match = replace(match, source=source)
    fastest, slowest = _extremes(hardware.host)
    fields = {name: getattr(_with(match, host.all_reduce), name) for name in Match.__struct_fields__}
    return HostMatch(**fields, fastest=_with(match, fastest), slowest=_with(match, slowest))


def _with(match: Match, fractions: Mapping[int, float]) -> Match:
    """The constants with other fractions of the link."""
    constants = {**match.fit.parameters, **{f"efficiency_{ranks}": fractions[ranks] for ranks in RANKS}}
    return replace(match, fit=replace(match.fit, parameters=constants))


@lru_cache(maxsize=64)
def _extremes(named: Host | None) -> tuple[Mapping[int, float], Mapping[int, float]]:
    """The largest and the smallest fraction by number of devices: of a host, or of all bundled ones."""
    hosts: Iterable[Host] = [named] if named is not None else [load_host(name) for name in list_hosts()]
    most = {ranks: max(min(host.all_reduce[ranks] / host.spread[0], 1.0) for host in hosts) for ranks in RANKS}
    return most, {ranks: min(host.all_reduce[ranks] / host.spread[1] for host in hosts) for ranks in RANKS}
