"""What public benchmarks of kernels time beside the kernel that an engine runs, by the software that their rows name.

Their tables hold one time for each shape; what it is of differs from collector to collector (ai-dynamo/aiconfigurator).
It becomes columns of the rows, so that the constants of a kernel mean the same in every table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from lab.tables.releases import Releases
from roofline.timing.variants import Variant, variants
from roofline.validate.tables.rows import CACHES, Measurements, origin

if TYPE_CHECKING:
    import pandas as pd

KEYS_ONLY = Releases("tensorrt-llm", before="1.3.0rc20")
"""Software whose public tables time decode over a cache of keys alone, whose pages stand for the values, too.

Their collector made the cache of MLA, `SELFKONLY`, up to 1.3.0rc10, and that of serving from 1.3.0rc20 on
(ai-dynamo/aiconfigurator, issue 1379 and pull request 1356): kernels beat the memory's datasheet up to 1.7 times.
"""

BLACKWELL = ("b200-sxm", "gb200", "b300-sxm", "gb300")
"""GPUs of Blackwell with HBM, by the names of public tables."""

UNGROUPED = Releases("tensorrt-llm", since="1.3.0.dev0"), BLACKWELL
"""Software and GPUs whose KEYS_ONLY tables time the kernel without grouped heads, whatever the group.

There the cache without values has no other kernel: the time on B200 grows with the query heads, where 1.2 runs the
grouped kernel, and is that of 1.2 within 2% where the group is too large for it.
"""

EAGER = Releases("vllm", before="0.15"), ("fp8", "fp8_block")
"""Software and formats of GEMMs whose activations are quantized in PyTorch operators, which a served model compiles.

vLLM compiles `QuantFP8.forward_native` outside of models, too, since 0.15 (vllm-project/vllm, pull request 32806).
"""

UNPACKED = Releases("sglang"), "fp8_block", BLACKWELL
"""Software, format and GPUs of GEMMs whose benchmark gives DeepGEMM the scales of weights in 32 bits, which it converts
in every call (`scale_b` in collector/sglang/collect_gemm.py); SGLang converts them when it loads a model
(`requant_weight_ue8m0_inplace` in Fp8LinearMethod). On Hopper, where nothing is converted, the tables of SGLang and
TensorRT-LLM agree within a microsecond; on B200 they differ by 5 to 50, by weights and not by tokens."""

VLLM = Releases("vllm")


class Ungraphed(NamedTuple):
    """Tables of vLLM's kernels without CUDA graphs, whose host time hides short kernels.

    Those of a format (all where it is empty) whose 5th percentile is at least so many microseconds.
    """

    op: str
    format: str
    shortest: float


UNGRAPHED = (
    Ungraphed("gemm", "fp8_block", 40.0),
    Ungraphed("mla_prefill", "", 0.0),
)
"""Block-scaled GEMMs of one shape take 5 to 15 us in the tables of SGLang and TensorRT-LLM, and 50 to 300 in vLLM's,
whatever m; but for those of 0.14 on Hopper, with graphs and eager quantization: 21."""

FLASHINFER, DEEPGEMM, PACKED = "FlashInfer", "DeepGemm", "DeepGemm, packed scales"
"""What the names of vLLM's block-scaled GEMMs begin with; others are CUTLASS's and Triton's. Tables before 0.24 name
none: there Hopper runs FlashInfer's for m < 32, and other GPUs with HBM DeepGEMM's, which packs scales on Blackwell."""

CALLED = {FLASHINFER: (0.35, 0.35), DEEPGEMM: (0.55, 0.5), PACKED: (1.4, 1.05)}
"""Host time of a call where m is no multiple of 4, to which scales are padded, and of others, over that of CUTLASS's.

That is 165 to 180 us on the x86 hosts of H100, H200, B200 and RTX PRO 6000 (vLLM 0.24), the others 60, 93 and 86, 236
and 178 us."""

GRACE = ("gb200", "gb300"), 1.75
"""GPUs with a Grace CPU, by the names of public tables, and how long a call takes there: 288 and 305 us beside the 165
and 178 of B200's host, 49 and 22 for all-reduces without a graph. Its cores are slower than those of x86 servers, so
that small batches wait for the host (Vellaisamy et al., arXiv 2504.11750)."""


def ran(software: pd.Series[str], *releases: Releases) -> pd.Series[bool]:
    """Whether each row's software is one of such releases; False where it is missing."""
    names = software.fillna("").astype(str)
    known = {name: any(one.include(*origin(name)) for one in releases) for name in names.unique()}
    return names.map(known).astype(bool)


def timed_beside(frame: pd.DataFrame, op: str) -> dict[str, pd.Series[float]]:
    """The columns of rows of one op that say what they time, where they lack them."""
    if "software" not in frame:
        return {}
    software = frame["software"].fillna("").astype(str)
    found = {
        name: _matches(software, _releases(variant)) * value
        for variant in variants()
        if variant.op == op and not variant.kernel
        for name, value in variant.columns.items()
    }
    if op == "attention_decode":
        found["keys_only"] = _matches(software, KEYS_ONLY)
        found["ungrouped"] = (
            found["keys_only"] * _matches(software, UNGROUPED[0]) * frame["hardware"].isin(UNGROUPED[1])
        )
    if op == "gemm" and "dtype" in frame:
        found["eager"] = _matches(software, EAGER[0]) * frame["dtype"].isin(EAGER[1])
        there = (frame["dtype"] == UNPACKED[1]) & frame["hardware"].isin(UNPACKED[2])
        found["unpacked"] = _matches(software, UNPACKED[0]) * there
    if op in {kind.op for kind in UNGRAPHED} and "dtype" in frame:
        found["graph"] = 1.0 - _ungraphed(frame, software, op)
        found["called"] = _called(frame, op)
    return {name: column for name, column in found.items() if name not in frame}


def gemm_formats(frame: pd.DataFrame) -> pd.Series[str]:
    """The formats of GEMMs by the kernel that quantizes their activations."""
    dtypes, block = frame["dtype"], "fp8_block"
    if "software" not in frame:
        return dtypes
    (variant,) = (one for one in variants() if one.op == "gemm" and block in one.formats)
    old = ran(frame["software"], _releases(variant)) & frame["hardware"].isin(BLACKWELL)
    return dtypes.mask((dtypes == block) & old, variant.named(block))


def _releases(variant: Variant) -> Releases:
    """The versions of its engine that run a variant."""
    return Releases(variant.engine, variant.before, variant.since)


def _matches(software: pd.Series[str], releases: Releases) -> pd.Series[float]:
    """1 where the software is one of the releases, else 0."""
    return ran(software, releases).astype(np.float64)


def _ungraphed(frame: pd.DataFrame, software: pd.Series[str], op: str) -> pd.Series[Any]:
    """1 for the rows of tables without CUDA graphs, else 0."""
    formats = frame["dtype"].astype(str)
    tables = frame["latency_us"].groupby([frame["hardware"].astype(str), software, formats])
    short, chosen = tables.transform("quantile", 0.05), np.zeros(len(frame), dtype=bool)
    for kind in UNGRAPHED:
        if kind.op == op:
            of_format = (formats == kind.format) | (not kind.format)
            chosen |= (of_format & (short >= kind.shortest)).to_numpy()
    return _matches(software, VLLM) * chosen


def _called(frame: pd.DataFrame, op: str) -> pd.Series[float]:
    """The host time of each row's call over that of CUTLASS's kernel from an x86 host; of other ops over the latter."""
    found = frame["hardware"].isin(GRACE[0]) * (GRACE[1] - 1.0) + 1.0
    if op != "gemm" or "kernel" not in frame:
        return found
    kernels, packed = frame["kernel"].fillna("").astype(str), frame["hardware"].isin(BLACKWELL)
    unnamed, odd = kernels == "vllm_default", frame["m"] % 4 != 0
    flashinfer = kernels.str.startswith(FLASHINFER) | (unnamed & ~packed & (frame["m"] < 32))
    deepgemm = kernels.str.startswith(DEEPGEMM) | (unnamed & ~flashinfer)
    for name, own in ((FLASHINFER, flashinfer), (DEEPGEMM, deepgemm & ~packed), (PACKED, deepgemm & packed)):
        found = found.mask(own, found * np.where(odd, *CALLED[name]))
    return found


def is_ungraphed(part: Measurements) -> bool:
    """Whether the rows were timed without CUDA graphs."""
    if "graph" not in part.frame or np.isin(part.texts("cache"), CACHES).any():
        return False
    return bool(np.all(part.numbers("graph", 1.0) == 0.0))
