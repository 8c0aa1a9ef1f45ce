"""The commands of `roofline validate`."""

from __future__ import annotations

from enum import StrEnum
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from roofline.cli.engine_flags import EngineFlags
from roofline.cli.options import FORMAT, ModelArgument, OutputFormat, OutputOption, emit, print_document, say
from roofline.cli.server import server
from roofline.core.errors import RooflineError, needs_extra
from roofline.core.options import names_in
from roofline.scenario.options import OPTIONS

validate = typer.Typer(help="Measure kernels, fit and score predictions.", rich_markup_mode=None, add_completion=False)

DeviceChoice = StrEnum("DeviceChoice", ["CUDA", "CPU"])

MeasurementsArgument = Annotated[
    Path, typer.Argument(metavar="MEASUREMENTS", help="A measurement file (Parquet or CSV) or a folder of them.")
]


@validate.command("fit")
def fit(
    measurements: MeasurementsArgument,
    hw: Annotated[
        str | None, typer.Option("--hw", metavar="HW", help="Hardware of the kernels. Whole-model rows name theirs.")
    ] = None,
    points: Annotated[int | None, typer.Option(help="Random rows per kernel and format. [default: all]")] = None,
    output: OutputOption = None,
) -> None:
    """Fit a calibration to measured kernels, or an engine profile to whole-model rows.

    Writes YAML. Whole-model rows are those of `validate server` and `validate import`.
    """
    from roofline.validate.fit.calibrate import fitted
    from roofline.validate.fit.user_profile import fit_rows
    from roofline.validate.score.serving import has_loads

    if has_loads(measurements):
        text, notes = fit_rows(measurements)
    elif hw is None:
        raise RooflineError("name the hardware of the kernels with --hw")
    else:
        text, notes = fitted(measurements, hw, points)
    emit(text, output)
    for note in notes:
        say(f"roofline: {note}", err=True)


@validate.command("score")
def score(
    measurements: MeasurementsArgument,
    hw: Annotated[
        str | None, typer.Option("--hw", metavar="HW", help="Score as this hardware. [default: that of each row]")
    ] = None,
    by: Annotated[
        str, typer.Option(metavar="KEYS", help="Columns to group by: op, format, regime, hardware, engine, version.")
    ] = "op,format,regime",
    format: Annotated[OutputFormat, FORMAT] = OutputFormat.TABLE,
    output: OutputOption = None,
) -> None:
    """Score predictions against measured kernels.

    Errors, bias and interval coverage, beside those of the bound.
    """
    from roofline.reports.documents import accuracy
    from roofline.validate.score.kernels import score_file

    document = score_file(measurements, hw, names_in(by))
    print_document(document, accuracy.accuracy_blocks(document), format, output, accuracy.as_csv)


@validate.command("end-to-end")
def end_to_end(
    figures: Annotated[Path, typer.Argument(help="A CSV file of whole-model measurements, or a folder of them.")],
    engine: Annotated[
        str | None, typer.Option(metavar="ENGINE", help="Score as this engine. [default: that of each row]")
    ] = None,
    by: Annotated[
        str, typer.Option(metavar="KEYS", help="Columns to group by: file, engine, metric, model, hardware.")
    ] = "file,metric",
    format: Annotated[OutputFormat, FORMAT] = OutputFormat.TABLE,
    output: OutputOption = None,
) -> None:
    """Score predictions against whole-model measurements.

    TTFT, TPOT, latency and throughput.
    """
    from roofline.reports.documents import accuracy
    from roofline.validate.score import end_to_end as figures_of_models

    document = figures_of_models.end_to_end(figures, engine, names_in(by))
    print_document(document, accuracy.accuracy_blocks(document), format, output, accuracy.as_csv)


@validate.command("serving")
def serving(
    figures: Annotated[Path, typer.Argument(metavar="FILE", help="A CSV file of serving benchmarks, also gzipped.")],
    by: Annotated[
        str,
        typer.Option(
            metavar="KEYS",
            help="Columns to group by: engine, version, model, hardware, format, lengths, deployment, metric.",
        ),
    ] = "engine,metric",
    format: Annotated[OutputFormat, FORMAT] = OutputFormat.TABLE,
    output: OutputOption = None,
) -> None:
    """Score predictions under load against serving benchmarks.

    TTFT and TPOT at a number of requests in flight, or at a rate; also of
    InferenceX's runs, and of prefill and decode on pools of their own.
    """
    from roofline.reports.documents import accuracy
    from roofline.validate.score import serving as under_load

    document = under_load.score_serving(figures, names_in(by))
    print_document(document, accuracy.accuracy_blocks(document), format, output, accuracy.as_csv)


@validate.command("import")
def import_results(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Result files of benchmarks.")],
    model: Annotated[
        str | None, typer.Option(metavar="MODEL", help="The model, where the files do not name it.")
    ] = None,
    hw: Annotated[
        str | None, typer.Option("--hw", metavar="HW", help="The hardware, also with a count as in 8xH200.")
    ] = None,
    engine: Annotated[
        str | None, typer.Option(metavar="ENGINE", help="The engine with its version: 'vLLM 0.24.0'.")
    ] = None,
    weights: Annotated[
        str | None, typer.Option(metavar="FORMAT", help="Format of the weights. [default: as released]")
    ] = None,
    kv: Annotated[str | None, typer.Option(metavar="FORMAT", help="Format of the KV cache. [default: 16-bit]")] = None,
    batch: Annotated[
        str | None,
        typer.Option(metavar="LOAD", help="A static batch, or a load: 8, 'closed loop 8', 'open loop 4 req/s'."),
    ] = None,
    prompt: Annotated[str | None, typer.Option(metavar="TOKENS", help="Mean prompt tokens per request.")] = None,
    generate: Annotated[str | None, typer.Option(metavar="TOKENS", help="Mean generated tokens per request.")] = None,
    prediction: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The prediction.json of `roofline launch`: print which metrics it hits."),
    ] = None,
    configuration: Annotated[
        list[str] | None,
        typer.Option(
            "--configuration", metavar="NAME", help="One of a file of InferenceX's configurations; repeatable."
        ),
    ] = None,
    predict: Annotated[
        bool, typer.Option("--predict", help="Of InferenceX's configurations and results: predict each row.")
    ] = False,
    output: OutputOption = None,
) -> None:
    """Convert result files of other benchmarks to rows (CSV).

    Reads vllm bench serve, latency and throughput, sglang.bench_serving, GuideLLM, AIPerf, GenAI-Perf, trtllm-bench,
    llama-bench, TGI's benchmark and MLPerf's summary. Options state what the files lack, and take precedence over them.
    Of InferenceX it reads configurations (nvidia-master.yaml) and results (agg_*.json): rows for `validate serving`.
    """
    from roofline.validate.imports.recipes import import_recipes, is_recipe

    if files and all(is_recipe(file) for file in files):
        recipes = import_recipes(files, configuration or (), predict)
        emit(recipes.text, output)
        for note in recipes.notes:
            typer.echo(f"roofline: {note}", err=True)
        return
    if configuration or predict:
        raise RooflineError("--configuration and --predict are of InferenceX's files alone")
    from roofline.validate.imports.convert import import_files
    from roofline.validate.imports.result import Given

    lengths = {
        name: None if text is None else OPTIONS[name].number(text)
        for name, text in (("prompt", prompt), ("generate", generate))
    }
    given = Given(model, hw, engine, weights, kv, batch, **lengths)
    if prediction is not None:
        from roofline.validate.imports.verdict import read_forecast, told, verdict

        expected = read_forecast(prediction)
        given = told(given, expected)
        if len(files) != 1:
            raise RooflineError("--prediction is that of one result file")
    found = import_files(files, given)
    if prediction is None or output is not None:
        emit(found.text, output)
    if prediction is not None:
        say("\n".join(verdict(found.rows, expected)))
    for note in found.notes:
        typer.echo(f"roofline: {note}", err=True)


@validate.command("check")
def check(
    anchors: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="Anchors (YAML), a folder of them, or rows (CSV). [default: bundled ones]"),
    ] = None,
    predictions: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Committed predictions. [default: the project's]")
    ] = None,
    accept: Annotated[bool, typer.Option("--accept", help="Write new and changed predictions to that file.")] = False,
    format: Annotated[OutputFormat, FORMAT] = OutputFormat.TABLE,
    output: OutputOption = None,
) -> None:
    """Check predictions against the committed ones.

    Shows published measurements beside predictions; exit status 1 if a prediction differs from its committed value.
    """
    from roofline.reports.documents import check as page
    from roofline.validate.check import check as checking

    document = checking.check(anchors, predictions, accept)
    print_document(document, page, format, output)
    if not document["passed"]:
        say(f"roofline: {document['verdict']}", err=True)
        raise typer.Exit(1)


DeviceOption = Annotated[DeviceChoice, typer.Option(help="Measure the CUDA device or the CPU.")]
MinutesOption = Annotated[float, typer.Option(help="Maximum duration; a later run continues.")]
OpsOption = Annotated[
    str | None, typer.Option(metavar="OPS", help="Operators, such as gemm,attention_decode,norm. [default: all]")
]
DtypesOption = Annotated[
    str | None, typer.Option("--dtype", metavar="FORMATS", help="Formats, such as bf16,fp8. [default: all]")
]
ThreadsOption = Annotated[int | None, typer.Option(help="CPU threads. [default: the idle ones]")]
OverlayOption = Annotated[
    Path, typer.Option("--specs", metavar="FOLDER", help="Folder of this machine's spec and calibration.")
]


@validate.command("measure")
def measure(
    device: DeviceOption = DeviceChoice.CUDA,
    minutes: MinutesOption = 20.0,
    ops: OpsOption = None,
    dtype: DtypesOption = None,
    backend: Annotated[
        str | None, typer.Option("--kernel", metavar="KERNELS", help="Kernel sources: torch, triton. [default: all]")
    ] = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The measurement file; an existing one is continued.")
    ] = Path("measured.csv"),
    warm: Annotated[bool, typer.Option("--warm", help="Reuse one set of buffers, so that caches are warm.")] = False,
    threads: ThreadsOption = None,
) -> None:
    """Measure kernels on this machine.

    The most informative come first. Prints the fraction of each peak that they reach.
    """
    found = _on_this_machine("measure.bench").run_measure(
        str(device), minutes, names_in(ops), output, warm, names_in(dtype), backends=names_in(backend), threads=threads
    )
    say("\n".join(found.lines))


@validate.command("calibrate")
def calibrate(
    device: DeviceOption = DeviceChoice.CUDA,
    minutes: MinutesOption = 20.0,
    ops: OpsOption = None,
    dtype: DtypesOption = None,
    specs: OverlayOption = Path("specs"),
    threads: ThreadsOption = None,
) -> None:
    """Measure and calibrate this machine.

    Measures and fits kernels, writes spec, calibration and engine profile, and prints the errors of the fit.
    """
    found = _on_this_machine("loop.calibrate").run_calibrate(
        str(device), minutes, names_in(ops), specs, names_in(dtype), threads
    )
    say("\n".join(found.lines))


@validate.command("gpu")
def gpu(
    minutes: Annotated[float, typer.Option(help="Minutes that the visit may take in all.")] = 8.0,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="DIR", help="Folder of the results; rows there are kept.")
    ] = Path("gpu"),
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List the steps and the seconds they should take.")
    ] = False,
) -> None:
    """Make the most of a few minutes on a GPU.

    Correctness of the kernels, timings beside the vendor's library, a network, and a fit. Every row is written as it
    comes: a stop at any second loses one row at most.
    """
    with needs_extra("validate"):
        from roofline.validate.gpu import runner
    if dry_run:
        say("\n".join(runner.dry_run(minutes)))
        return
    results = runner.run(output, minutes, say)
    say(f"{output}: {sum(result.status == 'done' for result in results)} of {len(results)} steps done; see summary.md")


@validate.command("model")
def model(
    model: ModelArgument,
    device: DeviceOption = DeviceChoice.CUDA,
    specs: OverlayOption = Path("specs"),
    dtype: Annotated[
        str | None, typer.Option(metavar="FORMAT", help="fp32, bf16 or fp16. [default: bf16; fp32 on CPUs]")
    ] = None,
    batch: Annotated[str, typer.Option(metavar="N", help="Sequences in the batch.")] = "1",
    prompt: Annotated[str, typer.Option(metavar="TOKENS", help="Prompt tokens per sequence.")] = "128",
    generate: Annotated[str, typer.Option(metavar="TOKENS", help="Tokens to generate per sequence.")] = "32",
    layers: Annotated[int | None, typer.Option(help="Number of layers to run. [default: as many as fit]")] = None,
    threads: ThreadsOption = None,
) -> None:
    """Run a model with random weights, and score its times.

    Measured and predicted times of a decoder of the model's architecture.
    """
    given = {"batch": batch, "prompt": prompt, "generate": generate}
    counts = [int(OPTIONS[name].number(text)) for name, text in given.items()]
    found = _on_this_machine("loop.whole_model").run_model(model, str(device), specs, dtype, *counts, layers, threads)
    say("\n".join(found.lines))


@validate.command("drift")
def drift(
    measurements: Annotated[
        Path, typer.Argument(metavar="MEASUREMENTS", help="A file of `roofline validate measure`.")
    ],
    threads: ThreadsOption = None,
) -> None:
    """Detect a changed machine by measuring rows again.

    Exit status 1 if the machine has changed.
    """
    found = _on_this_machine("loop.device_drift").run_drift(measurements, threads=threads)
    say("\n".join(found.lines))
    if found.changed:
        raise typer.Exit(1)


validate.command("server", cls=EngineFlags)(server)


def _on_this_machine(module: str) -> Any:
    """The module of a command that measures this machine; it needs PyTorch, which the base install lacks."""
    with needs_extra("validate"):
        found = import_module(f"roofline.validate.{module}")
        from roofline.validate.measure.device import torch_module
    torch_module()
    return found
