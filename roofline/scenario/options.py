"""The table of options: everything that a person can vary of a scenario, one entry each.

The entries are the keywords of `Scenario`. Commands, axes and keys of studies, the page's fields, the JSON schema and
the reference pages are made from them, and the names that engines have for an option are spellings of its entry.
"""

# Annotations are evaluated here, at once: their metadata is the table.
import os
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

from roofline.core.errors import RooflineError, UnknownNameError
from roofline.core.lazy import constant, later
from roofline.core.limits import LEAST_PRICE, MAX_BATCH, MAX_DEVICES, MAX_LENGTH, MAX_PRICE
from roofline.core.options import Kind, Option, table
from roofline.scenario.catalogue import catalogue
from roofline.scenario.engine_options import CACHE_DTYPES, DTYPES, METHODS, check_dtype

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

parse_lengths = later("roofline.scenario.lengths", "parse_lengths")
parse_precision = later("roofline.specs.precision", "parse_precision")
check_fusions = later("roofline.graph.fusion", "check_fusions")
_schemes = constant("roofline.specs.precision", "SCHEMES")
_formats = constant("roofline.specs.formats", "FORMATS")
_fusions = constant("roofline.graph.fusion", "FUSIONS")
# Readers are imported when a value is read: the help of a command needs none.

WORKLOAD, FORMATS, KERNELS, PARALLELISM, ENGINE, COUNTING = (
    "Workload",
    "Formats",
    "Kernels and techniques",
    "Parallelism",
    "Engine, memory and price",
    "Counting",
)
"""The groups of the options."""

BATCHES = tuple(sorted({size for power in range(11) for size in (2**power, 3 * 2**power // 2)}))
"""The stops of the batch."""

NOTATIONS = ("W8A8", "W4A16", "W8A16", "W4A8", "W4A16KV8", "W16A16")
"""Schemes by bits, beside the named ones."""

ACTIVATIONS = ("bf16", "fp16", "fp32", "fp8", "int8", "nvfp4", "mxfp4")
CACHES = ("bf16", "fp16", "fp8", "int8", "int4", "nvfp4")
"""The usual formats of linear layers' inputs and of the KV cache."""

_EXPERTS = {"model": "mixtral-8x7b", "tp": "2"}
_IMAGES = {"model": "qwen2.5-vl-7b", "images": "1"}


def _grid(
    help: str,
    low: int,
    high: int,
    short: str,
    default: str = "",
    otherwise: str = "",
    unit: str = "tokens",
    **more: Any,
) -> Option:
    """A count of the workload, of a static batch unless it says otherwise."""
    metavar, more = "TOKENS" if unit == "tokens" else "N", {"static": True, **more}
    return Option(
        help, Kind.GRID, WORKLOAD, (), "", short, unit, metavar, low, high, default=default, otherwise=otherwise, **more
    )


def _format(help: str, part: str, short: str, metavar: str = "FORMAT", **more: Any) -> Option:
    """A format, which is often turned unless it says otherwise."""
    more = {"check": lambda text: parse_precision("bf16", **{part: text}), "often": True, **more}
    return Option(help, Kind.TEXT, FORMATS, ("formats", part), "", short, metavar=metavar, **more)


def _degree(help: str, degree: str, short: str, *flags: str, default: str = "1", **more: Any) -> Option:
    """A degree of parallelism, likewise."""
    more = {"often": True, **more}
    return Option(
        help,
        Kind.INTEGER,
        PARALLELISM,
        ("degrees", degree),
        short=short,
        metavar="N",
        low=1,
        high=MAX_DEVICES,
        default=default,
        flags=flags,
        example="2",
        **more,
    )


def _setting(help: str, kind: Kind, field: str, short: str, group: str = ENGINE, **more: Any) -> Option:
    return Option(help, kind, group, ("settings", field), short=short, **more)


Count = int | list[int]


class Workload(TypedDict, total=False):
    """What runs, where, and how much of it."""

    model: Annotated[
        "str | os.PathLike[str] | Model | None",
        Option(
            "A model: its name, a Hugging Face repository, a spec file, config.json or checkpoint.",
            Kind.TEXT,
            WORKLOAD,
            short="Model",
            needed="a model such as llama-3.1-8b, qwen3-32b, gpt-oss-120b or deepseek-v3, or a config.json"
            " ('roofline specs list models' lists all)",
            check=later("roofline.specs.modelspec", "load_model"),
            known=later("roofline.specs.modelspec", "list_models"),
            often=True,
            example="qwen3-8b",
        ),
    ]
    hw: Annotated[
        "str | os.PathLike[str] | Hardware | None",
        Option(
            "Hardware: a name, also with a count as in 8xH200, or a spec file.",
            Kind.TEXT,
            WORKLOAD,
            short="Device",
            metavar="HW",
            needed="hardware such as h100-sxm, h200-sxm, b200-sxm, mi300x, rtx-4090 or m4-max"
            " ('roofline specs list hardware' lists all)",
            check=later("roofline.specs.hardware", "load_mixed"),
            flags=("--hardware",),
            known=later("roofline.specs.hardware", "list_hardware"),
            often=True,
            example="mi300x",
        ),
    ]
    batch: Annotated[
        "Count | NDArray[Any] | None",
        _grid(
            "Sequences in the batch.",
            1,
            MAX_BATCH,
            "Batch",
            "1",
            unit="sequences",
            often=True,
            stops=BATCHES,
            example="32",
        ),
    ]
    prompt: Annotated[
        "Count | str | NDArray[Any] | Lengths | None",
        _grid(
            "Prompt tokens per sequence, such as 512, 32k or 128K; under load also a distribution:"
            " uniform:128:1024, lognormal:mean=512,p95=1500, exponential:mean=300, or a CSV file of length,count.",
            1,
            MAX_LENGTH,
            "Prompt",
            otherwise="512",
            other=lambda written: parse_lengths(written, "prompt"),
            often=True,
            stops=tuple(2**power for power in range(7, 19)),
            example="4k",
            static=False,
        ),
    ]
    generate: Annotated[
        "Count | str | NDArray[Any] | Lengths | None",
        _grid(
            "Tokens to generate per sequence, written likewise.",
            1,
            MAX_LENGTH,
            "Generate",
            "128",
            other=lambda written: parse_lengths(written, "generate"),
            often=True,
            stops=(1, *(2**power for power in range(4, 15))),
            example="300",
            static=False,
        ),
    ]
    context: Annotated[
        "Count | str | NDArray[Any] | None",
        _grid(
            "Tokens in the KV cache at the decode step shown.",
            0,
            2 * MAX_LENGTH,
            "Context",
            otherwise="prefix + prompt",
            example="3000",
        ),
    ]
    prefix: Annotated[
        "Count | str | NDArray[Any] | None",
        _grid("Cached prefix tokens, before those of the prompt.", 0, MAX_LENGTH, "Cached prefix", "0", example="512"),
    ]
    images: Annotated[
        "Count | NDArray[Any] | None",
        _grid(
            "Images per sequence, for vision-language models.",
            0,
            MAX_BATCH,
            "Images",
            "0",
            unit="images",
            static=False,
            example="3",
            beside=_IMAGES,
        ),
    ]
    image_size: Annotated[
        str | None,
        Option(
            "Size of the images in pixels.",
            Kind.TEXT,
            WORKLOAD,
            short="Image size",
            metavar="WxH",
            otherwise="the model's",
            check=later("roofline.specs.images", "parse_image_size"),
            example="1024x1024",
            beside=_IMAGES,
        ),
    ]
    audio: Annotated[
        float | str | None,
        Option(
            "Audio per sequence, in windows of the model's encoder, such as 45s.",
            Kind.TIME,
            WORKLOAD,
            short="Audio",
            metavar="TIME",
            example="45s",
            beside={"model": "voxtral-mini-3b"},
        ),
    ]


class Deployment(TypedDict, total=False):
    """How it runs: formats, kernels, parallelism, and the settings of the engine."""

    quant: Annotated[
        str | None,
        _format(
            "Quantization scheme: W4, W8A8, W4A16KV8, KV8, fp8, awq, nvfp4, q4_k_m, ...",
            "scheme",
            "Scheme",
            "SCHEME",
            otherwise="as released",
            known=lambda: (*_schemes(), *NOTATIONS),
            example="fp8",
        ),
    ]
    weights: Annotated[
        str | None, _format("Format of the weights alone.", "weights", "Weights", known=_formats, example="int8")
    ]
    activations: Annotated[
        str | None,
        _format(
            "Format of linear layers' inputs.", "activations", "Activations", known=lambda: ACTIVATIONS, example="fp8"
        ),
    ]
    kv: Annotated[
        str | None,
        _format(
            "Format of the KV cache alone.",
            "kv",
            "KV cache",
            readings=CACHE_DTYPES,
            flags=("--kv-cache-dtype", "--cache-type-k", "-ctk"),
            known=lambda: CACHES,
            example="fp8",
        ),
    ]
    dtype: Annotated[
        str | None,
        _format(
            "16- or 32-bit format of what is not quantized, as vLLM's.",
            "base",
            "dtype",
            otherwise="auto",
            check=check_dtype,
            readings=DTYPES,
            known=lambda: DTYPES,
            example="float32",
            often=False,
        ),
    ]
    quantization: Annotated[
        str | None,
        Option(
            "The scheme by vLLM's names: awq_marlin, fp8, modelopt_fp4, ...",
            Kind.TEXT,
            FORMATS,
            short="vLLM quantization",
            metavar="METHOD",
            check=later("roofline.specs.precision", "scheme_formats"),
            readings=METHODS,
            known=lambda: METHODS,
            example="awq_marlin",
        ),
    ]
    flash: Annotated[
        bool | None,
        Option(
            "FlashAttention.",
            Kind.SWITCH,
            KERNELS,
            short="FlashAttention",
            otherwise="flash; no-flash under the llm-viewer convention",
            flags=("--flash-attn", "-fa"),
            example="false",
        ),
    ]
    fuse: Annotated[
        list[str] | tuple[str, ...] | str | None,
        Option(
            "More fusions: qkv, gate_up, gate_up_act, residual_norm.",
            Kind.LIST,
            KERNELS,
            short="Fusions",
            metavar="NAME",
            check=lambda name: check_fusions([name]),
            known=lambda: (name for name in _fusions() if name != "attention"),  # that is `flash`
            example="gate_up+qkv",
        ),
    ]
    techniques: Annotated[
        list[str] | tuple[str, ...] | str | None,
        Option(
            "A technique (see `roofline techniques`); repeatable.",
            Kind.LIST,
            KERNELS,
            short="Techniques",
            name="with",  # a word that Python reserves
            metavar="NAME[:KEY=VALUE,...]",
            check=lambda written: catalogue().slot(written),
            flags=("--techniques",),
            known=lambda: catalogue().names(),
            often=True,
            example="eagle-3",
        ),
    ]
    offload: Annotated[
        "str | Offload | None",
        Option(
            "Fractions kept in CPU memory and streamed: weights=0.5,kv=1[,bandwidth=7GB/s].",
            Kind.TEXT,
            KERNELS,
            short="Offload",
            metavar="FRACTIONS",
            check=later("roofline.graph.offload", "parse_offload"),
            example="weights=0.5",
        ),
    ]
    tp: Annotated[
        int | None, _degree("Tensor-parallel devices.", "tensor", "TP", "--tensor-parallel-size", "-tp", "--tp-size")
    ]
    pp: Annotated[
        int | None, _degree("Pipeline stages.", "pipeline", "PP", "--pipeline-parallel-size", "-pp", "--pp-size")
    ]
    ep: Annotated[
        int | None,
        _degree(
            "Expert-parallel devices; beyond --tp, attention is data-parallel.",
            "expert",
            "EP",
            "--ep-size",
            beside=_EXPERTS,
        ),
    ]
    all_to_all: Annotated[
        str | None,
        Option(
            "How expert ranks exchange tokens: deepep, deepep_low_latency, deepep_normal, nvlink_one_sided,"
            " nvlink_two_sided, allgather_reducescatter or nccl.",
            Kind.TEXT,
            PARALLELISM,
            ("degrees", "exchange"),
            short="All-to-all",
            metavar="NAME",
            otherwise="the engine's own",
            check=later("roofline.graph.parallel", "check_exchange"),
            known=constant("roofline.graph.parallel", "EXCHANGES"),
            flags=("--all2all-backend", "--moe-a2a-backend"),
            example="deepep",
            beside={"model": "deepseek-v3", "hw": "h100-sxm", "ep": "8", "engine": "vllm"},
        ),
    ]
    redundant_experts: Annotated[
        int | None,
        Option(
            "Copies of popular experts, in all ranks together (EPLB); a degree that does not divide them has some.",
            Kind.INTEGER,
            PARALLELISM,
            ("degrees", "redundant"),
            short="Redundant experts",
            metavar="N",
            low=0,
            high=MAX_DEVICES,
            default="0",
            flags=("--ep-num-redundant-experts", "--num-redundant-experts"),
            example="32",
            beside={"model": "deepseek-v3", "hw": "h100-sxm", "ep": "32", "expert_skew": "0.5"},
        ),
    ]
    enable_expert_parallel: Annotated[
        bool | None,
        Option(
            "Expert-parallel over all devices of --tp and --dp.",
            Kind.SWITCH,
            PARALLELISM,
            short="Expert parallel",
            flags=("-ep", "--enable-ep"),
            example="true",
            beside=_EXPERTS,
        ),
    ]
    dp_attention: Annotated[
        bool | None,
        Option(
            "Attention data-parallel over the devices of --tp, experts over all.",
            Kind.SWITCH,
            PARALLELISM,
            short="DP attention",
            flags=("--enable-dp-attention",),
            example="true",
            beside={"model": "deepseek-v3", "tp": "8"},
        ),
    ]
    dp: Annotated[
        int | None,
        _degree(
            "Data-parallel replicas that share the batch.", "data", "DP", "--data-parallel-size", "-dp", "--dp-size"
        ),
    ]
    sp: Annotated[
        int | None,
        _degree(
            "Sequence-parallel (context-parallel) devices.", "sequence", "SP", "--prefill-context-parallel-size", "--cp"
        ),
    ]
    dcp: Annotated[
        int | None,
        _degree(
            "Tensor ranks that divide the tokens of the KV cache, of which they hold copies otherwise.",
            "context",
            "DCP",
            "--decode-context-parallel-size",
            "-dcp",
            "--dcp-size",
            often=False,
            beside={"model": "deepseek-v3", "tp": "8"},
        ),
    ]
    nodes: Annotated[
        int | None,
        _degree(
            "Nodes that hold the devices.",
            "nodes",
            "Nodes",
            "--nnodes",
            default="",
            otherwise="as few as possible",
            beside={"tp": "2"},
        ),
    ]
    micro_batches: Annotated[
        int | None,
        _degree(
            "Micro-batches that fill the pipeline.", "micro_batches", "Micro-batches", beside={"pp": "2"}, often=False
        ),
    ]
    expert_skew: Annotated[
        float | None,
        _setting(
            "Skew of expert routing: popularity ~ rank^-SKEW; 0 is uniform.",
            Kind.NUMBER,
            "expert_skew",
            "Expert skew",
            PARALLELISM,
            metavar="SKEW",
            high=10,
            default="0",
            example="0.5",
            beside=_EXPERTS,
        ),
    ]
    host: Annotated[
        "str | os.PathLike[str] | None",
        Option(
            "Server that holds PCIe devices: pcie-server, pcie-switch (peer-to-peer among all), pcie-isolated (slow),"
            " or a file.",
            Kind.TEXT,
            ENGINE,
            short="Host",
            metavar="NAME",
            otherwise="pcie-server, with an interval that covers all",
            check=later("roofline.specs.host", "load_host"),
            known=later("roofline.specs.host", "list_hosts"),
            example="pcie-switch",
            beside={"hw": "l40s", "tp": "2"},
        ),
    ]
    network: Annotated[
        "str | os.PathLike[str] | None",
        Option(
            "Network between nodes: 400G (a device), 8x400G-ib (ports of a node), roce, efa, ethernet, or a file; nvl72"
            " is the number of devices that NVLink joins (nvl8,400G for both); ,spine=2 after it: half of the bandwidth"
            " between rails.",
            Kind.TEXT,
            PARALLELISM,
            short="Network",
            metavar="NAME",
            otherwise="that of the hardware",
            check=later("roofline.specs.network", "load_fabric"),
            known=later("roofline.specs.network", "list_networks"),
            example="4x400G-roce",
            beside={"hw": "h100-sxm", "tp": "16", "model": "llama-3.1-405b"},
        ),
    ]
    memory_reading: Annotated[
        str | None,
        _setting(
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
        _setting(
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
        _setting(
            "Most tokens of a sequence.",
            Kind.INTEGER,
            "longest",
            "Max model length",
            metavar="TOKENS",
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
            metavar="TOKENS",
            unit="tokens",
            low=1,
            high=MAX_LENGTH,
            otherwise="the model's, for each",
            flags=("-c",),
            example="4096",
            beside={"engine": "llama.cpp", "quant": "q4_k_m"},
        ),
    ]
    max_num_seqs: Annotated[
        int | None,
        _setting(
            "Most sequences at once of a data-parallel rank.",
            Kind.INTEGER,
            "sequences",
            "Max sequences",
            metavar="N",
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
        _setting(
            "Most tokens of an engine step: its token budget.",
            Kind.INTEGER,
            "step_tokens",
            "Max step tokens",
            metavar="TOKENS",
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
    enforce_eager: Annotated[
        bool | None,
        _setting(
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
        _setting(
            "How tensor-parallel ranks share the encoder of images: its weights, or the images (data).",
            Kind.TEXT,
            "towers",
            "Image encoder",
            metavar="weights|data",
            default="weights",
            choices=("weights", "data"),
            example="data",
            beside={**_IMAGES, "tp": "2"},
        ),
    ]
    n_gpu_layers: Annotated[
        int | None,
        Option(
            "Layers on the GPU, as llama.cpp's; a CPU computes the others.",
            Kind.INTEGER,
            ENGINE,
            short="GPU layers",
            metavar="N",
            low=0,
            high=10**6,
            otherwise="all",
            flags=("--gpu-layers", "-ngl"),
            example="8",
            beside={"engine": "llama.cpp", "quant": "q4_k_m"},
        ),
    ]


class Options(Workload, Deployment, total=False):
    """The options of a scenario by keyword; None is an option that is not set."""

    engine: Annotated[
        "str | os.PathLike[str] | Engine | None",
        Option(
            "Engine of expected times: vllm, tensorrt-llm, sglang, lmdeploy, llama.cpp, gpt-fast, hf-eager, ideal"
            " (kernels alone), or a file; a version as in vllm@0.11.",
            Kind.TEXT,
            ENGINE,
            short="Engine",
            metavar="NAME[@VERSION]",
            otherwise="vllm; llama.cpp on CPUs, Apple silicon, AMD's APUs and of GGUF",
            check=later("roofline.specs.engine", "load_engine"),
            known=later("roofline.specs.engine", "list_engines"),
            often=True,
            example="sglang",
        ),
    ]
    price: Annotated[
        float | None,
        Option(
            "Price of a device in USD/h.",
            Kind.NUMBER,
            ENGINE,
            short="Price (USD/h)",
            unit="USD/h",
            metavar="USD",
            low=LEAST_PRICE,
            high=MAX_PRICE,
            otherwise="the dated price in its spec",
            example="1.25",
        ),
    ]
    carbon: Annotated[
        float | str | None,
        Option(
            "Carbon intensity of the electricity in g CO2e/kWh, or a region: 400, france, world.",
            Kind.NUMBER,
            ENGINE,
            short="Carbon (g/kWh)",
            unit="g/kWh",
            metavar="G",
            low=0,
            high=2000,
            other=later("roofline.scenario.energy", "carbon_of"),
            example="400",
        ),
    ]
    convention: Annotated[
        "str | Convention | None",
        Option(
            "How FLOPs and bytes are counted.",
            Kind.TEXT,
            COUNTING,
            short="Convention",
            metavar="physical|llm-viewer",
            default="physical",
            choices=("physical", "llm-viewer"),
            static=True,
            example="llm-viewer",
        ),
    ]
    # Objects of the library in place of the options above; they have no text.
    precision: "str | Precision | None"
    settings: "Settings | None"
    fusions: Iterable[str] | None


OPTIONS: Mapping[str, Option] = table(Options)
"""The options by name: the keywords of `Scenario`, and with dashes the command line's."""

DEGREES: Mapping[str, str] = {
    option.target[1]: option.name for option in OPTIONS.values() if option.target[0] == "degrees"
}
"""The options of the degrees of parallelism, by field of `Parallelism`."""

STATIC = tuple(option.name for option in OPTIONS.values() if option.static)
"""Options of a static batch, which a load has not."""


def of_group(*groups: str) -> tuple[str, ...]:
    """The options of some groups."""
    return tuple(option.name for option in OPTIONS.values() if option.group in groups)


NEEDED = tuple(option.name for option in OPTIONS.values() if option.needed)
"""Options without which there is no scenario."""


MEANT: Mapping[str, str] = {
    **dict.fromkeys(
        ("gpu", "gpus", "num_gpus", "devices", "num_devices", "gpu_count", "n_gpus"),
        "tp is the number of devices that share every layer, and 8xh200 names hardware with its count",
    ),
    **dict.fromkeys(
        ("adapters", "ranks", "max_loras", "max_loras_per_batch", "max_lora_rank", "enable_lora"),
        'adapters are a technique: techniques="lora:adapters=100,rank=16,slots=32"',
    ),
}
"""What to write for names that are no option, in words."""

OF_A_LOAD = frozenset(
    {"concurrency", "max_concurrency", "rate", "request_rate", "offline", "trace", "burstiness", "prefix_hits"}
    | {"users", "rounds", "policy", "tenants", "simulate", "num_prompts", "seed", "disaggregation", "ttft", "tpot"}
    | {"loss", "startup", "rollouts", "models", "models_per_replica"}
)
"""Names of the options of a load and of targets, which are in a later room."""


def option_key(text: object) -> str:
    """A name with underscores, without leading dashes."""
    return str(text).strip().lstrip("-").replace("-", "_").removesuffix("_")


SPELLINGS: Mapping[str, str] = {option_key(flag): option.name for option in OPTIONS.values() for flag in option.flags}
"""The options by the names that engines have for them, without dashes."""


def missing(name: str) -> str:
    """The sentence of an error about a missing option of NEEDED."""
    return f"{'a model' if name == 'model' else 'hardware'} is missing: name {OPTIONS[name].needed}"


def find_option(name: object) -> Option:
    """The option called `name`; raises UnknownNameError with the nearest name.

    Dashes and underscores are alike. Names that engines have for an option are known, too.
    """
    key = option_key(name)
    key = key if key in OPTIONS else SPELLINGS.get(key, key)
    if key in MEANT:
        raise UnknownNameError("option of a scenario", name, (), hint=f"; {MEANT[key]}")
    if key in OF_A_LOAD:
        raise UnknownNameError("option of a scenario", name, (), hint="; a load or its targets have it, as of serve")
    if key not in OPTIONS:
        raise UnknownNameError("option of a scenario", name, [*OPTIONS, *SPELLINGS])
    return OPTIONS[key]


def read_options(values: Mapping[str, object]) -> dict[str, Any]:
    """Option values from text or YAML values, by option name, without those that are not set. Raises RooflineError."""
    found = {name: OPTIONS[name].read(value) for name, value in by_name(values).items()}
    return {
        name: value
        for name, value in found.items()
        if value is not None and not (isinstance(value, list) and not value)
    }


def by_name(values: Mapping[str, Any], others: Collection[str] = ()) -> dict[str, Any]:
    """Values by the names of their options, or of `others`; raises RooflineError where one is given by two names."""
    found: dict[str, Any] = {}
    for given, value in values.items():
        name = given if given in others else find_option(given).name
        if name in found:
            raise RooflineError(f"{given} and another name of {name} are given: give one of them")
        found[name] = value
    return found
