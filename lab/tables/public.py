"""Reading public tables: their formats, all-reduce kernels, experts and ranks of MLA by the names of the schema.

Whole modules of MLA (`MODULES`) become rows of the attention in them (`lab.tables.mla_modules`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lab.tables import experts
from lab.tables.kernel_benchmarks import gemm_formats, timed_beside
from lab.tables.mla_heads import heads_of_rank
from lab.tables.mla_modules import RANKS, mla_decode_rows
from roofline.timing.kernels.collective import OWN_ALL_REDUCES, UNGRAPHED
from roofline.validate.tables.rows import Measurements, read_measurements

if TYPE_CHECKING:
    import pandas as pd

_MODULE = ("dtype", "kv_dtype", "gemm_dtype", "model", "batch", "q_len", "kv_len", "heads", "tp")

MODULES: Mapping[str, tuple[str, ...]] = {"mla_prefill_module": _MODULE, "mla_decode_module": _MODULE}
"""Modules of several kernels, with their shape columns."""

DTYPES = {"sq": "int8"}
"""Names of formats in public tables: SmoothQuant's GEMMs multiply INT8 weights and activations."""

WITHOUT_KV_WRITE = ("vLLM 0.22.0",)
"""Software whose public tables time attention without the kernel that writes the KV cache."""


def read(path: Path) -> list[Measurements]:
    """The checked rows of kernels in a file or a folder of public tables; raises SpecError."""
    found = read_measurements(path, translated, MODULES)
    kernels = (part if part.op == "mla_prefill_module" else mla_decode_rows(part) for part in found)
    return [part for part in kernels if part is not None and part.op not in MODULES]


def translated(frame: pd.DataFrame, op: str) -> pd.DataFrame:
    """The rows of one op with the schema's names, and columns for what the collector timed beside the kernel."""
    columns: dict[str, Any] = {}
    if "dtype" in frame:
        columns["dtype"] = frame["dtype"].replace(DTYPES)
    if op in ("attention_prefill", "attention_decode") and "software" in frame and "bare" not in frame:
        columns["bare"] = frame["software"].isin(WITHOUT_KV_WRITE).astype(np.float64)
    columns |= timed_beside(frame.assign(**columns), op)
    if op == "gemm" and "dtype" in frame:
        columns["dtype"] = gemm_formats(frame.assign(**columns))
    if op == "moe":
        columns |= experts.named(frame)
        if {"hidden", "intermediate", "top_k", "experts"} <= set(frame):
            known = frame.assign(**columns)
            columns |= {"gated": experts.gated(known), "tiles": experts.tiles(known)}
    if op == "mla_decode":
        columns |= {name: rank for name, rank in RANKS.items() if name not in frame or frame[name].isna().all()}
    if op in ("mla_prefill", "mla_decode") and "heads" in frame:
        columns["heads"] = heads_of_rank(frame["heads"])
    if op == "collective" and {"collective", "kernel"} <= set(frame):
        columns["collective"] = _collectives(frame)
    return frame.assign(**columns)


def _collectives(frame: pd.DataFrame) -> pd.Series[str]:
    """The kinds of collectives: engines' own all-reduces by the name of their kernel."""
    kernels, names = frame["kernel"].fillna("").astype(str), frame["collective"]
    reducing = names == "all_reduce"
    for own, part in zip(OWN_ALL_REDUCES, ("custom", "TRTLLM"), strict=True):
        names = names.mask(reducing & kernels.str.contains(part, regex=False, case=False), own)
    return names.mask((names == OWN_ALL_REDUCES[0]) & kernels.str.endswith("_eager"), UNGRAPHED)
