"""The plan of a visit to a GPU: its steps in the order of their value, with the seconds that each should take.

A step writes every row as it comes, so that a stop loses one row at most. What a step found is a sentence and facts.
"""

from __future__ import annotations

import math
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from roofline.core.errors import RooflineError
from roofline.core.files import save_text
from roofline.core.inputs import read_text
from roofline.core.units import si
from roofline.specs.modelspec import load_model
from roofline.validate.gpu import correctness, network, shapes
from roofline.validate.gpu.pool import Answer, each
from roofline.validate.gpu.shapes import Point
from roofline.validate.gpu.summary import rows_in
from roofline.validate.gpu.visit import CALIBRATION, NETWORK, ROWS, VERDICTS, Visit, machine_facts
from roofline.validate.kernels.benchmark import benchmarks
from roofline.validate.loop.whole_model import overlay
from roofline.validate.measure.bench import measure
from roofline.validate.measure.design import Limits, design
from roofline.validate.measure.device import Cuda, is_device_failure
from roofline.validate.tables.rowfile import RowFile
from roofline.validate.tables.text import MAX_BYTES


class Target(Struct, frozen=True):
    """An NVIDIA GPU to compile for: its compute capability times ten, and its streaming multiprocessors."""

    capability: int
    multiprocessors: int


def compiled(point: Point, target: Target) -> list[Any]:
    """Triton's compiled kernels, of which a launch of the point may need each; the process must not have run one."""
    from roofline.validate.kernels.triton_kernels.launch import compiled_only

    case, backend = point
    benchmark = benchmarks()[case.op]
    with compiled_only(target.capability, target.multiprocessors) as found:
        benchmark.backends[backend](case, benchmark.inputs(case, "meta", 0), benchmark.outputs(case, "meta"))
        return found


def compile_points(
    points: Sequence[Point], target: Target, workers: int, done: Callable[[Answer], None], seconds: float = float("inf")
) -> int:
    """Compile the Triton kernels of the points in `workers` processes; `done` is called with each answer.

    Triton keeps binaries on disk, by their source, constants and target: what is compiled here is not compiled again
    when kernels are measured. On sixteen cores this takes a tenth of the time that the first launches would.
    Returns how many points were left when the `seconds` were over.
    """
    own = [point for point in points if point[1].startswith("triton")]
    return each(lambda point: len(compiled(point, target)), own, workers, done, seconds)


ENDING = 1.0
"""Seconds before its limit at which a step ends its processes, so that it can still say what it did."""

VERDICT_COLUMNS = ("op", "format", "kernel", "case", "status", "error", "allowed", "reason", "seconds")

FURTHER: Mapping[str, tuple[str, ...]] = {
    "gemm": ("bf16", "fp8", "int8", "int4_wo"),
    "attention_prefill": ("bf16", "bf16/fp8"),
    "attention_decode": ("bf16", "bf16/fp8"),
}
"""Formats of the general design, by op; bf16 for others."""

Found = tuple[str, dict[str, Any]]
"""What a step says: a sentence, and facts."""


class Step(Struct, frozen=True):
    """A step: what it does, the seconds it should take, and the most that it may."""

    name: str
    title: str
    seconds: float
    limit: float
    run: Callable[[Visit], Found]


def machine(visit: Visit) -> Found:
    """The device, its clocks and software; bandwidth of a copy, a triad and a sum; peaks of large GEMMs."""
    device = visit.bench.find_device()
    found = visit.bench.examine(device)
    facts = machine_facts(found, device)
    if isinstance(device, Cuda):
        properties = device.torch.cuda.get_device_properties(0)
        if device.torch.version.hip is None:
            facts["target"] = [10 * properties.major + properties.minor, properties.multi_processor_count]
    sheet = found.hardware.memory_bandwidth
    reached = f"{si(found.bandwidth, 'B/s')}, {100 * found.bandwidth / sheet:.0f}% of the spec"
    return f"{found.title}, {facts['software']}; {reached}", facts


def compiling(visit: Visit) -> Found:
    """Compile the Triton kernels of the plan on all cores."""
    target = visit.facts["machine"].get("target")
    if target is None:
        return "nothing to compile ahead: no NVIDIA GPU", {}
    errors: list[str] = []

    def keep(answer: Answer) -> None:
        if answer.error is not None:
            errors.append(f"{answer.task[0]}: {answer.error}")

    chosen = points(visit)
    left = compile_points(chosen, Target(*target), visit.bench.workers, keep, visit.left() - ENDING)
    count = sum(backend.startswith("triton") for _, backend in chosen)
    rest = f", {left} left for later" if left else ""
    failed = f"; {len(errors)} failed: {errors[0]}" if errors else ""
    return f"{count - left - len(errors)} of {count} launches compiled{rest}{failed}", {"errors": errors[:20]}


def correct(visit: Visit) -> Found:
    """Every kernel against float64, in all formats and at odd sizes, in processes that may fail."""
    device, counts, wrong = visit.bench.device, Counter[str](), []
    (visit.folder / VERDICTS).unlink(missing_ok=True)  # those of an earlier visit say nothing of this one
    with RowFile(visit.folder / VERDICTS, VERDICT_COLUMNS) as file:

        def keep(answer: Answer) -> None:
            row = verdict_row(answer)
            file.append(row)
            counts[str(row["status"])] += 1
            if row["status"] in ("wrong", "failed"):
                wrong.append(f"{row['case']} with {row['kernel']}: {row['reason'] or 'error ' + str(row['error'])}")

        cases = correctness.points(visit.bench.large)
        if visit.bench.isolated:
            left = each(
                lambda point: correctness.verdict(point, device),
                cases,
                visit.bench.workers,
                keep,
                visit.left() - ENDING,
                is_device_failure,
            )
        else:
            left = 0
            for point in cases:
                keep(Answer(point, correctness.verdict(point, device), None, 0.0))
    failed = f"; first: {wrong[0]}" if wrong else ""
    rest = f", {left} left" if left else ""
    count = counts["wrong"] + counts["failed"]
    return f"{counts['correct']} correct, {count} not, {counts['refused']} refused{rest}{failed}", {"wrong": wrong[:40]}


def verdict_row(answer: Answer) -> dict[str, object]:
    """The row of an answer: `correct`, `wrong`, `refused`, or `failed` with an error."""
    case, backend = answer.task
    row: dict[str, object] = {"op": case.op, "format": case.format, "kernel": backend, "case": str(case)}
    row["seconds"] = f"{answer.seconds:.2f}"
    if answer.error is not None:
        return {**row, "status": "failed", "reason": answer.error}
    verdict: correctness.Verdict = answer.value
    if verdict.refused:
        return {**row, "status": "refused", "reason": verdict.refused}
    status = "correct" if verdict.correct else "wrong"
    return {**row, "status": status, "error": f"{verdict.error:.3g}", "allowed": f"{verdict.allowed:.3g}"}


def timing(chosen: Callable[[shapes.Sizes], list[Point]]) -> Callable[[Visit], Found]:
    """A step that times points with cold caches, short kernels in CUDA graphs."""

    def run(visit: Visit) -> Found:
        return timed(visit, chosen(visit.bench.sizes))

    return run


def timed(visit: Visit, points: Sequence[Point]) -> Found:
    """Time points into the file of rows until the step's time is up."""
    device, kernels = visit.bench.find_device(), benchmarks()
    chosen = [(case, backend, kernels[case.op]) for case, backend in points]
    with RowFile(visit.folder / ROWS) as file:
        seconds = visit.left()
        # A point that has begun is finished: tuning a large kernel takes seconds.
        outcome = measure(chosen, seconds - max(2.0, 0.08 * seconds), device, visit.machine.hardware.name, file)
    rest = f", {outcome.left} left" if outcome.left else ""
    rest += f", {outcome.before} already there" if outcome.before and not outcome.measured else ""
    most = "; ".join(f"{count}x {reason}" for reason, count in outcome.refused.most_common(2))
    skipped = f", {outcome.refused.total()} skipped ({most})" if outcome.refused else ""
    return f"{outcome.measured} rows{rest}{skipped}", {"skipped": dict(outcome.refused)}


def whole(visit: Visit) -> Found:
    """A network of 1B parameters, replayed from CUDA graphs."""
    device, hardware = visit.bench.find_device(), visit.machine.hardware
    errors = []
    (visit.folder / NETWORK).unlink(missing_ok=True)
    with RowFile(visit.folder / NETWORK, network.COLUMNS) as file:
        for row in network.timed(device, hardware, "bf16", visit.bench.model, visit.bench.passes):
            file.append(row)
            errors.append(float(str(row["expected_us"])) / float(str(row["latency_us"])) - 1.0)
            if visit.left() <= 0:
                break
    mean = sum(map(abs, errors)) / len(errors)
    return f"{len(errors)} passes, predicted with a mean error of {100 * mean:.0f}%", {"errors": errors}


def more(visit: Visit) -> Found:
    """Further shapes of all ops, spread over the whole range, until the time is up."""
    found, sizes = visit.machine, visit.bench.sizes
    formats = {op: FURTHER.get(op, ("bf16",)) for op in benchmarks()}
    peak = max(found.peaks.values(), default=1e12)
    limits = Limits(4e9, min(10e-3 * peak, 2.0 * sizes.rows * sizes.width**2), 10e-3 * found.bandwidth)
    cases = [case for case in design(formats, limits, visit.bench.further) if bounded(case.columns, sizes)]
    chosen = [
        (case, backend)
        for case in cases
        for backend in ("torch", "triton")
        if backend == "triton" or not (case.op == "moe" or case.dtype == "int4_wo" or case.format == "bf16/fp8")
    ]
    return timed(visit, chosen)


def bounded(columns: Mapping[str, int | str], sizes: shapes.Sizes) -> bool:
    """Whether a shape of the general design is within the bounds of a plan."""
    product = math.prod(value for value in columns.values() if isinstance(value, int) and value > 0)
    return product <= sizes.rows * sizes.width**2


def fitted(visit: Visit) -> Found:
    """A calibration fitted to four of five rows, scored on the others, beside what is shipped."""
    from roofline.timing.calibration_files import render
    from roofline.validate.fit.calibrate import describe
    from roofline.validate.loop.calibrate import fitted_and_scored
    from roofline.validate.tables.rows import read_measurements

    rows = visit.folder / ROWS
    if not rows.is_file():
        raise RooflineError("there are no rows to fit to")
    parts = read_measurements(rows)
    calibration, after, before, overall, failed = fitted_and_scored(parts, visit.machine.hardware)
    source = replace(describe(parts), command="roofline validate gpu")
    save_text(visit.folder / CALIBRATION, render(replace(calibration, source=source)))
    groups = {
        f"{group['op']} {group['format']}": {
            "rows": group.rows,
            "after": group.median_ape,
            "before": next((old.median_ape for old in before if old.labels == group.labels), None),
            "inside": group.interval_coverage,
        }
        for group in after
    }
    total = f"median error {100 * overall.median_ape:.0f}% on held-out rows" if overall else "no rows held out"
    facts = {"groups": groups, "failed": failed, "network": refitted(visit)}
    return f"{len(calibration.fits)} kinds of kernels fitted; {total}", facts


def refitted(visit: Visit) -> dict[str, list[float]]:
    """Relative errors of the network's passes: as they were predicted, and with the calibration of this visit."""
    hardware = visit.machine.hardware
    model = load_model(network.MODEL) if visit.bench.model is None else visit.bench.model
    found = {}
    with tempfile.TemporaryDirectory() as specs, overlay(Path(specs)):
        calibration = read_text(visit.folder / CALIBRATION, MAX_BYTES)
        save_text(Path(specs) / "calibration" / f"{hardware.name}.yaml", calibration)
        for row in rows_in(visit.folder / NETWORK):
            one = network.Step(row["phase"], int(row["batch"]), int(row["context"]))
            after = network.predicted(model, one, hardware, row["dtype"])["expected_us"]
            measured = float(row["latency_us"])
            name = f"{one.phase}, batch {one.batch}, {one.context} tokens"
            found[name] = [float(row["expected_us"]) / measured - 1, after / measured - 1]
    return found


def points(visit: Visit) -> list[Point]:
    """All points that the steps time by name."""
    sizes = visit.bench.sizes
    return [*shapes.gemms(sizes), *shapes.attention(sizes), *shapes.layers(sizes), *shapes.quantized(sizes)]


STEPS: tuple[Step, ...] = (
    Step("machine", "device, clocks, software, bandwidth and peaks", 5, 45, machine),
    Step("compile", "the Triton kernels of the plan, on all cores", 40, 60, compiling),
    Step("correct", "every Triton kernel against float64, odd shapes, all formats", 35, 90, correct),
    Step("gemm", "BF16 and FP8 GEMMs of models: cuBLAS and Triton", 40, 120, timing(shapes.gemms)),
    Step(
        "attention", "prefill and decode: SDPA and Triton, GQA, windows, FP8 caches", 35, 75, timing(shapes.attention)
    ),
    Step("layers", "experts, norms, RoPE, activations, softmax", 15, 60, timing(shapes.layers)),
    Step("network", "a model of 1B in CUDA graphs: prefill and decode", 6, 45, whole),
    Step("quantized", "4-bit weights, INT8 and FP8 beside BF16", 10, 45, timing(shapes.quantized)),
    Step("more", "further shapes of all ops, until the time is up", 60, math.inf, more),
    Step("fit", "a calibration, scored on rows that it was not fitted to", 10, 60, fitted),
)
"""The most valuable first, with the seconds that an H200 took. The last one is always given its time."""
