"""Weight sparsity, low-rank factorisation and adapters of linear layers."""

from __future__ import annotations

from types import MappingProxyType

from msgspec.structs import replace

from roofline.core.errors import RooflineError, UnsupportedError
from roofline.graph.rewrite import Adapter, LowRank
from roofline.scenario.scenario import Scenario
from roofline.specs.formats import Format, find_format, pruned, structured
from roofline.techniques.changes import with_precision, with_rewrite, with_weight_format
from roofline.techniques.quantization import stored, with_formats


def dense_kernels(scenario: Scenario, _: str, *, sparsity: float) -> Scenario:  # noqa: ARG001 - no effect on costs
    """The scenario as it is: dense kernels store, read and multiply zeros."""
    return scenario


SPARSE_TENSOR_CORE_FAMILIES = ("ampere", "ada", "hopper", "blackwell")
"""NVIDIA's architectures with sparse tensor cores (their whitepapers)."""


def n_m_sparsity(scenario: Scenario, name: str, *, n: int, m: int) -> Scenario:
    """N:M sparsity on sparse tensor cores, which multiply the `n` weights kept of every `m`."""
    hardware = scenario.hardware
    if (n, m) not in ((1, 2), (2, 4), (4, 8)):
        raise RooflineError(f"{name}: sparse tensor cores multiply 1:2, 2:4 or 4:8, got {n}:{m}")
    if hardware.family not in SPARSE_TENSOR_CORE_FAMILIES:
        raise UnsupportedError(
            f"{name} is simulated for NVIDIA's sparse tensor cores (Ampere and later), and {hardware.name} is"
            f" of the family {hardware.family}"
        )
    return with_weight_format(scenario, lambda dense: structured(dense, n, m))


def sparse_load(scenario: Scenario, _: str, *, sparsity: float, index: int) -> Scenario:
    """Flash-LLM: zeros are not stored, each nonzero has an `index` of as many bits, and all are multiplied."""
    return with_weight_format(scenario, lambda dense: pruned(dense, sparsity, index))


def low_rank(scenario: Scenario, name: str, *, share: float) -> Scenario:
    """Every linear layer as two factors with the fraction `share` of its weights."""
    return with_rewrite(scenario, name, LowRank(share))


def low_rank_plus_sparse(scenario: Scenario, name: str, *, low_rank: float, sparse: float) -> Scenario:
    """Every linear layer as a low-rank and a structured sparse part, counted as one pair of factors."""
    if low_rank + sparse > 1:
        total = f"{low_rank + sparse:g}"
        raise RooflineError(f"{name}: low_rank and sparse add up to {total}, more than all of the weights")
    return with_rewrite(scenario, name, LowRank(low_rank + sparse))


def quantized_low_rank(scenario: Scenario, name: str, *, share: float, bits: int) -> Scenario:
    """LPLR: low-rank factors in few bits."""
    return with_formats(low_rank(scenario, name, share=share), name, weights=stored(name, bits, bits))


def tensor_train_embedding(scenario: Scenario, name: str, *, ratio: float) -> Scenario:
    """TensorGPT: an embedding table that is `ratio` times smaller."""
    model, precision = scenario.model, scenario.precision
    if model.patch or model.tied_embeddings:
        why = "shares its embedding with lm_head" if model.tied_embeddings else "has no embedding table"
        raise UnsupportedError(f"{name} compresses the embedding table, and {model.name} {why}")
    scheme = precision.weights
    table = scheme.format_of("embedding", precision.base, model.layers)
    small = Format(f"{table.name}-tensor-train", table.bits / ratio, table.arithmetic)
    special = MappingProxyType({**scheme.special, "embedding": small})
    return with_precision(scenario, weights=replace(scheme, name=f"{scheme.name}+{name}", special=special))


def adapter(
    scenario: Scenario,
    name: str,
    *,
    rank: int,
    adapters: int = 1,
    slots: int = 0,
    largest: int = 0,
    skew: float = 0.0,
    experts: int = 0,
    weights: str = "",
) -> Scenario:
    """A low-rank adapter beside every linear layer, whose weights have the format `weights` unless it is "".

    Sequences choose among `adapters`, of which so many `slots` are on the device, each of the `largest` rank of all
    (0: all, and `rank`), as engines allot them (vLLM's --max-loras and --max-lora-rank).
    """
    if slots > adapters or 0 < largest < rank:
        raise RooflineError(f"{name}: slots are at most the adapters, and the largest rank at least the mean one")
    if weights:
        scenario = with_formats(scenario, name, weights=find_format(weights))
    found = Adapter(rank, adapters, slots or None, largest or None, skew, bool(experts))
    return with_rewrite(scenario, name, found)
