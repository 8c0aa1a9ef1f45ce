"""Modules of latent attention in decode: what of their time is the attention itself.

Public measurements time a whole module: projections, norms, the two products with each head's part of a weight, and the
attention between them (`roofline.validate.tables.rows.MODULES`). Only the attention depends on the keys. What a module
takes longer than the same one with the fewest keys is therefore its attention but for the launch, which
`roofline.timing.kernels.mla` puts at `LAUNCH`; of the formats of the projections, which differ in nothing else, the
median counts.
"""

from __future__ import annotations

from typing import Any

from roofline.timing.kernels.mla import LAUNCH
from roofline.validate.tables.rows import Measurements

FEWEST_KEYS = 4
"""Keys up to which a module's attention is taken for a launch."""

LEAST_KEYS = 128
"""Keys from which on a difference is more than the noise of the module, if it is also at least `LEAST_US`."""

LEAST_US = 4.0

RANKS = {"latent": 512, "rope": 64}
"""Elements of the latents and of the rotary key of the model that was measured (DeepSeek-V3)."""


def latent_rows(part: Measurements) -> Measurements | None:
    """Rows of `latent_decode` from rows of `mla_decode_module`; None where no module has few and many keys."""
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
    rows = rows.assign(op="latent_decode", latency_us=rows["latency_us"] + LAUNCH * 1e6, **RANKS)
    return Measurements("latent_decode", rows, part.where)
