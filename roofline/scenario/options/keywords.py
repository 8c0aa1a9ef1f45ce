"""The keywords of a scenario with their types, whose rows in the table of options (`options.yaml`) say all else."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypedDict

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from roofline.graph.convention import Convention
    from roofline.graph.offload import Offload
    from roofline.scenario.lengths import Lengths
    from roofline.scenario.settings import Settings
    from roofline.specs.engine import Engine
    from roofline.specs.hardware import Hardware
    from roofline.specs.model import Model
    from roofline.specs.precision import Precision

Count = int | list[int]


class Workload(TypedDict, total=False):
    """What runs, where, and how much of it."""

    model: str | os.PathLike[str] | Model | None
    hw: str | os.PathLike[str] | Hardware | None
    batch: Count | NDArray[Any] | None
    prompt: Count | str | NDArray[Any] | Lengths | None
    generate: Count | str | NDArray[Any] | Lengths | None
    context: Count | str | NDArray[Any] | None
    prefix: Count | str | NDArray[Any] | None
    images: Count | NDArray[Any] | None
    image_size: str | None
    audio: float | str | None


class Deployment(TypedDict, total=False):
    """How it runs: formats, kernels, parallelism, and the settings of the engine."""

    quant: str | None
    weights: str | None
    activations: str | None
    kv: str | None
    dtype: str | None
    quantization: str | None
    flash: bool | None
    fuse: list[str] | tuple[str, ...] | str | None
    techniques: list[str] | tuple[str, ...] | str | None
    offload: str | Offload | None
    tp: int | None
    pp: int | None
    ep: int | None
    all_to_all: str | None
    redundant_experts: int | None
    enable_expert_parallel: bool | None
    dp_attention: bool | None
    dp: int | None
    sp: int | None
    dcp: int | None
    nodes: int | None
    micro_batches: int | None
    expert_skew: float | None
    host: str | os.PathLike[str] | None
    network: str | os.PathLike[str] | None
    memory_reading: str | None
    gpu_memory_utilization: float | None
    max_model_len: int | None
    ctx_size: int | None
    max_num_seqs: int | None
    max_num_batched_tokens: int | None
    prefill_schedule_interval: int | None
    long_prefill_token_threshold: int | None
    enforce_eager: bool | None
    mm_encoder_tp_mode: str | None
    n_gpu_layers: int | None


class Options(Workload, Deployment, total=False):
    """The options of a scenario by keyword; None is an option that is not set."""

    engine: str | os.PathLike[str] | Engine | None
    price: float | None
    carbon: float | str | None
    convention: str | Convention | None
    # Objects of the library in place of the options above; they have no text.
    precision: str | Precision | None
    settings: Settings | None
    fusions: Iterable[str] | None
