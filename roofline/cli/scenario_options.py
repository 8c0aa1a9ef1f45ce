"""The options of a scenario on the command line, and commands that take a request made of them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from enum import StrEnum
from functools import cache, wraps
from typing import TYPE_CHECKING, Annotated, Any

import typer

from roofline.cli.options import HardwareOption, ModelArgument

if TYPE_CHECKING:
    from roofline.whatif.request import Request


class ConventionChoice(StrEnum):
    """How FLOPs and bytes are counted."""

    PHYSICAL = "physical"
    LLM_VIEWER = "llm-viewer"


def _option(
    name: str, help: str, *flags: str, default: Any = None, metavar: str | None = None, type_: Any = str
) -> inspect.Parameter:
    """An option of a command; `flags` are further ones. `with_` is `--with`, a switch has `--no-` as well."""
    flag = name.removesuffix("_").replace("_", "-")
    own = f"--{flag}/--no-{flag}" if type_ is bool else f"--{flag}"
    annotation = Annotated[type_ | None, typer.Option(own, *flags, help=help, metavar=metavar)]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _count(name: str, help: str, *flags: str, default: str | None = None) -> inspect.Parameter:
    return _option(name, help, *flags, default=default, metavar="N")


def _tokens(name: str, help: str, default: str | None = None) -> inspect.Parameter:
    return _option(name, help, default=default, metavar="TOKENS")


def _format(name: str, help: str, *flags: str) -> inspect.Parameter:
    return _option(name, help, *flags, metavar="FORMAT")


SCENARIO_OPTIONS: Mapping[str, inspect.Parameter] = {
    option.name: option
    for option in (
        inspect.Parameter("model", inspect.Parameter.KEYWORD_ONLY, annotation=ModelArgument),
        inspect.Parameter("hw", inspect.Parameter.KEYWORD_ONLY, annotation=HardwareOption),
        _count("batch", "Sequences in the batch.", default="1"),
        _tokens("prompt", "Prompt tokens per sequence, such as 512, 32k or 128K. [default: 512]"),
        _tokens("generate", "Tokens to generate per sequence.", "128"),
        _tokens("context", "Tokens in the KV cache at the decode step shown. [default: prefix + prompt]"),
        _tokens("prefix", "Cached prefix tokens, before those of --prompt.", "0"),
        _option(
            "quant", "W4, W8A8, W4A16KV8, KV8, fp8, awq, nvfp4, q4_k_m, ... [default: as released]", metavar="SCHEME"
        ),
        _format("weights", "Format of the weights alone."),
        _format("activations", "Format of linear layers' inputs."),
        _format("kv", "Format of the KV cache alone.", "--kv-cache-dtype"),
        _format("dtype", "16- or 32-bit format of what is not quantized, as vLLM's."),
        _option("quantization", "--quant by vLLM's names: awq_marlin, fp8, modelopt_fp4, ...", metavar="METHOD"),
        _option("flash", "FlashAttention. [default: flash; no-flash under the llm-viewer convention]", type_=bool),
        _option("fuse", "More fusions: qkv, gate_up, gate_up_act, residual_norm.", metavar="NAME", type_=list[str]),
        _count("images", "Images per sequence, for vision-language models.", default="0"),
        _option("image_size", "Size of the images in pixels. [default: that of the model's spec]", metavar="WxH"),
        _count("tp", "Tensor-parallel devices.", "--tensor-parallel-size", "-tp", default="1"),
        _count("pp", "Pipeline stages.", "--pipeline-parallel-size", "-pp", default="1"),
        _count("ep", "Expert-parallel devices; beyond --tp, attention is data-parallel.", default="1"),
        _option("enable_expert_parallel", "Expert-parallel over all devices of --tp and --dp.", "-ep", type_=bool),
        _option(
            "dp_attention",
            "Attention data-parallel over the devices of --tp, experts over all.",
            "--enable-dp-attention",
            type_=bool,
        ),
        _count("dp", "Data-parallel replicas that share the batch.", "--data-parallel-size", "-dp", default="1"),
        _count("sp", "Sequence-parallel (context-parallel) devices.", default="1"),
        _count("nodes", "Nodes that hold the devices. [default: as few as possible]"),
        _count("micro_batches", "Micro-batches that fill the pipeline.", default="1"),
        _option(
            "expert_skew",
            "Skew of expert routing: popularity ~ rank^-SKEW; 0 is uniform.",
            default="0",
            metavar="SKEW",
        ),
        _option(
            "offload",
            "Fractions kept in CPU memory and streamed: weights=0.5,kv=1[,bandwidth=7GB/s].",
            metavar="FRACTIONS",
        ),
        _option(
            "with_",
            "A technique (see `roofline techniques`); repeatable.",
            metavar="NAME[:KEY=VALUE,...]",
            type_=list[str],
        ),
        _option(
            "engine",
            "Engine of expected times: vllm, tensorrt-llm, sglang, lmdeploy, llama.cpp, gpt-fast, hf-eager, ideal"
            " (kernels alone), or a file; a version as in vllm@0.11. [default: vllm; llama.cpp on CPUs, Apple"
            " silicon and of GGUF]",
            metavar="NAME[@VERSION]",
        ),
        _option(
            "host",
            "Server that holds PCIe devices: pcie-server, pcie-switch (peer-to-peer among all), pcie-isolated (slow),"
            " or a file. [default: pcie-server, with an interval that covers all]",
            metavar="NAME",
        ),
        _option(
            "memory_reading",
            "Memory as the engine reserves it, or static: all prompts in one pass.",
            default="engine",
            metavar="engine|static",
        ),
        _option(
            "gpu_memory_utilization",
            "Fraction of device memory that the engine may use. [default: the engine's]",
            metavar="FRACTION",
        ),
        _tokens("max_model_len", "Most tokens of a sequence, as vLLM's. [default: the model's]"),
        _count("max_num_seqs", "Most sequences at once of a data-parallel rank, as vLLM's."),
        _option("price", "Price of a device in USD/h. [default: the dated price in its spec]", metavar="USD"),
        _option(
            "convention",
            "How FLOPs and bytes are counted.",
            default=ConventionChoice.PHYSICAL,
            type_=ConventionChoice,
        ),
    )
}
"""The options of a scenario as parameters of a command, by name; `roofline.whatif.options` reads their values."""


def scenario_command(command: Callable[..., None], without: Collection[str] = ()) -> Callable[..., None]:
    """`command(..., request, ...)` as a command with the options of a scenario in the place of `request`.

    Options `without` are not offered and have their defaults; the command may have its own of these names. A command
    with axes (`over`) takes the mapping of option values as `request`, of which none is required.
    """
    own = inspect.signature(command, eval_str=True, locals={"Request": Any}).parameters.values()
    varied = any(entry.name == "over" for entry in own)
    kept = [
        entry.replace(default=None) if varied and name == "hw" else entry
        for name, entry in SCENARIO_OPTIONS.items()
        if name not in without
    ]

    @wraps(command)
    def run(**given: Any) -> None:
        from roofline.whatif.options import read_options, request_from

        options = {name: SCENARIO_OPTIONS[name].default for name in without}
        options |= {entry.name: given.pop(entry.name) for entry in kept}
        read = read_options(options)
        command(request=read if varied else request_from(read), **given)

    spread = [inner for entry in own for inner in (kept if entry.name == "request" else [entry])]
    command_line: Callable[..., None] = with_parameters(run, spread)
    return command_line


def with_scenario_options(command: Callable[..., None]) -> Callable[..., None]:
    """`command` with the options of a scenario as further keywords, None by default."""
    own = inspect.signature(command, eval_str=True).parameters
    kept = [entry for entry in own.values() if entry.kind is not inspect.Parameter.VAR_KEYWORD]
    added = [
        entry.replace(default=None) for name, entry in SCENARIO_OPTIONS.items() if name not in own and name != "model"
    ]
    command_line: Callable[..., None] = with_parameters(command, [*kept, *added])
    return command_line


def with_parameters(function: Any, parameters: Iterable[inspect.Parameter]) -> Any:
    """`function`, which takes any keywords, with the signature that Typer reads its options from."""
    entries = [entry.replace(kind=inspect.Parameter.KEYWORD_ONLY) for entry in parameters]
    function.__signature__ = inspect.Signature(entries)
    function.__annotations__ = {entry.name: entry.annotation for entry in entries}
    function.__dict__.pop("__wrapped__", None)
    return function


@cache
def _parser() -> Any:
    """The parser of `MODEL --hw HW [OPTIONS]`; its result is a mapping of options."""
    reader = typer.Typer(rich_markup_mode=None, add_completion=False)
    reader.command(add_help_option=False)(with_parameters(lambda **options: options, SCENARIO_OPTIONS.values()))
    return typer.main.get_command(reader)


CHANGES = frozenset(
    {"quant", "quantization", "weights", "activations", "kv", "dtype", "flash", "fuse", "offload", "with_"}
)
"""Options that change how a model runs. The plain scenario has none of them."""


def is_plain(words: list[str]) -> bool:
    """Whether the words of a scenario are those of the plain one."""
    return [word.lower() for word in words] in ([], ["none"])


def parse_scenarios(texts: list[str], defaults: Mapping[str, Any] | None = None) -> list[Request]:
    """The requests of texts `MODEL --hw HW [OPTIONS]`; `defaults`, else the first text, fill in missing options.

    An empty text or `none` is the plain scenario: the same model, hardware, workload, parallelism and engine without
    `CHANGES`.
    """
    import shlex

    from roofline.core.errors import RooflineError, quote
    from roofline.whatif.options import read_options, request_from

    parser = _parser()
    if defaults is not None:
        defaults = {name: value for name, value in defaults.items() if name in SCENARIO_OPTIONS}
    found = []
    for text in texts:
        try:
            words = shlex.split(text)
        except ValueError:
            raise RooflineError(f"{quote(text)} has an unclosed quotation mark") from None
        inherited = defaults
        if is_plain(words):
            words, inherited = [], {name: value for name, value in (defaults or {}).items() if name not in CHANGES}
        options = parser.main(words, prog_name="roofline analyze", standalone_mode=False, default_map=inherited)
        defaults = options if defaults is None else defaults
        found.append(request_from(read_options(options)))
    return found
