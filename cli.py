"""The command line: a command parses, calls and prints; no arithmetic lives here."""

from __future__ import annotations

import gc
import inspect
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from reports.commands import HardwareOption, ModelArgument, OutputFormat, OutputOption
from reports.commands import drawn as _drawn
from reports.commands import emit as _emit
from validate.commands import validate_app

if TYPE_CHECKING:
    from roofline import Hardware, Model
    from roofline.request import Request

app = typer.Typer(
    name="roofline",
    help="How fast an LLM runs on a piece of hardware, what holds it back, and what it needs.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
specs_app = typer.Typer(help="List, show, check and import model and hardware specs.", rich_markup_mode=None)
app.add_typer(specs_app, name="specs")
app.add_typer(validate_app, name="validate")


class ListFormat(StrEnum):
    """How specs are printed."""

    TABLE = "table"
    JSON = "json"


class AnswerFormat(StrEnum):
    """How an answer to a question is printed."""

    TABLE = "table"
    JSON = "json"
    MARKDOWN = "markdown"


class Question(StrEnum):
    """What `roofline solve` answers."""

    MAX_BATCH = "max-batch"
    MAX_CONTEXT = "max-context"
    MIN_GPUS = "min-gpus"
    MIN_MEMORY = "min-memory"
    MIN_BANDWIDTH = "min-bandwidth"
    MIN_PEAK = "min-peak"
    MAX_BITS = "max-bits"
    MIN_BITS = "min-bits"
    MAX_DRAFT = "max-draft"
    BREAK_EVEN = "break-even"
    CROSSOVER = "crossover"


class AtChoice(StrEnum):
    """Where times are read: the speed of light, or the optimistic end, middle or pessimistic end of expected ones."""

    BOUND = "bound"
    LOW = "low"
    MID = "mid"
    HIGH = "high"


class MetricChoice(StrEnum):
    """What two settings are compared by."""

    TTFT = "ttft"
    TPOT = "tpot"
    TOTAL = "total"


class PhaseChoice(StrEnum):
    """Which phases are shown."""

    PREFILL = "prefill"
    DECODE = "decode"
    BOTH = "both"


class ConventionChoice(StrEnum):
    """How FLOPs and bytes are counted."""

    PHYSICAL = "physical"
    LLM_VIEWER = "llm-viewer"


class LevelChoice(StrEnum):
    """What a technique changes."""

    DATA = "data"
    MODEL = "model"
    SYSTEM = "system"


class SpecKind(StrEnum):
    """What is listed."""

    MODELS = "models"
    HARDWARE = "hardware"


def _version(asked: bool) -> None:
    if asked:
        from roofline import __version__

        typer.echo(f"roofline {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    pass


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
        str | None, typer.Option(metavar="SCHEME", help="W4, W8A8, W4A16KV8, KV8, fp8, awq, nvfp4, q4_k_m, ...")
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
    nodes: Annotated[int, typer.Option(help="Nodes that the devices are spread over.")] = 1,
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
        str,
        typer.Option(
            metavar="NAME",
            help="Engine that expected times are for: vllm, tensorrt-llm, sglang, llama.cpp, gpt-fast, hf-eager,"
            " ideal (kernels alone), or a profile's file.",
        ),
    ] = "vllm",
    price: Annotated[
        float | None,
        typer.Option(metavar="USD", help="USD an hour of a device, for costs. [default: the dated price of its spec]"),
    ] = None,
    convention: Annotated[
        ConventionChoice, typer.Option(help="How FLOPs and bytes are counted.")
    ] = ConventionChoice.PHYSICAL,
) -> Any:
    """The `Request` that the options of a scenario describe: every command that takes a scenario takes these."""
    from roofline.options import compose

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


def scenario_command(command: Callable[..., None]) -> Callable[..., None]:
    """`command(..., request, ...)` as a command line: in the place of the request the options of a scenario."""
    from inspect import signature

    own = signature(command, eval_str=True, locals={"Request": Any}).parameters.values()
    shared = list(signature(requested, eval_str=True).parameters.values())

    @wraps(command)
    def run(**given: Any) -> None:
        request = requested(**{entry.name: given.pop(entry.name) for entry in shared})
        command(request=request, **given)

    spread = [inner for entry in own for inner in (shared if entry.name == "request" else [entry])]
    command_line: Callable[..., None] = _with_parameters(run, spread)
    return command_line


def _with_parameters(function: Any, parameters: Iterable[Any]) -> Any:
    """A function of any keywords, made to look as if it had these parameters: the option parser goes by looks."""
    from inspect import Parameter, Signature

    entries = [entry.replace(kind=Parameter.KEYWORD_ONLY) for entry in parameters]
    function.__signature__ = Signature(entries)
    function.__annotations__ = {entry.name: entry.annotation for entry in entries}
    function.__dict__.pop("__wrapped__", None)
    return function


def parse_scenarios(texts: list[str], given: Mapping[str, Any] | None = None) -> list[Request]:
    """Scenarios written as `MODEL --hw HW [OPTIONS]`; what one leaves out is as in the first, or as `given`."""
    import shlex
    from inspect import signature

    from roofline.errors import RooflineError, quote

    shared = signature(requested, eval_str=True).parameters.values()
    reader = typer.Typer(rich_markup_mode=None, add_completion=False)
    reader.command(add_help_option=False)(_with_parameters(lambda **options: options, shared))
    parser = typer.main.get_command(reader)
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


@app.command()
@scenario_command
def analyze(
    request: Request,
    phase: Annotated[PhaseChoice, typer.Option(help="Which phases to show.")] = PhaseChoice.BOTH,
    format: Annotated[OutputFormat, typer.Option(help="How to print.")] = OutputFormat.TABLE,
    output: OutputOption = None,
) -> None:
    """Analyse a model on hardware: every operator on the roofline, both phases, memory and a whole generation."""
    from reports.document import analysis_document
    from roofline import analyze as analyze_scenario

    scenario = request.scenario()
    phases = ("prefill", "decode") if phase is PhaseChoice.BOTH else (str(phase),)
    if phase is PhaseChoice.DECODE and scenario.model.task != "generate":
        raise typer.BadParameter(f"{scenario.model.name} only encodes and has no decode phase", param_hint="--phase")
    document = analysis_document(analyze_scenario(scenario), phases)
    _emit(_rendered(document, format, output is None), output)


FormatOption = Annotated[AnswerFormat, typer.Option("--format", help="How to print.")]
AtOption = Annotated[AtChoice, typer.Option("--at", help="Read times at the bound or at expected low, mid or high.")]


def _time_option(name: str, meaning: str) -> Any:
    return typer.Option(name, metavar="TIME", help=f"{meaning} at most, such as 500ms.")


@app.command()
@scenario_command
def solve(
    context_: typer.Context,
    question: Annotated[Question, typer.Argument(metavar="QUESTION", help=f"{', '.join(Question)}.")],
    request: Request,
    ttft: Annotated[str | None, _time_option("--ttft", "Time to first token")] = None,
    tpot: Annotated[str | None, _time_option("--tpot", "Time per output token")] = None,
    total: Annotated[str | None, _time_option("--total", "Time of the whole batch")] = None,
    tokens_per_s: Annotated[float | None, typer.Option(help="Tokens a second of all sequences, at least.")] = None,
    ignore_memory: Annotated[bool, typer.Option("--ignore-memory", help="It need not fit in memory.")] = False,
    at: AtOption = AtChoice.MID,
    against: Annotated[
        str | None,
        typer.Option(metavar="OPTIONS", help="break-even: options that differ from these, '--quant awq' for one."),
    ] = None,
    metric: Annotated[MetricChoice, typer.Option(help="break-even: what is compared.")] = MetricChoice.TOTAL,
    chips: Annotated[
        bool, typer.Option("--chips/--no-chips", help="min-memory, -bandwidth, -peak: name known hardware that does.")
    ] = True,
    format: FormatOption = AnswerFormat.TABLE,
    output: OutputOption = None,
) -> None:
    """Answer inverse questions: the largest batch, the longest prompt, the least bandwidth that meet targets.

    Each answer is simulated, and so is the next value, which misses a target.
    """
    from reports import solve as page
    from roofline import solve as solver

    targets = solver.Targets(
        ttft=_seconds(ttft),
        tpot=_seconds(tpot),
        total=_seconds(total),
        tokens_per_second=tokens_per_s,
        fits=not ignore_memory,
        at=at.value,
    )
    if (against is not None) is not (question is Question.BREAK_EVEN):
        raise typer.BadParameter("break-even, and it alone, needs the options to compare with", param_hint="--against")
    known = None if chips else ()
    match question:
        case Question.CROSSOVER:
            document = page.crossover_document(solver.crossover(request), request)
            _answered(document, page.crossover_blocks(document), format, output)
            return
        case Question.BREAK_EVEN:
            other = parse_scenarios([against or ""], context_.params)[0]
            answer = solver.break_even(request, other, targets, str(metric))
        case Question.MIN_MEMORY:
            answer = solver.min_memory(request, targets, known)
        case Question.MIN_BANDWIDTH:
            answer = solver.min_bandwidth(request, targets, known)
        case Question.MIN_PEAK:
            answer = solver.min_peak(request, targets, known)
        case _:
            answer = getattr(solver, question.replace("-", "_"))(request, targets)
    document = page.answer_document(answer, request, targets)
    _answered(document, page.answer_blocks(document), format, output)


@app.command()
@scenario_command
def sensitivity(
    request: Request,
    step: Annotated[float, typer.Option(help="Relative step of the central differences.")] = 0.01,
    at: AtOption = AtChoice.MID,
    format: FormatOption = AnswerFormat.TABLE,
    output: OutputOption = None,
) -> None:
    """Show by how many percent times, rate and memory change with one percent of each setting.

    Elasticities of TTFT, TPOT and the rest to bandwidth, peak, links, launches, the host, batch, lengths and bits, at
    expected times and at the bound.
    """
    from reports import sensitivity as page
    from roofline.sensitivity import sensitivity as respond

    expected = request.scenario().convention == ConventionChoice.PHYSICAL
    readings = [AtChoice.BOUND] if at is AtChoice.BOUND or not expected else [at, AtChoice.BOUND]
    found = {str(reading): respond(request, reading.value, step) for reading in readings}
    document = page.sensitivity_document(found, request, step)
    _answered(document, page.sensitivity_blocks(document), format, output)


class ObjectiveChoice(StrEnum):
    """What advice is to make better."""

    TOTAL = "total"
    TTFT = "ttft"
    TPOT = "tpot"
    THROUGHPUT = "throughput"
    MEMORY = "memory"
    COST = "cost"
    ENERGY = "energy"


class QualityChoice(StrEnum):
    """How much changes may ask for."""

    LOSSLESS = "lossless"
    CALIBRATED = "calibrated"
    LOSSY = "lossy"
    RETRAIN = "retrain"


def _list_rules(asked: bool) -> None:
    if asked:
        from reports import advice as page
        from reports import blocks

        typer.echo(_drawn(blocks.parts(page.rules_blocks(page.rules_document())), True), nl=False)
        raise typer.Exit


@app.command()
@scenario_command
def advise(
    request: Request,
    objective: Annotated[ObjectiveChoice, typer.Option(help="What is to get better.")] = ObjectiveChoice.TOTAL,
    ttft: Annotated[str | None, _time_option("--ttft", "Time to first token")] = None,
    tpot: Annotated[str | None, _time_option("--tpot", "Time per output token")] = None,
    total: Annotated[str | None, _time_option("--total", "Time of the whole batch")] = None,
    memory: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Memory of a device at most, such as 80GB.")
    ] = None,
    gpus: Annotated[
        int | None, typer.Option(min=1, help="Devices at most. [default: as many as the scenario has]")
    ] = None,
    budget: Annotated[
        str | None, typer.Option(metavar="USD/h", help="Rent of all devices at most, such as 20/h.")
    ] = None,
    quality: Annotated[
        QualityChoice, typer.Option(help="How much changes may ask for: each allows those before it.")
    ] = QualityChoice.CALIBRATED,
    at: AtOption = AtChoice.MID,
    vary_batch: Annotated[
        bool | None,
        typer.Option(
            "--vary-batch/--keep-batch",
            help="Whether other batches may be advised. [default: for throughput, cost and energy]",
        ),
    ] = None,
    research: Annotated[
        bool, typer.Option("--research", help="Also techniques that no document says the engine runs.")
    ] = False,
    top: Annotated[int, typer.Option(min=1, help="Single changes shown.")] = 5,
    list_rules: Annotated[  # noqa: ARG001 - its callback does all
        bool,
        typer.Option("--list-rules", help="List the advisor's rules and exit.", callback=_list_rules, is_eager=True),
    ] = False,
    format: FormatOption = AnswerFormat.TABLE,
    output: OutputOption = None,
) -> None:
    """Advise what to change: simulated gains, what they ask for, where they stop, what is in vain, and a plan."""
    from advisor import Goal, Limits, Objective, Quality
    from advisor import advise as ask
    from reports import advice as page
    from reports.progress import told
    from roofline.units import Dimension, parse_quantity

    limits = Limits(
        ttft=_seconds(ttft),
        tpot=_seconds(tpot),
        total=_seconds(total),
        memory=None if memory is None else parse_quantity(memory, Dimension.BYTES).value,
        gpus=gpus,
        budget=page.budget(budget),
    )
    goal = Goal(Objective(objective), limits, Quality(quality), at.value, vary_batch)
    with told() as progress:
        document = page.advice_document(ask(request, goal, research=research, top=top, progress=progress), top)
    _answered(document, page.advice_blocks(document), format, output)


def _definitions(asked: bool) -> None:
    if asked:
        from reports import blocks as page
        from reports.explain import definitions

        typer.echo(_drawn(page.parts(definitions()), True), nl=False)
        raise typer.Exit


@app.command()
@scenario_command
def explain(
    metric: Annotated[
        str, typer.Argument(metavar="METRIC", help="ttft, tpot, total, tokens_per_s, memory, or an operator's name.")
    ],
    request: Request,
    phase: Annotated[PhaseChoice, typer.Option(help="Whose operator: prefill or decode.")] = PhaseChoice.PREFILL,
    definitions: Annotated[  # noqa: ARG001 - its callback does all
        bool,
        typer.Option("--definitions", help="Define every figure and exit.", callback=_definitions, is_eager=True),
    ] = False,
    format: FormatOption = AnswerFormat.TABLE,
    output: OutputOption = None,
) -> None:
    """Take a figure apart: its formula with this scenario's numbers, what bounds it, and what it rests on.

    That is for an operator its tensors, its roofs, and its kernel with calibrated constants; for all the commands that
    measure the same on real hardware.
    """
    from reports import explain as page
    from roofline import analyze as analyze_scenario
    from roofline.explain import explain as take_apart

    if phase is PhaseChoice.BOTH:
        raise typer.BadParameter("an operator is explained in one phase: prefill or decode", param_hint="--phase")
    analysis = analyze_scenario(request.scenario())
    document = page.explain_document(take_apart(analysis, metric, str(phase)), analysis)
    _answered(document, page.explain_blocks(document), format, output)


@app.command(context_settings={"ignore_unknown_options": True})
def compare(
    scenarios: Annotated[
        list[str],
        typer.Argument(
            metavar="SCENARIO...",
            help="Two or more, each in quotation marks: MODEL --hw HW [OPTIONS], as for `roofline analyze`."
            " What a later one leaves out is as in the first: '--hw h200-sxm' alone will do.",
        ),
    ],
    metric: Annotated[MetricChoice, typer.Option(help="What the difference is explained of.")] = MetricChoice.TOTAL,
    top: Annotated[int, typer.Option(min=1, help="Operators shown; the others are added up.")] = 12,
    format: FormatOption = AnswerFormat.TABLE,
    output: OutputOption = None,
) -> None:
    """Compare scenarios side by side, with the operators that make the difference.

    JSON has every operator, for TTFT, the mean decode step and the whole.
    """
    from reports import compare as page
    from roofline import analyze as analyze_scenario

    if len(scenarios) < 2:
        raise typer.BadParameter("a comparison needs two scenarios or more, each in quotation marks")
    analyses = [analyze_scenario(request.scenario()) for request in parse_scenarios(scenarios)]
    document = page.compare_document(analyses, scenarios, None if format is AnswerFormat.JSON else top)
    _answered(document, page.compare_blocks(document, str(metric)), format, output)


class SizeAt(StrEnum):
    """Which expected times a sizing goes by."""

    LOW = "low"
    MID = "mid"
    HIGH = "high"


@app.command()
def size(
    model: ModelArgument,
    rate: Annotated[
        float | None, typer.Option(metavar="N", help="Requests a second. [default: one user, who waits]")
    ] = None,
    prompt: Annotated[
        str, typer.Option(metavar="LENGTH", help="Tokens: 2000, uniform:128:1024, lognormal:mean=512,p95=1500,")
    ] = "512",
    generate: Annotated[
        str, typer.Option(metavar="LENGTH", help="exponential:mean=300, or a CSV file of length,count.")
    ] = "128",
    ttft: Annotated[str | None, _time_option("--ttft", "Time to first token, waits included,")] = None,
    tpot: Annotated[str | None, _time_option("--tpot", "Time per output token")] = None,
    quantile: Annotated[
        str, typer.Option(metavar="SHARE", help="Share of requests that targets hold for, or mean.")
    ] = "0.95",
    hw: Annotated[
        str | None, typer.Option(metavar="NAMES", help="Hardware to choose from. [default: all; one user: desktops]")
    ] = None,
    price: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=USD", help="USD an hour of a device (one user: to buy it); repeatable."),
    ] = None,
    quality: Annotated[
        QualityChoice, typer.Option(help="How much formats may ask for: each allows those before it.")
    ] = QualityChoice.CALIBRATED,
    engine: Annotated[
        str | None, typer.Option(metavar="NAME", help="Engine. [default: vllm; on CPUs and Apple's llama.cpp]")
    ] = None,
    at: Annotated[SizeAt, typer.Option(help="Targets hold at expected low, mid or high.")] = SizeAt.MID,
    format: FormatOption = AnswerFormat.TABLE,
    output: OutputOption = None,
) -> None:
    """Choose hardware, devices, parallelism, formats and batch for a service, or for one user.

    The cheapest, that of fewest devices, the fastest and the most efficient, with the runner-up of each and what would
    change the choice.
    """
    from advisor import Quality
    from advisor.sizing import size as choose
    from advisor.workload import Service, parse_quantile
    from reports import sizing as page
    from reports.progress import told
    from roofline import load_model

    service = Service(rate, prompt, generate, _seconds(ttft), _seconds(tpot), parse_quantile(quantile))
    names = None if hw is None else _names(hw)
    given = page.prices(price or [], rate is None)
    with told() as tell:
        found = choose(
            load_model(model),
            service,
            names,
            Quality(quality),
            given,
            engine,
            at.value,
            lambda done, every: tell(f"configuration {done} of {every}"),
        )
        document = page.sizing_document(found)
    _answered(document, page.sizing_blocks(document), format, output)


def _names(text: str | None) -> tuple[str, ...]:
    """The names in a list with commas."""
    return tuple(filter(None, (name.strip() for name in (text or "").split(","))))


def _seconds(text: str | None) -> float | None:
    from roofline.units import Dimension, parse_quantity

    return None if text is None else parse_quantity(text, Dimension.TIME).value


def _answered(document: dict[str, Any], blocks: list[Any], format: AnswerFormat, output: Path | None) -> None:
    from reports import blocks as page
    from reports import export

    match format:
        case AnswerFormat.JSON:
            _emit(export.as_json(document), output)
        case AnswerFormat.MARKDOWN:
            _emit(page.as_markdown(blocks), output)
        case _:
            _emit(_drawn(page.parts(blocks), output is None), output)


def _rendered(document: dict[str, Any], format: OutputFormat, to_terminal: bool) -> str:
    from reports import export

    match format:
        case OutputFormat.JSON:
            return export.as_json(document)
        case OutputFormat.CSV:
            return export.as_csv(document)
        case OutputFormat.MARKDOWN:
            return export.as_markdown(document)
    from reports.terminal import analysis_parts

    return _drawn(analysis_parts(document), to_terminal)


class SweepFormat(StrEnum):
    """How the rows of a sweep are written."""

    TABLE = "table"
    CSV = "csv"
    JSONL = "jsonl"
    PARQUET = "parquet"


class SweepAt(StrEnum):
    """Which times a sweep has."""

    EXPECTED = "expected"
    BOUND = "bound"


class InvalidChoice(StrEnum):
    """What becomes of combinations that cannot run."""

    DROP = "drop"
    KEEP = "keep"


def _of_a_scenario(command: Callable[..., None]) -> Callable[..., None]:
    """Gives a command the options of a scenario, each None where it is not given."""
    own = inspect.signature(command, eval_str=True).parameters
    scenario = inspect.signature(requested, eval_str=True).parameters
    added = [
        parameter.replace(default=None, kind=inspect.Parameter.KEYWORD_ONLY)
        for name, parameter in scenario.items()
        if name not in own and name != "model"
    ]
    kept = [parameter for parameter in own.values() if parameter.kind is not inspect.Parameter.VAR_KEYWORD]
    command.__signature__ = inspect.Signature([*kept, *added])  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in (*kept, *added)}
    return command


@app.command()
@_of_a_scenario
def sweep(
    model: Annotated[
        str | None, typer.Argument(metavar="[MODEL|STUDY]", help="A model, or a YAML file that holds a study.")
    ] = None,
    over: Annotated[
        list[str] | None,
        typer.Option(
            metavar="AXIS=VALUES",
            help="An axis; repeatable: batch=1:256:log16, prompt=512,2048, tp=1:8, quant=W16,W4, hw=h100-sxm,mi300x or"
            " hw=all, with=none,eagle+awq. Any option below can be one; so can model.",
        ),
    ] = None,
    metrics: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES",
            help="ttft, tpot, step, total, tokens_per_s, tokens_per_s_per_gpu, tokens_per_s_per_user, memory[.weights,"
            " .kv, .state, .activations], headroom, fits, gpus, bound, energy[.prefill, .decode, .tdp], power,"
            " cost[.processed]; ttft.bound, ttft.low, ttft.high and so on.",
        ),
    ] = None,
    at: Annotated[
        SweepAt | None, typer.Option(help="Expected times, or the speed of light. [default: expected]")
    ] = None,
    where: Annotated[
        str | None,
        typer.Option(metavar="CONDITION", help="Only such rows: 'fits and ttft < 500ms and memory < 0.9 * 80GB'."),
    ] = None,
    top: Annotated[int | None, typer.Option(help="Only so many rows, the best --by a metric.")] = None,
    by: Annotated[str | None, typer.Option(metavar="METRIC", help="What --top ranks by.")] = None,
    pareto: Annotated[
        str | None, typer.Option(metavar="METRICS", help="Only rows that no other beats in all of these.")
    ] = None,
    invalid: Annotated[
        InvalidChoice | None,
        typer.Option(help="Drop combinations that cannot run, or keep them as rows with an error. [default: drop]"),
    ] = None,
    format: Annotated[
        SweepFormat | None, typer.Option(help="How to write the rows. [default: by the file's name; else a table]")
    ] = None,
    output: OutputOption = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Keep what is done if cut off, and continue from what is there.")
    ] = False,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes of this machine to run on.")] = None,
    dask: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Run on the cluster of this Dask scheduler: tcp://host:8786.")
    ] = None,
    chunk: Annotated[int | None, typer.Option(min=1, help="Points evaluated together.", hidden=True)] = None,
    **options: Any,
) -> None:
    """Evaluate every combination of any number of axes: a grid of what-ifs as a table, CSV, JSON lines or Parquet.

    Times in files are in seconds, memory in bytes. What is not an axis is fixed by the options below, with the
    defaults of `roofline analyze`.
    """
    from reports import sweep as page
    from roofline.executors import pool
    from roofline.study import assemble

    study = assemble(
        model,
        over or [],
        {"with" if name == "technique" else name: value for name, value in options.items()},
        {"metrics": metrics, "at": at, "where": where, "top": top, "by": by, "pareto": pareto, "invalid": invalid},
    )
    chosen = page.format_of(output) if format is None else page.SweepFormat(format)
    with pool(workers, dask) as found:
        run = page.Run(found, chunk, resume, page.on_terminal())
        if chosen is page.SweepFormat.TABLE:
            rows, tally = page.table_sweep(study, run)
            _emit(page.drawn(study.question, rows, tally, output is None), output)
        elif output is None:
            tally = page.stream_sweep(study, chosen, sys.stdout.buffer, run)
        else:
            tally = page.write_sweep(study, chosen, output, run)
    typer.echo(page.closing(study.question, tally), err=True)


@app.command()
@_of_a_scenario
def plot(
    figure: Annotated[
        str,
        typer.Argument(
            metavar="FIGURE",
            help="Of a scenario: roofline, batch, prompt, memory. Of a sweep: heatmap, pareto, curves, bars, footprint."
            " Of hardware: roofs. Of predictions beside measurements: measured. Or a study file that names one.",
        ),
    ],
    source: Annotated[
        str | None,
        typer.Argument(
            metavar="[MODEL|STUDY|MEASUREMENTS]",
            help="A model; a study file; for measured a file of kernels or whole models, or validate check's JSON.",
        ),
    ] = None,
    over: Annotated[
        list[str] | None, typer.Option(metavar="AXIS=VALUES", help="An axis of a sweep, as for roofline sweep.")
    ] = None,
    metric: Annotated[
        str | None, typer.Option(metavar="NAMES", help="What is drawn of a sweep, as --metrics there. [default: tpot]")
    ] = None,
    pareto: Annotated[
        str | None,
        typer.Option(metavar="METRICS", help="The two of a front. [default: tokens_per_s_per_user and _per_gpu]"),
    ] = None,
    x: Annotated[str | None, typer.Option("--x", metavar="AXIS", help="The axis that runs across.")] = None,
    y: Annotated[str | None, typer.Option("--y", metavar="AXIS", help="The axis that runs up a heat map.")] = None,
    at: Annotated[
        SweepAt | None, typer.Option(help="Expected times, or the speed of light. [default: expected]")
    ] = None,
    where: Annotated[str | None, typer.Option(metavar="CONDITION", help="Only such points of a sweep.")] = None,
    formats: Annotated[
        str | None, typer.Option(metavar="FORMATS", help="Only these roofs, such as fp16,int8. [default: all]")
    ] = None,
    title: Annotated[str | None, typer.Option(help="A title in place of the figure's own.")] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="The file: .svg, .png or .pdf.")] = Path("figure.svg"),
    **options: Any,
) -> None:
    """Draw a figure of a scenario, a sweep, hardware, or predictions beside measurements.

    A study file with a section `figure` is drawn as it says: roofline plot STUDY.yaml.
    """
    from reports.wish import names, wish_for
    from roofline.errors import RooflineError

    wish, source = wish_for(figure, source)
    wish = wish.with_options(metric=names(metric), x=x, y=y, formats=names(formats), title=title)
    try:
        from reports.figures import drawing, style
    except ModuleNotFoundError as error:
        raise RooflineError(f"this needs {error.name}: pip install 'llm-roofline[report]'") from None
    style.check_ending(output)
    given = {"with" if name == "technique" else name: value for name, value in options.items()}
    picture = drawing.draw(wish, source, over or [], given, {"at": at, "where": where, "pareto": pareto})
    style.save(picture.figure, output)
    typer.echo(f"wrote {output}")


@app.command()
@_of_a_scenario
def report(
    source: Annotated[
        str | None,
        typer.Argument(metavar="[MODEL|STUDY]", help="A model, or a study file: its scenarios, side by side."),
    ] = None,
    over: Annotated[
        list[str] | None,
        typer.Option(metavar="AXIS=VALUES", help="Several scenarios side by side: hw=h100-sxm,h200-sxm; repeatable."),
    ] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="The file: .html or .md.")] = Path("report.html"),
    title: Annotated[str | None, typer.Option(help="A title in place of the report's own.")] = None,
    date: Annotated[str | None, typer.Option(metavar="YYYY-MM-DD", help="A date on the page. [default: none]")] = None,
    advice: Annotated[bool, typer.Option("--advice/--no-advice", help="What to change, with a plan.")] = True,
    **options: Any,
) -> None:
    """Write a report: one HTML file with knobs to turn, or Markdown with its figures in files beside it.

    The answer, operators under their roofs, the network, memory, times against batch and prompt, what-ifs, advice, how
    far off it may be, and the commands that give it again. The same input gives the same bytes.
    """
    from reports.progress import told
    from roofline.errors import RooflineError

    try:
        from reports.report.write import write_report
    except ModuleNotFoundError as error:
        raise RooflineError(f"this needs {error.name}: pip install 'llm-roofline[report]'") from None
    given = {"with" if name == "technique" else name: value for name, value in options.items()}
    with told() as progress:
        written = write_report(source, over or [], given, output, title, date, advice, progress)
    typer.echo(f"wrote {written[0]}" + (f" and {len(written) - 1} figures" if written[1:] else ""))


@app.command("techniques")
def list_techniques(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="A technique or a system it covers.")] = None,
    level: Annotated[LevelChoice | None, typer.Option(help="Only this level.")] = None,
    format: Annotated[ListFormat, typer.Option(help="How to print.")] = ListFormat.TABLE,
) -> None:
    """List the techniques that --with applies, or show one with its parameters and published effects."""
    from reports import catalogue, export

    documents = catalogue.techniques(name, None if level is None else str(level))
    if format is ListFormat.JSON:
        typer.echo(export.as_json({"techniques": documents}), nl=False)
    else:
        typer.echo(_drawn(catalogue.parts(documents, alone=name is not None), True), nl=False)


@specs_app.command("list")
def specs_list(
    kind: Annotated[SpecKind, typer.Argument(help="models or hardware.")],
    format: Annotated[ListFormat, typer.Option(help="How to print.")] = ListFormat.TABLE,
) -> None:
    """List every model or all hardware that is known, bundled or from ROOFLINE_SPECS."""
    from reports import export, listing

    documents = listing.models() if kind is SpecKind.MODELS else listing.hardware()
    if format is ListFormat.JSON:
        typer.echo(export.as_json({str(kind): documents}), nl=False)
    else:
        typer.echo(_drawn(listing.parts(str(kind), documents), True), nl=False)


@specs_app.command("show")
def specs_show(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="A model or hardware: a name, a spec file or a config.json.")
    ],
    format: Annotated[ListFormat, typer.Option(help="How to print.")] = ListFormat.TABLE,
) -> None:
    """Show one spec with what follows from it: parameters, KV bytes a token, ridges."""
    from reports import export, listing
    from reports.document import hardware_document, model_document
    from roofline import Hardware

    found = _any_spec(name)
    document = hardware_document(found) if isinstance(found, Hardware) else model_document(found)
    if format is ListFormat.JSON:
        typer.echo(export.as_json(document), nl=False)
    else:
        typer.echo(_drawn(listing.card(document), True), nl=False)


@specs_app.command("check")
def specs_check(
    paths: Annotated[list[str], typer.Argument(metavar="FILE...", help="Spec files or config.json files, or names.")],
) -> None:
    """Check spec files: readable, complete, and the published parameter count met where one is given."""
    from reports import listing

    for path in paths:
        typer.echo(listing.verdict(path, _any_spec(path)))


@specs_app.command("import")
def specs_import(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="A Hugging Face config.json.")],
    name: Annotated[str | None, typer.Option(help="Name of the model. [default: the file's or folder's]")] = None,
    output: OutputOption = None,
) -> None:
    """Write a Hugging Face config.json as a model spec."""
    from reports import listing

    _emit(listing.imported(config, name), output)


def _any_spec(name: str) -> Model | Hardware:
    from roofline.catalogue import load_any

    return load_any(name)


SELDOM = 200_000
"""Objects made between two looks of the garbage collector: a command makes hundreds of thousands that it keeps (graphs,
specs) and hardly a cycle; the usual 700 cost it a sixth of its time."""


def main() -> None:
    """Run the command line: mistakes end with one sentence on stderr and exit status 2, never with a traceback."""
    gc.set_threshold(SELDOM)
    try:
        status = app(standalone_mode=False)
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 0
    except SystemExit:
        if type(sys.stdout).__name__ != "PacifyFlushWrapper":
            raise
        status = 0  # Typer met a broken pipe: whoever read our output has had enough of it.
    except (KeyboardInterrupt, typer.Abort):
        status = 130
    except OSError as error:
        status = _complain(f"cannot write the output: {error.strerror}")
    except Exception as error:
        status = _explain(error)
    sys.exit(status if isinstance(status, int) else 0)


def _explain(error: Exception) -> int:
    """Status of a mistake in what was asked; any other exception is a defect of ours and raised again."""
    from roofline.errors import RooflineError

    if isinstance(error, RooflineError):
        return _complain(str(error))
    # A usage error of the option parser, whose class differs between versions of Typer.
    message = getattr(error, "format_message", None)
    if message is None:
        raise error
    context = getattr(error, "ctx", None)
    return _complain(message(), f"; see '{context.command_path} --help'" if context else "")


def _complain(message: str, hint: str = "") -> int:
    typer.echo(f"roofline: {' '.join(message.replace('Value error, ', '').split()).rstrip('.')}{hint}", err=True)
    return 2


if __name__ == "__main__":
    main()
