"""Public tables of the attention and state kernels of 2026, as rows of the measurement schema.

The tables keep their source's columns (ai-dynamo/aiconfigurator, collector/): `isl` new tokens of a sequence after
`step` cached ones, `kernel_source` and `phase` say what ran. Rows are of kernels alone:

    kda, gdn, mamba2               convolutions, scans in chunks, updates of states; drafts are verified by updates
    mhc_module                     hyper-connections before and after a sub-layer; rows time two sub-layers
    encoder_attention              attention in both directions

vLLM's convolutions of prompts are launched anew each time, which takes the host 200 us and more: left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from roofline.timing.kernels.attention import encoder_width
from roofline.timing.kernels.gated_delta_rule import CHUNKED, FUSED
from roofline.timing.kernels.streaming import POST, PRE, SEPARATE
from roofline.validate.tables.rows import Measurements

if TYPE_CHECKING:
    import pandas as pd

UPDATES: Mapping[str, str] = {"gdn": "delta_net", "kda": "kimi_delta"}
"""The variant of state updates, by table."""

CHUNKS: Mapping[str, str] = {"chunk_gated_delta_rule": CHUNKED, "chunk_kda": CHUNKED, "flashkda_fwd": FUSED}
"""The variants of kernels for prompts, by their names in tables."""

HOSTED = "vLLM"
"""The engine whose convolutions of prompts are launched without a CUDA graph."""

MAMBA2_CHUNK = 128.0
"""Tokens of a chunk in the measured models (chunk_size of Nemotron-H's files)."""

SLOWED = 0.7
"""Rate of an encoder's attention, over that of a smaller shape, below which its row is left out.

The rate of attention grows with the shape: 99 to 100% of the rows of vLLM's tables, and of TensorRT-LLM's on B200, are
above. Half of SGLang's rows (90% of those beyond 0.1 ms) and a fifth to a half of TensorRT-LLM's on Hopper are not,
with factors of 2 to 16 that two GPUs do not share shape by shape: something else ran on those devices.
"""

RELEASE = r"(?!0\.0\.0)\d+\.\d+\.\d+.*"
"""Versions of releases; others are of builds between two of them ("0.0.0.dev1", "kernel-level")."""

SITES = 2.0
"""Sub-layers of a row: vLLM's rows say so (num_sites), and SGLang's take as long as theirs on B200."""


def read(folder: Path, pattern: str = "*") -> list[Measurements]:
    """The rows of kernels in the tables of a folder whose names match."""
    import pandas as pd

    found: dict[str, list[pd.DataFrame]] = {}
    for path in sorted(folder.glob(f"{pattern}.parquet")):
        name = re.match(r"[^.]+\.([a-z0-9_]+)\.", path.name)
        if name is None or name[1] not in TABLES:
            continue
        table = pd.read_parquet(path)
        sizes = table.select_dtypes("number").columns  # some are of 8 and 16 bits, which their products exceed
        for op, rows in TABLES[name[1]](table.astype(dict.fromkeys(sizes, float)), name[1]):
            if len(rows):
                found.setdefault(op, []).append(rows)
    return [Measurements(op, pd.concat(parts, ignore_index=True), op) for op, parts in found.items()]


Rows = Iterator[tuple[str, Any]]


def software(frame: pd.DataFrame) -> pd.Series[str]:
    """The engine and version of each row: the release that ran where a row names another one than its table.

    SGLang's tables of DeepSeek-V4 in 0.5.10 were measured with 0.5.10rc0 on B200 and with 0.5.11 on GB300.
    """
    import pandas as pd

    ran, table = frame["version"], frame["table_version"]
    both = zip(ran, table, strict=True)
    own = [one if re.fullmatch(RELEASE, one) and not one.startswith(other) else other for one, other in both]
    return frame["engine"] + " " + pd.Series(own, frame.index)


def _schema(frame: pd.DataFrame, op: str, **columns: Any) -> pd.DataFrame:
    """Rows of the schema with the times and the origin of a table."""
    named: dict[str, Any] = {
        "hardware": frame["hardware"],
        "op": op,
        "software": software(frame),
        "kernel": frame["kernel_source"],
    }
    return frame[[]].assign(**named, latency_us=frame["latency_us"].astype(float), **columns)


def _states(frame: pd.DataFrame, table: str) -> Rows:
    """Gated delta nets and Kimi delta attention."""
    heads, keys, values = frame["num_v_heads"], frame["head_k_dim"], frame["head_v_dim"]
    # Collectors convolve the keys of gated delta nets alone, and queries, keys and values of Kimi's.
    channels = frame["num_k_heads"] * keys * (3 if table == "kda" else 1)
    sizes = {"batch": frame["batch_size"], "q_len": frame["seq_len"], "heads": heads}
    sizes |= {"key_dim": keys, "value_dim": values}
    yield from _convolutions(frame, channels)
    kernels = frame["kernel_source"]
    steps = frame[frame["phase"].isin(["generation", "verify"]) & ~kernels.str.contains("conv1d")]
    # fused_kda_decode is the update with the convolution and the norm in one kernel.
    steps = steps[~steps["kernel_source"].isin(["fused_kda_decode", "kda_fused_decode"])]
    picked = {name: column[steps.index] for name, column in sizes.items()}
    yield "state_update", _schema(steps, "state_update", variant=UPDATES[table], **picked)
    op = "kimi_delta" if table == "kda" else "gated_delta_rule"
    for name, variant in CHUNKS.items():
        rows = frame[kernels == name]
        picked = {name: column[rows.index] for name, column in sizes.items()}
        own = {"key_heads": frame["num_k_heads"][rows.index]} if op == "gated_delta_rule" else {}
        yield op, _schema(rows, op, variant=variant, **picked, **own)


def _convolutions(frame: pd.DataFrame, channels: pd.Series[int]) -> Rows:
    kernels = frame["kernel_source"]
    for part, op in (("conv1d_fn", "convolution_prefill"), ("conv1d_update", "convolution_decode")):
        rows = frame[kernels.str.contains(part)]
        if op == "convolution_prefill":
            rows = rows[rows["engine"] != HOSTED]
        sizes = {"batch": rows["batch_size"], "q_len": rows["seq_len"], "channels": channels[rows.index]}
        variants = rows["kernel_source"].str.contains("qkv").map({True: SEPARATE, False: "any"})
        yield op, _schema(rows, op, variant=variants, taps=rows["d_conv"], **sizes)


def _mamba2(frame: pd.DataFrame, _: str) -> Rows:
    inner, shared = frame["nheads"] * frame["head_dim"], frame["n_groups"] * frame["d_state"]
    yield from _convolutions(frame, inner + 2 * shared)
    rows = frame[frame["kernel_source"] == "mamba_chunk_scan_combined"]
    sizes = {"batch": rows["batch_size"], "q_len": rows["seq_len"], "heads": rows["nheads"]}
    sizes |= {"head_dim": rows["head_dim"], "state": rows["d_state"], "groups": rows["n_groups"]}
    yield "mamba2", _schema(rows, "mamba2", chunk=rows.get("chunk_size", MAMBA2_CHUNK), **sizes)


def _mixed(frame: pd.DataFrame, _: str) -> Rows:
    frame = frame.assign(latency_us=frame["latency_us"] / SITES)
    sizes = {"tokens": frame["num_tokens"], "hidden": frame["hidden_size"], "streams": frame["hc_mult"]}
    kinds = frame["op_name"].str.contains(POST).map({True: POST, False: PRE})
    yield "hyper_connection", _schema(frame, "hyper_connection", variant=kinds, **sizes)


def within_rates(frame: pd.DataFrame) -> NDArray[np.bool_]:
    """The rows whose rate is no less than `SLOWED` of that of a smaller shape (in batch, length and heads)."""
    sizes = frame[["batch_size", "isl", "num_heads"]].to_numpy()
    rates = (sizes.prod(axis=1) * frame["isl"] / frame["latency_us"]).to_numpy()
    smaller = (sizes[:, None, :] >= sizes[None, :, :]).all(axis=2)
    return np.asarray(rates >= SLOWED * (smaller * rates).max(axis=1))


def _encoders(frame: pd.DataFrame, _: str) -> Rows:
    import pandas as pd

    frame = pd.concat([part[within_rates(part)] for _, part in frame.groupby("head_dim")])
    queries, heads = frame["isl"], frame["num_heads"]
    sizes: dict[str, Any] = {"batch": frame["batch_size"], "q_len": queries, "kv_len": queries, "heads": heads}
    sizes |= {"kv_heads": heads, "head_dim": frame["head_dim"], "causal": 0.0, "bare": 1.0}
    widths = frame["head_dim"].map(encoder_width)
    yield "encoder_attention", _schema(frame, "encoder_attention", dtype="bf16", variant=widths, **sizes)


TABLES: Mapping[str, Callable[[Any, str], Rows]] = {
    "kda": _states,
    "gdn": _states,
    "mamba2": _mamba2,
    "mhc_module": _mixed,
    "encoder_attention": _encoders,
}
"""The tables that are read, by name."""
