"""What public benchmarks of kernels time beside the kernel that an engine runs, by the software that their rows name.

Their tables hold one time for each shape; what it is of differs from collector to collector (ai-dynamo/aiconfigurator).
It becomes columns of the rows, so that the constants of a kernel mean the same in every table.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from roofline.timing.kernels.common import TRITON
from roofline.timing.kernels.mla import FOUR_PARTS, RESCHEDULES

if TYPE_CHECKING:
    import pandas as pd

KEYS_ONLY = re.compile(r"TensorRT-LLM v?(0|1\.[0-2]|1\.3\.0rc1?\d)\b", re.IGNORECASE)
"""Software whose public tables time decode over a cache of keys alone, whose pages stand for the values, too.

Their collector made the cache of MLA, `SELFKONLY`, up to 1.3.0rc10, and that of serving from 1.3.0rc20 on
(ai-dynamo/aiconfigurator, issue 1379 and pull request 1356): kernels beat the memory's datasheet up to 1.7 times.
"""

BLACKWELL = ("b200-sxm", "gb200", "b300-sxm", "gb300")
"""GPUs of Blackwell with HBM, by the names of public tables."""

UNGROUPED = re.compile(r"TensorRT-LLM v?1\.3\.0", re.IGNORECASE), BLACKWELL
"""Software and GPUs whose KEYS_ONLY tables time the kernel without grouped heads, whatever the group.

There the cache without values has no other kernel: the time on B200 grows with the query heads, where 1.2 runs the
grouped kernel, and is that of 1.2 within 2% where the group is too large for it.
"""

EAGER = re.compile(r"vLLM v?0\.(\d|1[0-4])(\.|$)", re.IGNORECASE), ("fp8", "fp8_block")
"""Software and formats of GEMMs whose activations are quantized in PyTorch operators, which a served model compiles.

vLLM compiles `QuantFP8.forward_native` outside of models, too, since 0.15 (vllm-project/vllm, pull request 32806).
"""

TRITON_QUANTIZED = re.compile(r"TensorRT-LLM v?(0|1\.[0-2]|1\.3\.0rc[0-5]\b)", re.IGNORECASE), BLACKWELL
"""Software and GPUs whose block-scaled GEMMs have their activations quantized in Triton, 20 ns a row.

NVIDIA/TensorRT-LLM, pull requests 11478 (16% of the time of DeepSeek-V3 Lite on B200) and 11607 (2026-02-24), which
replaced it.
"""

VLLM = re.compile(r"vLLM\b", re.IGNORECASE)


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


def timed_beside(frame: pd.DataFrame, op: str) -> dict[str, pd.Series[float]]:
    """The columns of rows of one op that say what they time, where they lack them."""
    if "software" not in frame:
        return {}
    found: dict[str, pd.Series[float]] = {}
    software = frame["software"].fillna("").astype(str)
    if op == "attention_decode":
        found["keys_only"] = _matches(software, KEYS_ONLY)
        found["ungrouped"] = (
            found["keys_only"] * _matches(software, UNGROUPED[0]) * frame["hardware"].isin(UNGROUPED[1])
        )
    if op == "gemm" and "dtype" in frame:
        found["eager"] = _matches(software, EAGER[0]) * frame["dtype"].isin(EAGER[1])
    if op == "mla_decode":
        found["scheduled"] = _matches(software, RESCHEDULES)
        found["four"] = _matches(software, FOUR_PARTS)
    if op in {kind.op for kind in UNGRAPHED} and "dtype" in frame:
        found["graph"] = 1.0 - _ungraphed(frame, software, op)
    return {name: column for name, column in found.items() if name not in frame}


def gemm_formats(frame: pd.DataFrame) -> pd.Series[str]:
    """The formats of GEMMs by the kernel that quantizes their activations."""
    dtypes, block = frame["dtype"], "fp8_block"
    if "software" not in frame:
        return dtypes
    software = frame["software"].fillna("").astype(str)
    old = (_matches(software, TRITON_QUANTIZED[0]) > 0) & frame["hardware"].isin(TRITON_QUANTIZED[1])
    return dtypes.mask((dtypes == block) & old, TRITON[block])


def _matches(software: pd.Series[str], pattern: re.Pattern[str]) -> pd.Series[float]:
    """1 where the software matches a pattern, else 0."""
    return software.map({name: pattern.match(name) is not None for name in software.unique()}).astype(np.float64)


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
