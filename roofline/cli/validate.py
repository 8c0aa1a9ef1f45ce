"""The commands of `roofline validate`: each parses, calls and prints; what they call is imported when they run."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from roofline.cli.options import HardwareOption, ModelArgument, OutputFormat, OutputOption, drawn, emit

validate_app = typer.Typer(
    help="Measure, fit, score, check: predictions beside real kernels.", rich_markup_mode=None, add_completion=False
)


class DeviceChoice(StrEnum):
    """What kernels are measured on."""

    CUDA = "cuda"
    CPU = "cpu"


MeasurementsArgument = Annotated[
    Path, typer.Argument(metavar="MEASUREMENTS", help="A measurement file (Parquet or CSV) or a folder of them.")
]


@validate_app.command("fit")
def fit(
    measurements: MeasurementsArgument,
    hw: HardwareOption,
    points: Annotated[int | None, typer.Option(help="Use so many random rows of each kernel and format only.")] = None,
    output: OutputOption = None,
) -> None:
    """Fit a calibration for hardware from measured kernels and write it as YAML."""
    from roofline.validate.fit.calibrate import fitted

    emit(fitted(measurements, hw, points), output)


@validate_app.command("score")
def score(
    measurements: MeasurementsArgument,
    hw: Annotated[
        str | None, typer.Option("--hw", metavar="HW", help="Score as this hardware, not as the rows say.")
    ] = None,
    by: Annotated[
        str, typer.Option(metavar="KEYS", help="Group by these: op, format, regime, hardware.")
    ] = "op,format,regime",
    format: Annotated[OutputFormat, typer.Option(help="How to print.")] = OutputFormat.TABLE,
    output: OutputOption = None,
) -> None:
    """Score predictions against measured kernels: errors, bias and interval coverage, beside the pure roofline."""
    from roofline.reports.documents import accuracy
    from roofline.validate.score.kernels import scored
    from roofline.whatif.options import names_in

    document = scored(measurements, hw, names_in(by))
    _print(document, accuracy, format, output)


@validate_app.command("end-to-end")
def end_to_end(
    figures: Annotated[Path, typer.Argument(help="A CSV file of whole-model figures, or a folder of them.")],
    engine: Annotated[
        str | None, typer.Option(metavar="ENGINE", help="Score as this engine, not as the rows say.")
    ] = None,
    by: Annotated[
        str, typer.Option(metavar="KEYS", help="Group by these: file, engine, metric, model, hardware.")
    ] = "file,metric",
    format: Annotated[OutputFormat, typer.Option(help="How to print.")] = OutputFormat.TABLE,
    output: OutputOption = None,
) -> None:
    """Score predicted TTFT, TPOT, latency and throughput of whole models against published figures."""
    from roofline.reports.documents import end_to_end as pages
    from roofline.validate.score import end_to_end as figures_of_models
    from roofline.whatif.options import names_in

    document = figures_of_models.end_to_end(figures, engine, names_in(by))
    _print(document, pages, format, output)


@validate_app.command("check")
def check(
    anchors: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Anchor files. [default: the bundled ones]")
    ] = None,
    predictions: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Committed predictions. [default: the project's]")
    ] = None,
    accept: Annotated[bool, typer.Option("--accept", help="Write what moved to the committed predictions.")] = False,
    format: Annotated[OutputFormat, typer.Option(help="How to print.")] = OutputFormat.TABLE,
    output: OutputOption = None,
) -> None:
    """Published figures beside predictions; fails where a prediction is not the committed one."""
    from roofline.reports.documents import check as page
    from roofline.validate.check import check as checking

    document = checking.check(anchors, predictions, accept)
    _print(document, page, format, output)
    if not document["passed"]:
        typer.echo(f"roofline: {document['verdict']}", err=True)
        raise typer.Exit(1)


def _print(document: Mapping[str, Any], page: Any, format: OutputFormat, output: Path | None) -> None:
    """A document in one of the formats, by the module that draws it: `as_csv`, `as_markdown` and `parts`."""
    from roofline.reports.output import export

    match format:
        case OutputFormat.JSON:
            text = export.as_json(document)
        case OutputFormat.CSV:
            text = page.as_csv(document)
        case OutputFormat.MARKDOWN:
            text = page.as_markdown(document)
        case _:
            text = drawn(page.parts(document), output is None)
    emit(text, output)


DeviceOption = Annotated[DeviceChoice, typer.Option(help="Measure the CUDA device or the processors.")]
MinutesOption = Annotated[float, typer.Option(help="Measure for so long at most; what is left is for another run.")]
OpsOption = Annotated[
    str | None, typer.Option(metavar="OPS", help="Only these, such as gemm,attention_decode,norm. [default: all]")
]
DtypesOption = Annotated[
    str | None, typer.Option("--dtype", metavar="FORMATS", help="Only these formats, such as bf16,fp8. [default: all]")
]
ThreadsOption = Annotated[
    int | None, typer.Option(help="Threads on processors. [default: those that no other program keeps busy]")
]
OverlayOption = Annotated[
    Path, typer.Option("--specs", metavar="FOLDER", help="The overlay folder of this machine's spec and calibration.")
]


@validate_app.command("measure")
def measure(
    device: DeviceOption = DeviceChoice.CUDA,
    minutes: MinutesOption = 20.0,
    ops: OpsOption = None,
    dtype: DtypesOption = None,
    way: Annotated[
        str | None, typer.Option("--kernel", metavar="KERNELS", help="Only these: torch, triton. [default: all]")
    ] = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The measurement file; one that is there is continued.")
    ] = Path("measured.csv"),
    warm: Annotated[
        bool, typer.Option("--warm", help="Replay one set of buffers: caches keep what fits them.")
    ] = False,
    threads: ThreadsOption = None,
) -> None:
    """Measure kernels of this machine into a file, most informative first; say which part of each peak it reaches."""
    from roofline.whatif.options import names_in

    found = _loop().measured(
        str(device), minutes, names_in(ops), output, warm, names_in(dtype), ways=names_in(way), threads=threads
    )
    emit("\n".join(found.lines) + "\n", None)


@validate_app.command("calibrate")
def calibrate(
    device: DeviceOption = DeviceChoice.CUDA,
    minutes: MinutesOption = 20.0,
    ops: OpsOption = None,
    dtype: DtypesOption = None,
    specs: OverlayOption = Path("specs"),
    threads: ThreadsOption = None,
) -> None:
    """Measure this machine, fit its kernels, write spec, calibration and engine profile, and say how far off it is."""
    from roofline.whatif.options import names_in

    found = _loop().calibrated(str(device), minutes, names_in(ops), specs, names_in(dtype), threads)
    emit("\n".join(found.lines) + "\n", None)


@validate_app.command("model")
def model(
    model: ModelArgument,
    device: DeviceOption = DeviceChoice.CUDA,
    specs: OverlayOption = Path("specs"),
    dtype: Annotated[
        str | None, typer.Option(metavar="FORMAT", help="fp32, bf16 or fp16. [default: bf16; on processors fp32]")
    ] = None,
    batch: Annotated[int, typer.Option(help="Sequences in the batch.")] = 1,
    prompt: Annotated[int, typer.Option(help="Prompt tokens of each sequence.")] = 128,
    generate: Annotated[int, typer.Option(help="Tokens to generate for each sequence.")] = 32,
    layers: Annotated[int | None, typer.Option(help="Run so many of its layers. [default: what fits]")] = None,
    threads: ThreadsOption = None,
) -> None:
    """Run a decoder of a model's architecture with random weights, and set the measured times beside the predicted."""
    found = _loop().model_run(model, str(device), specs, dtype, batch, prompt, generate, layers, threads)
    emit("\n".join(found.lines) + "\n", None)


@validate_app.command("drift")
def drift(
    measurements: Annotated[
        Path, typer.Argument(metavar="MEASUREMENTS", help="A file of `roofline validate measure`.")
    ],
    threads: ThreadsOption = None,
) -> None:
    """Measure a few rows of a file again and say whether the machine has changed; exit status 1 if it has."""
    found = _loop().drift(measurements, threads=threads)
    emit("\n".join(found.lines) + "\n", None)
    if found.changed:
        raise typer.Exit(1)


def _loop() -> Any:
    """What measures this machine; PyTorch and what fits are not part of the base install."""
    from roofline.core.errors import RooflineError

    try:
        from roofline.validate import loop
        from roofline.validate.measure.device import torch_module
    except ModuleNotFoundError as error:
        raise RooflineError(f"this needs {error.name}: pip install 'llm-roofline[validate]'") from None
    torch_module()
    return loop
