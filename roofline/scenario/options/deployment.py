"""The options of how it runs: formats, kernels and parallelism."""

# Annotations are evaluated here, at once: their metadata is the table.
import os
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

from roofline.core.lazy import constant, later
from roofline.core.limits import MAX_DEVICES
from roofline.core.options import Kind, Option
from roofline.scenario.catalogue import catalogue
from roofline.scenario.engine_options import CACHE_DTYPES, DTYPES, METHODS, check_dtype
from roofline.scenario.options.groups import ENGINE, FORMATS, KERNELS, PARALLELISM, setting

if TYPE_CHECKING:
    from roofline.graph.offload import Offload

parse_precision = later("roofline.specs.precision", "parse_precision")
check_fusions = later("roofline.graph.fusion", "check_fusions")
_schemes = constant("roofline.specs.precision", "SCHEMES")
_formats = constant("roofline.specs.formats", "FORMATS")
_fusions = constant("roofline.graph.fusion", "FUSIONS")
# Readers are imported when a value is read: the help of a command needs none.

NOTATIONS = ("W8A8", "W4A16", "W8A16", "W4A8", "W4A16KV8", "W16A16")
"""Schemes by bits, beside the named ones."""

ACTIVATIONS = ("bf16", "fp16", "fp32", "fp8", "int8", "nvfp4", "mxfp4")
CACHES = ("bf16", "fp16", "fp8", "int8", "int4", "nvfp4")
"""The usual formats of linear layers' inputs and of the KV cache."""


def _format(help: str, part: str, short: str, metavar: str = "FORMAT", **more: Any) -> Option:
    """A format, which is often turned unless it says otherwise."""
    more = {"check": lambda text: parse_precision("bf16", **{part: text}), "often": True, **more}
    return Option(help, Kind.TEXT, FORMATS, ("formats", part), "", short, metavar=metavar, **more)


def _degree(help: str, degree: str, short: str, *flags: str, default: str = "1", **more: Any) -> Option:
    """A degree of parallelism, likewise."""
    more = {"often": True, "default": default, "flags": flags, "example": "2", **more}
    return Option(help, Kind.INTEGER, PARALLELISM, ("degrees", degree), short=short, low=1, high=MAX_DEVICES, **more)


class Formats(TypedDict, total=False):
    """Formats, kernels and techniques."""

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
            "Fractions in CPU memory, streamed: weights=0.5,kv=1[,bandwidth=7GB/s]; tables=1: of n-grams, looked up.",
            Kind.TEXT,
            KERNELS,
            short="Offload",
            metavar="FRACTIONS",
            check=later("roofline.graph.offload", "parse_offload"),
            example="weights=0.5",
        ),
    ]


class Layout(Formats, total=False):
    """Parallelism, and what joins the devices."""

    tp: Annotated[
        int | None, _degree("Tensor-parallel devices.", "tensor", "TP", "--tensor-parallel-size", "-tp", "--tp-size")
    ]
    pp: Annotated[
        int | None, _degree("Pipeline stages.", "pipeline", "PP", "--pipeline-parallel-size", "-pp", "--pp-size")
    ]
    ep: Annotated[
        int | None,
        _degree("Expert-parallel devices; beyond --tp, attention is data-parallel.", "expert", "EP", "--ep-size"),
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
            low=0,
            high=MAX_DEVICES,
            default="0",
            flags=("--ep-num-redundant-experts", "--num-redundant-experts"),
            example="32",
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
        ),
    ]
    dp_attention: Annotated[
        bool | None,
        Option(
            "Attention data-parallel over the devices of --tp, experts over all.",
            Kind.SWITCH,
            PARALLELISM,
            short="DP attention",
            flags=("--enable-dp-attention"),
            example="true",
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
        ),
    ]
    nodes: Annotated[
        int | None,
        _degree(
            "Nodes that hold the devices.", "nodes", "Nodes", "--nnodes", default="", otherwise="as few as possible"
        ),
    ]
    micro_batches: Annotated[
        int | None,
        _degree(
            "Micro-batches that fill the pipeline.",
            "micro_batches",
            "Micro-batches",
            default="",
            otherwise="as many as stages; 1 in llama.cpp",
            often=False,
        ),
    ]
    expert_skew: Annotated[
        float | None,
        setting(
            "Skew of expert routing: popularity ~ rank^-SKEW; 0 is uniform.",
            Kind.NUMBER,
            "expert_skew",
            "Expert skew",
            PARALLELISM,
            metavar="SKEW",
            high=10,
            default="0",
            example="0.5",
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
        ),
    ]
