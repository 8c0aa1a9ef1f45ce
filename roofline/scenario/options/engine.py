"""The options of the engine's settings."""

# Annotations are evaluated here, at once: their metadata is the table.
from typing import Annotated

from roofline.core.lazy import later
from roofline.core.limits import MAX_BATCH, MAX_LENGTH
from roofline.core.options import Kind, Option
from roofline.scenario.options.deployment import Layout
from roofline.scenario.options.groups import ENGINE, setting


class Deployment(Layout, total=False):
    """How it runs: formats, kernels, parallelism, and the settings of the engine."""

    memory_reading: Annotated[
        str | None,
        setting(
            "Memory as the engine reserves it, or static: all prompts in one pass.",
            Kind.TEXT,
            "memory",
            "Memory reading",
            metavar="engine|static",
            default="engine",
            check=later("roofline.specs.reserve", "check_memory"),
            choices=("engine", "static"),
            static=True,
            example="static",
        ),
    ]
    gpu_memory_utilization: Annotated[
        float | None,
        setting(
            "Fraction of device memory that the engine may use.",
            Kind.NUMBER,
            "utilization",
            "Memory fraction",
            metavar="FRACTION",
            high=1,
            otherwise="the engine's",
            flags=("--mem-fraction-static", "--kv-cache-free-gpu-memory-fraction"),
            example="0.5",
        ),
    ]
    max_model_len: Annotated[
        int | None,
        setting(
            "Most tokens of a sequence.",
            Kind.INTEGER,
            "longest",
            "Max model length",
            unit="tokens",
            low=1,
            high=MAX_LENGTH,
            otherwise="the model's",
            flags=("--context-length", "--max-seq-len"),
            example="4096",
        ),
    ]
    ctx_size: Annotated[
        int | None,
        Option(
            "Tokens of all slots of llama.cpp's server, which share them evenly.",
            Kind.INTEGER,
            ENGINE,
            short="Context size",
            unit="tokens",
            low=1,
            high=MAX_LENGTH,
            otherwise="the model's, for each",
            flags=("-c"),
            example="4096",
        ),
    ]
    max_num_seqs: Annotated[
        int | None,
        setting(
            "Most sequences at once of a data-parallel rank.",
            Kind.INTEGER,
            "sequences",
            "Max sequences",
            unit="sequences",
            low=1,
            high=MAX_BATCH,
            otherwise="the engine's",
            flags=(
                *("--max-running-requests", "--parallel", "-np", "--sequences", "--max-batch-size"),
                "--decode-concurrency",
            ),
            example="8",
        ),
    ]
    max_num_batched_tokens: Annotated[
        int | None,
        setting(
            "Most tokens of an engine step: its token budget.",
            Kind.INTEGER,
            "step_tokens",
            "Max step tokens",
            unit="tokens",
            low=1,
            high=MAX_LENGTH,
            otherwise="the engine's",
            flags=(
                *("--chunked-prefill-size", "--chunk", "--max-num-tokens", "--ubatch-size", "-ub"),
                "--prefill-step-size",
            ),
            example="512",
        ),
    ]
    prefill_schedule_interval: Annotated[
        int | None,
        setting(
            "Engine steps from one with prompts to the next, while sequences decode (under load).",
            Kind.INTEGER,
            "interval",
            "Prefill interval",
            unit="steps",
            low=1,
            high=MAX_BATCH,
            otherwise="every step",
            example="8",
        ),
    ]
    long_prefill_token_threshold: Annotated[
        int | None,
        setting(
            "Most tokens of one prompt in an engine step (under load).",
            Kind.INTEGER,
            "piece",
            "Max tokens of a prompt in a step",
            unit="tokens",
            low=1,
            high=MAX_LENGTH,
            otherwise="the step's",
            example="512",
        ),
    ]
    enforce_eager: Annotated[
        bool | None,
        setting(
            "Launch every kernel, without CUDA graphs.",
            Kind.SWITCH,
            "eager",
            "Without CUDA graphs",
            flags=("--disable-cuda-graph",),
            example="true",
        ),
    ]
    mm_encoder_tp_mode: Annotated[
        str | None,
        setting(
            "How tensor-parallel ranks share the encoder of images: its weights, or the images (data).",
            Kind.TEXT,
            "towers",
            "Image encoder",
            metavar="weights|data",
            default="weights",
            choices=("weights", "data"),
            example="data",
        ),
    ]
    n_gpu_layers: Annotated[
        int | None,
        Option(
            "Layers on the GPU, as llama.cpp's; a CPU computes the others.",
            Kind.INTEGER,
            ENGINE,
            short="GPU layers",
            low=0,
            high=10**6,
            otherwise="all",
            flags=("--gpu-layers", "-ngl"),
            example="8",
        ),
    ]
