"""What the public tables of experts time: matrices, kernels, and the pairs of tokens and experts on one device.

Their collector (ai-dynamo/aiconfigurator) cuts the work of a device out of that of all. How it did so changed with the
collector, not the engine: SGLang's BF16 experts of two versions take the same time within 1% where a device has all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from lab.observation.routing import OPTIONS
from lab.tables.kernel_benchmarks import BLACKWELL, ran
from lab.tables.releases import Releases
from roofline.timing.kernels.formats import (
    EXPERT_PARALLEL,
    MIN_LATENCY,
    MXFP4_TRITON,
    MXFP4_TRITON_RANKS,
    MXFP4_TRTLLM,
    TRITON,
    UNTUNED,
)
from roofline.timing.kernels.moe import BEFORE_0_17, SINCE_0_17

if TYPE_CHECKING:
    import pandas as pd

UNGATED = frozenset({(2688, 1856, 6, 128)})
"""Expert shapes (hidden, intermediate, top_k, experts) of models whose experts have two matrices, not three."""

THREE_MATRICES = Releases("sglang"), Releases("tensorrt-llm"), Releases("vllm", before="0.24")
"""Software whose public tables time three matrices for the experts of UNGATED shapes."""

HOPPER = ("h100-sxm", "h200-sxm")

BY_NAME = {
    "bf16": ("vllm_fused_moe", (*BLACKWELL, "rtx-pro-6000-server")),
    "fp8": ("vllm_fused_moe", (*BLACKWELL, "rtx-pro-6000-server", *HOPPER)),
    "fp8_block": ("vllm_fused_moe", BLACKWELL),
    "int4_wo": ("vllm_marlin_int4_moe", ()),
}
"""Kernels of public tables that call Triton's by name, and the GPUs where vLLM runs others (its tables of 0.24 name
them); none for all. INT4 experts are those of Triton, too, whatever their name: on L40S Marlin takes half as long."""

MXFP4 = {"_oaitriton": MXFP4_TRITON, "_trtllm": MXFP4_TRTLLM}
"""Kernels of MXFP4 experts by a part of their name; others are Marlin's."""

OLD_TILES = Releases("vllm", before="0.17")
"""Versions of vLLM with smaller default tiles of Triton's experts (before pull request 34846)."""

SGLANG_UNTIL_0_5_9 = Releases("sglang", before="0.5.10")

CONSECUTIVE = SGLANG_UNTIL_0_5_9, Releases("tensorrt-llm", before="1.3.0rc20"), Releases("vllm", before="0.17")
"""Software whose tables are from before pull request 876 (2026-04-19), which deals pairs to devices in turn.

With one token and 16 devices their power laws take up to e times as long as balanced routing, later ones as long.
"""

LATE_TENSORRT_LLM = ("rtx-pro-6000-server",)
"""GPUs whose tables of TensorRT-LLM are from after it, by the same ratio."""

EARLY_SGLANG_0_5_10 = ("b200-sxm", "rtx-pro-6000-server")
"""GPUs whose tables of SGLang 0.5.10 are as those of 0.5.9.

Since pull request 753 (2026-04-14) its Triton experts get the tokens of one device, with pairs elsewhere masked; Marlin
ones chose anew among the experts of the device. Later both are clamped to the first expert, whose pairs make them up to
four times as long. From 0.5.14 other kernels than Triton's are those of whole layers.
"""

SCALED = 128
"""Weights in each direction with one scale: SGLang's FP8 experts of other widths, and all those of tables up to 0.5.9
(pull request 876), have one scale in all. Both versions take the same time for such widths within 1%, 0.5.10 up to 1.3
times as long for others."""

SGLANG_0_5_10_TO_13 = Releases("sglang", before="0.5.14", since="0.5.10")


def named(frame: pd.DataFrame) -> dict[str, Any]:
    """The columns of rows of experts that public tables leave out, or name otherwise."""
    columns: dict[str, Any] = {}
    if not {"dtype", "kernel", "hidden", "intermediate", "tp", "ep"} <= set(frame):
        return columns
    dtypes, kernels = frame["dtype"], frame["kernel"].fillna("").astype(str)
    fast = (dtypes == "nvfp4") & kernels.str.endswith("_min_latency")
    cutlass = kernels.str.contains("_flashinfer_cutlass_", regex=False)
    ranks = (dtypes == "fp8_block") & (frame["ep"] > 1) & cutlass
    untuned = (dtypes == "fp8") & frame["hardware"].isin(HOPPER) & cutlass
    columns["dtype"] = dtypes.mask(fast, MIN_LATENCY).mask(ranks, EXPERT_PARALLEL).mask(untuned, UNTUNED)
    for name, (called, gpus) in BY_NAME.items():
        others = frame["hardware"].isin(gpus) if gpus else True
        columns["dtype"] = columns["dtype"].mask((dtypes == name) & (kernels == called) & others, TRITON[name])
    for part, own in MXFP4.items():
        of_kernel = (dtypes == "w4a16_mxfp4") & kernels.str.contains(part, regex=False)
        columns["dtype"] = columns["dtype"].mask(of_kernel, own)
    on_hopper = (dtypes == "mxfp4") & frame["hardware"].isin(HOPPER)  # TensorRT-LLM's, which are OpenAI's kernels there
    columns["dtype"] = columns["dtype"].mask(on_hopper, MXFP4_TRITON)
    divided = (columns["dtype"] == MXFP4_TRITON) & (frame["ep"] > 1)
    columns["dtype"] = columns["dtype"].mask(divided, MXFP4_TRITON_RANKS)
    if "software" in frame and not set(OPTIONS) & set(frame):
        names, devices = frame["software"], frame["hardware"]
        late = ran(names, Releases("tensorrt-llm")) & devices.isin(LATE_TENSORRT_LLM)
        columns["consecutive"] = (ran(names, *CONSECUTIVE) & ~late).astype(np.float64)
        sglang = ran(names, Releases("sglang"))
        old, middle = ran(names, SGLANG_UNTIL_0_5_9), ran(names, SGLANG_0_5_10_TO_13)
        early = old | (middle & devices.isin(EARLY_SGLANG_0_5_10))
        triton = sglang & kernels.str.contains("triton", regex=False)
        marlin = (old | middle) & kernels.str.contains("marlin", regex=False)
        found = {"arriving": triton | marlin, "clamped": (triton | marlin) & ~early, "rerouted": marlin & early}
        blocks = ((frame["intermediate"] / frame["tp"]) % SCALED == 0) & (frame["hidden"] % SCALED == 0) & ~old
        columns["dtype"] = columns["dtype"].mask(sglang & (dtypes == "fp8_block") & ~blocks, "fp8")
        columns |= {name: mask.astype(np.float64) for name, mask in found.items()}
    return columns


def tiles(frame: pd.DataFrame) -> NDArray[np.float64]:
    """The default tiles of Triton's experts, by the version of vLLM; only of those with constants of their own."""
    if "software" not in frame:
        return np.zeros(len(frame))
    old = ran(frame["software"], OLD_TILES).to_numpy()
    known = frame["dtype"].isin([name for name in TRITON.values() if name != TRITON["int4_wo"]]).to_numpy()
    return np.where(known, np.where(old, BEFORE_0_17, SINCE_0_17), 0.0)


def gated(frame: pd.DataFrame) -> NDArray[np.float64]:
    """1 for experts of three matrices, 0 for two: the column `gated`, else inferred from kernel name and shape.

    Models with 22 of 512 experts a token have two matrices. Public tables time three for them, too (they take 1.2 to
    1.5 times as long as two would), but for vLLM's from 0.24 and kernels named `_nongated`.
    """
    if "gated" in frame:
        return frame["gated"].to_numpy(dtype=np.float64)
    shapes = frame[["hidden", "intermediate", "top_k", "experts"]].to_numpy()
    ungated = np.array([tuple(shape) in UNGATED or tuple(shape[2:]) == (22, 512) for shape in shapes.tolist()], bool)
    if "software" in frame:
        ungated &= ~ran(frame["software"], *THREE_MATRICES).to_numpy()
    if "kernel" in frame:
        ungated |= frame["kernel"].astype(str).str.endswith("_nongated").to_numpy()
    return np.where(ungated, 0.0, 1.0)
