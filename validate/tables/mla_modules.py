"""MLA decode kernel times from measurements of whole MLA modules.

Public measurements time a module (`roofline.validate.tables.rows.MODULES`): projections, norms, the two GEMMs of the
absorbed weights, and the attention between them. Only the attention depends on the number of keys, so its time is that
of the module less that of the same module with the fewest keys, plus `LAUNCH` (`roofline.timing.kernels.mla`); the
median over the formats of the projections counts. The difference has no host time, so the rows are `warm` ones.
"""

from __future__ import annotations

from typing import Any

from roofline.timing.kernels.mla import LAUNCH
from roofline.validate.tables.rows import Measurements

FEWEST_KEYS = 4
"""Keys up to which a module's attention takes no longer than its launch."""

LEAST_KEYS = 128
"""Differences count beyond this number of keys, and from `LEAST_US` on: smaller ones are noise."""

LEAST_US = 4.0

RANKS = {"latent": 512, "rope": 64}
"""Elements of the latent and of the rotary key of the measured model (DeepSeek-V3)."""


def mla_decode_rows(part: Measurements) -> Measurements | None:
    """Rows of `mla_decode` from rows of `mla_decode_module`; None where no module has few and many keys."""
    frame = part.frame
    module = ["hardware", "gemm_dtype", "dtype", "kv_dtype", "batch", "q_len", "heads", "tp"]
    module += [name for name in ("kernel", "software") if name in frame]
    few = frame[frame["kv_len"] <= FEWEST_KEYS].groupby(module)["latency_us"].min().rename("few")
    long: Any = frame[frame["kv_len"] > LEAST_KEYS].join(few, on=module, how="inner")
    long = long.assign(latency_us=long["latency_us"] - long["few"])
    long = long[long["latency_us"] >= LEAST_US]
    kept = [name for name in module if name not in ("gemm_dtype", "tp")]
    rows = long.groupby([*kept, "kv_len"])["latency_us"].median().reset_index()
    if rows.empty:
        return None
    rows = rows.assign(op="mla_decode", cache="warm", latency_us=rows["latency_us"] + LAUNCH * 1e6, **RANKS)
    return Measurements("mla_decode", rows, part.where)
