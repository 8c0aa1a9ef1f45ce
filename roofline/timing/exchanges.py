"""Which exchange expert ranks run (rows of `exchanges.yaml`), and the constants of its kernels.

DeepEP has a kernel for the few tokens of decode and one for the many of prefill: up to `FEW` tokens a rank the former
runs. Gathering all tokens and scattering the sums are two collectives of NCCL; where ranks have different numbers of
tokens, as those of prompts, some engines take two all-reduces instead.
"""

from __future__ import annotations

from functools import lru_cache

from msgspec import convert

from roofline.bound.roof import Placement
from roofline.core.documents import bundled
from roofline.graph.op import Link
from roofline.graph.parallel import Parallelism
from roofline.specs.engine import Engine
from roofline.specs.hardware import Hardware
from roofline.timing.calibration import Calibration, Match
from roofline.timing.collectives import SizedMatch
from roofline.timing.kernels.shapes import KernelShape, collective_shape
from roofline.timing.variants import Dated

FEW = 256.0
"""Tokens of a rank up to which DeepEP's low-latency kernel runs: engines' buffers have 128 to 256 (SGLang's
SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK, vLLM's VLLM_MOE_DP_CHUNK_SIZE)."""

GATHERED, SUMMED, NCCL = "allgather_reducescatter", "all_reduces", "nccl"

MORI = "mori"
"""AMD's kernels (ROCm/mori), which send as DeepEP's normal ones do, with constants of their own on CDNA."""


class Choice(Dated, frozen=True, kw_only=True):
    """A row: what it is for, and the exchange that runs there. See the file for the meaning of each field."""

    exchange: str
    prompts: str = ""
    nodes: str = ""
    vendor: str = ""
    family: str = ""
    link: str = ""
    domain: int = 0
    ranks: int = 0

    def runs(self, engine: Engine, hardware: Hardware, several: bool, ranks: int) -> bool:
        """Whether an engine's version runs it on such hardware, over one or several nodes."""
        of_nodes = self.nodes in ("", "several" if several else "one") and hardware.node_devices >= self.domain
        links = (each for each in hardware.interconnects if each.scope == "node" and each.bridged is None)
        joined = not self.link or any(each.kind.startswith(self.link) for each in links)
        of_hardware = joined and self.vendor in ("", hardware.vendor) and self.family in ("", hardware.family)
        return self.includes(engine.name, engine.version) and of_nodes and of_hardware and ranks >= self.ranks


@lru_cache(maxsize=2)
def choices(part: str = "exchanges") -> tuple[Choice, ...]:
    """The rows of a part of the file, in their order."""
    return convert(bundled("timing/exchanges.yaml")[part], tuple[Choice, ...])


def exchange_of(placement: Placement, engine: Engine, prompts: bool = False) -> str:
    """The exchange of a placed graph's expert ranks, "" without any: the one asked for, or the engine's own.

    `prompts`: of a pass that computes prompts.
    """
    link = placement.network.exchange
    if link is None or link.routed is None:
        return ""
    if link.routed.exchange:
        return link.routed.exchange
    several = placement.nodes.span(link.reach).across_nodes
    return exchange_choice(engine, placement.hardware, several, link.ranks, prompts)


def exchange_choice(engine: Engine, hardware: Hardware, several: bool, ranks: int, prompts: bool = False) -> str:
    """The exchange that an engine's release runs among `ranks` of such hardware, over one or several nodes."""
    row = next((row for row in choices() if row.runs(engine, hardware, several, ranks)), None)
    if row is None:
        return NCCL
    return (prompts and row.prompts) or row.exchange


def other_exchanges(engine: Engine, hardware: Hardware, parallel: Parallelism) -> list[str]:
    """The exchanges that an engine runs when asked, other than that which a layout of such hardware has."""
    if not parallel.all_to_all:
        return []
    several = parallel.span(parallel.tensor * parallel.data).across_nodes
    own = parallel.exchange or exchange_choice(engine, hardware, several, parallel.expert)
    rows = (row for row in choices("offered") if row.runs(engine, hardware, several, parallel.expert))
    return [row.exchange for row in rows if row.exchange != own]


def exchange_shape(link: Link, exchange: str) -> KernelShape | None:
    """The row of the measurement schema for an exchange; None for NCCL's all-to-all, which the link itself is."""
    routed = link.routed
    if routed is None or exchange in ("", NCCL):
        return None
    if exchange in (GATHERED, SUMMED):
        name = "all_reduce" if exchange == SUMMED else "reduce_scatter" if routed.returns else "all_gather"
        return collective_shape(link, name, routed.tokens * (link.ranks * routed.plain_bytes))
    names = ("tokens", "row_bytes", "top_k", "experts", "reached", "reached_nodes")
    sizes = {name: getattr(routed, name) for name in names}
    op = "deepep_normal" if exchange in ("deepep", MORI) else exchange
    return KernelShape.of(op, {"direction": "combine" if routed.returns else "dispatch"}, **sizes, ranks=link.ranks)


def exchange_match(shape: KernelShape, exchange: str, calibration: Calibration) -> Match | None:
    """The constants of an exchange's kernels; None where they were not measured."""
    direction = str(shape.texts["direction"])
    match = calibration.find(shape.op, direction)
    if exchange != "deepep" or match is None:
        return match
    few = calibration.find("deepep_low_latency", direction)
    if few is None:
        return match
    return SizedMatch.of(match, column="tokens", limit=FEW, below=few, above=match)
