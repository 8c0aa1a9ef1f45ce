"""The options of a scenario: read into a request, and given to every command that takes one."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
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


def requested(
    model: ModelArgument,
    hw: HardwareOption,
    batch: Annotated[int, typer.Option(help="Sequences in the batch.")] = 1,
    prompt: Annotated[int | None, typer.Option(help="Prompt tokens of each sequence. [default: 512]")] = None,
    generate: Annotated[int, typer.Option(help="Tokens to generate for each sequence.")] = 128,
    context: Annotated[
        int | None, typer.Option(help="Tokens in the cache at the decode step shown. [default: prefix + prompt]")
    ] = None,
    prefix: Annotated[int, typer.Option(help="Tokens of the prompt's start that are already cached.")] = 0,
    quant: Annotated[
        str | None,
        typer.Option(
            metavar="SCHEME", help="W4, W8A8, W4A16KV8, KV8, fp8, awq, nvfp4, q4_k_m, ... [default: as released]"
        ),
    ] = None,
    weights: Annotated[str | None, typer.Option(metavar="FORMAT", help="Format of the weights alone.")] = None,
    activations: Annotated[str | None, typer.Option(metavar="FORMAT", help="Format of linear layers' inputs.")] = None,
    kv: Annotated[str | None, typer.Option(metavar="FORMAT", help="Format of the KV cache alone.")] = None,
    flash: Annotated[
        bool | None,
        typer.Option(
            "--flash/--no-flash", help="FlashAttention. [default: flash; no-flash by the llm-viewer convention]"
        ),
    ] = None,
    fuse: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Further fusions: qkv, gate_up, gate_up_act, residual_norm."),
    ] = None,
    images: Annotated[int, typer.Option(help="Images of each sequence, for models that see.")] = 0,
    tp: Annotated[int, typer.Option(help="Tensor-parallel devices.")] = 1,
    pp: Annotated[int, typer.Option(help="Pipeline stages.")] = 1,
    ep: Annotated[int, typer.Option(help="Expert-parallel devices: beyond --tp, attention runs data-parallel.")] = 1,
    dp: Annotated[int, typer.Option(help="Data-parallel replicas; the batch is shared by them.")] = 1,
    sp: Annotated[int, typer.Option(help="Sequence-parallel (context-parallel) devices.")] = 1,
    nodes: Annotated[
        int | None, typer.Option(help="Nodes that the devices are spread over. [default: as many as they need]")
    ] = None,
    micro_batches: Annotated[int, typer.Option(help="Parts of the batch that fill a pipeline.")] = 1,
    expert_skew: Annotated[
        float, typer.Option(help="Skew of expert routing: popularity falls with rank to this power; 0 is uniform.")
    ] = 0.0,
    offload: Annotated[
        str | None,
        typer.Option(metavar="SHARES", help="Kept off the device, streamed to it: weights=0.5,kv=1[,bandwidth=7GB/s]."),
    ] = None,
    technique: Annotated[
        list[str] | None,
        typer.Option(
            "--with", metavar="NAME[:KEY=VALUE,...]", help="A technique (see `roofline techniques`); repeatable."
        ),
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Engine that expected times are for: vllm (0.8 to 0.13: vllm-sync, 2024: vllm-v0), tensorrt-llm,"
            " sglang, llama.cpp, gpt-fast, hf-eager, ideal (kernels alone), or a profile's file."
            " [default: vllm; on CPUs and Apple's llama.cpp]",
        ),
    ] = None,
    price: Annotated[
        float | None,
        typer.Option(metavar="USD", help="USD an hour of a device, for costs. [default: the dated price of its spec]"),
    ] = None,
    convention: Annotated[
        ConventionChoice, typer.Option(help="How FLOPs and bytes are counted.")
    ] = ConventionChoice.PHYSICAL,
) -> Any:
    """The `Request` that the options of a scenario describe: every command that takes a scenario takes these."""
    from roofline.whatif.options import compose

    return compose(
        model,
        hw,
        formats={"scheme": quant, "weights": weights, "activations": activations, "kv": kv},
        degrees={
            "tensor": tp,
            "pipeline": pp,
            "expert": ep,
            "data": dp,
            "sequence": sp,
            "nodes": nodes,
            "micro_batches": micro_batches,
        },
        flash=flash,
        fuse=fuse or [],
        expert_skew=expert_skew,
        offload=offload,
        techniques=technique or [],
        convention=str(convention),
        batch=batch,
        prompt=prompt,
        generate=generate,
        context=context,
        prefix=prefix,
        images=images,
        engine=engine,
        price=price,
    )


@cache
def scenario_options() -> Mapping[str, inspect.Parameter]:
    """The options of a scenario by name: the parameters of `requested`."""
    return inspect.signature(requested, eval_str=True).parameters


def scenario_command(command: Callable[..., None]) -> Callable[..., None]:
    """`command(..., request, ...)` as a command line: in the place of the request the options of a scenario."""
    own = inspect.signature(command, eval_str=True, locals={"Request": Any}).parameters.values()
    shared = list(scenario_options().values())

    @wraps(command)
    def run(**given: Any) -> None:
        request = requested(**{entry.name: given.pop(entry.name) for entry in shared})
        command(request=request, **given)

    spread = [inner for entry in own for inner in (shared if entry.name == "request" else [entry])]
    command_line: Callable[..., None] = _with_parameters(run, spread)
    return command_line


def options_of_a_scenario(command: Callable[..., None]) -> Callable[..., None]:
    """Gives a command the options of a scenario, each None where it is not given."""
    own = inspect.signature(command, eval_str=True).parameters
    kept = [entry for entry in own.values() if entry.kind is not inspect.Parameter.VAR_KEYWORD]
    added = [
        entry.replace(default=None) for name, entry in scenario_options().items() if name not in own and name != "model"
    ]
    command_line: Callable[..., None] = _with_parameters(command, [*kept, *added])
    return command_line


def _with_parameters(function: Any, parameters: Iterable[inspect.Parameter]) -> Any:
    """A function of any keywords, made to look as if it had these parameters: the option parser goes by looks."""
    entries = [entry.replace(kind=inspect.Parameter.KEYWORD_ONLY) for entry in parameters]
    function.__signature__ = inspect.Signature(entries)
    function.__annotations__ = {entry.name: entry.annotation for entry in entries}
    function.__dict__.pop("__wrapped__", None)
    return function


@cache
def _reader() -> Any:
    """The parser of `MODEL --hw HW [OPTIONS]`: it returns the options."""
    reader = typer.Typer(rich_markup_mode=None, add_completion=False)
    reader.command(add_help_option=False)(_with_parameters(lambda **options: options, scenario_options().values()))
    return typer.main.get_command(reader)


def parse_scenarios(texts: list[str], given: Mapping[str, Any] | None = None) -> list[Request]:
    """Scenarios written as `MODEL --hw HW [OPTIONS]`; what one leaves out is as in the first, or as `given`."""
    import shlex

    from roofline.core.errors import RooflineError, quote

    parser = _reader()
    names = {entry.name for entry in parser.params}
    known = None if given is None else {name: value for name, value in given.items() if name in names}
    found = []
    for text in texts:
        try:
            words = shlex.split(text)
        except ValueError:
            raise RooflineError(f"{quote(text)} has a quotation mark that nothing closes") from None
        options = parser.main(words, prog_name="roofline analyze", standalone_mode=False, default_map=known)
        known = options if known is None else known
        found.append(requested(**options))
    return found
