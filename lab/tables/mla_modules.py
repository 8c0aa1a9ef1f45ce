"""MLA decode kernel times from measurements of whole MLA modules, and of attention layers without CUDA graphs.

Public measurements time a module (`lab.tables.public.MODULES`): projections, norms, the two GEMMs of the
absorbed weights, and the attention between them. Only the attention depends on the number of keys: rows have the time
of the module less that of the same module with the fewest keys (`less_kv`), plus `DIFFERENCE_LAUNCH`
(`lab.observation.collector`); the median over the formats of the projections counts. The difference has no host time,
so the rows are `warm` ones.

vLLM's tables of `mla_decode` (0.14) time its attention layer, launched anew each time (ai-dynamo/aiconfigurator,
collector/vllm/collect_mla.py): the GEMMs of the absorbed weights, copies and the cache's update, too, and the host,
which takes 165 us on H100 and 340 on L40S. Rows that it hides say nothing of the kernel and are left out. Of the others
the time of the same layer with the fewest keys that it does not hide is subtracted: what is left of BF16 on H100 and
H200 is 2% more than the same difference in the modules of 0.24 (median).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lab.observation.collector import DIFFERENCE_LAUNCH
from lab.tables.kernel_benchmarks import ran
from lab.tables.releases import Releases
from roofline.validate.tables.rows import CACHES, Measurements, by_op

FEWEST_KEYS = 4
"""Keys up to which a module's attention takes no longer than its launch."""

ONE_BLOCK = 64
"""Keys up to which the median time of the layers of a table is the host's."""

LEAST_KEYS = 128
"""Differences count beyond this number of keys, and from `LEAST_US` on: smaller ones are noise."""

LEAST_US = 4.0

VISIBLE = 1.5
"""Time over the host's from which it is the device's: the host's scatters by a third.

No row with more keys may take less, either: single ones take several times as long as they should.
"""

RANKS = {"latent": 512, "rope": 64}
"""Elements of the latent and of the rotary key of the measured model (DeepSeek-V3)."""


def mla_decode_rows(part: Measurements) -> Measurements | None:
    """Rows of the kernel `mla_decode` from those of modules and layers, others as they are; None where none is left."""
    if part.op == "mla_decode_module":
        return _of_modules(part)
    if part.op != "mla_decode" or "software" not in part.frame or np.isin(part.texts("cache"), CACHES).any():
        return part
    layers = ran(part.frame["software"], Releases("vllm")).to_numpy()
    if not layers.any():
        return part
    found = [_of_layers(part.rows(layers)), part.rows(~layers)]
    return by_op([rows for rows in found if rows is not None and len(rows)]).get("mla_decode")


def _of_modules(part: Measurements) -> Measurements | None:
    frame = part.frame
    module = ["hardware", "gemm_dtype", "dtype", "kv_dtype", "batch", "q_len", "heads", "tp"]
    module += [name for name in ("kernel", "software") if name in frame]
    return _differences(part, frame, frame[frame["kv_len"] <= FEWEST_KEYS], module)


def _of_layers(part: Measurements) -> Measurements | None:
    table = [name for name in ("hardware", "dtype", "kv_dtype", "kernel", "software", "four") if name in part.frame]
    layer = [*table, "batch", "q_len", "heads"]
    frame = part.frame.sort_values("kv_len")
    host = frame[frame["kv_len"] <= ONE_BLOCK].groupby(table)["latency_us"].median().rename("host")
    frame = frame.join(host, on=table)
    longer = frame.groupby(layer)["latency_us"].transform(lambda times: times[::-1].cummin()[::-1])
    seen = (frame["latency_us"] >= VISIBLE * frame["host"]) & (frame["latency_us"] <= longer)
    return _differences(part, frame, frame[seen], layer)


def _differences(part: Measurements, frame: Any, short: Any, module: list[str]) -> Measurements | None:
    """The rows of the kernel: the times of modules less those of the same with the fewest keys among `short`."""
    fewest = short.sort_values("kv_len").groupby(module).agg(few=("latency_us", "first"), less_kv=("kv_len", "first"))
    long = frame.join(fewest, on=module, how="inner")
    long = long.assign(latency_us=long["latency_us"] - long["few"])
    long = long[(long["kv_len"] > np.maximum(long["less_kv"], LEAST_KEYS)) & (long["latency_us"] >= LEAST_US)]
    kept = [name for name in module if name not in ("gemm_dtype", "tp")]
    rows = long.groupby([*kept, "kv_len"])[["latency_us", "less_kv"]].median().reset_index()
    if rows.empty:
        return None
    rows = rows.assign(op="mla_decode", cache="warm", latency_us=rows["latency_us"] + DIFFERENCE_LAUNCH * 1e6, **RANKS)
    return Measurements("mla_decode", rows, part.where)
