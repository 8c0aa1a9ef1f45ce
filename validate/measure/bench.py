"""`roofline validate measure`: time kernels of the ops and formats of this machine, and write them to a file.

Each case and backend that has no row yet is measured within a time budget, and its row appended.

Points that cannot be measured (a format that the GPU lacks, out of memory, a refusal of the backend) are skipped and
counted by reason; an error that leaves the device unusable ends the run with a message, and the rows are kept.
"""

from __future__ import annotations

import datetime
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct, field

from roofline.core.errors import RooflineError, UnknownNameError
from roofline.specs.hardware import Hardware
from roofline.timing.kernels.formats import numbers
from roofline.validate.kernels.benchmark import Benchmark, benchmarks
from roofline.validate.kernels.work import Case
from roofline.validate.measure.design import Limits, design, memory_bytes
from roofline.validate.measure.device import Call, Device, Sample, is_device_failure, is_out_of_memory, open_device
from roofline.validate.measure.machine import Machine, examine
from roofline.validate.tables.rowfile import RowFile, identity, planned

if TYPE_CHECKING:
    from collections.abc import Iterator


MAX_CALL_TIME = {"cuda": 30e-3, "cpu": 50e-3}
"""Seconds of one call of a point at the achieved peak and bandwidth."""

POINTS = {"cuda": 100, "cpu": 60}
"""Points for each op and format."""

Point = tuple[Case, str, Benchmark]
"""A case, the backend to measure it with, and its benchmark."""


class Outcome(Struct):
    """Counts of a run: rows measured, rows already in the file, points left for later, and skipped points by reason."""

    measured: int = 0
    before: int = 0
    left: int = 0
    refused: Counter[str] = field(default_factory=Counter)


Progress = Callable[[float, str], None]
"""Called with the fraction of a run that is done, and the label of the next point."""


@contextmanager
def bar() -> Iterator[Progress]:
    """A progress bar with the time left, on stderr, if that is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (BarColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as shown:
        task = shown.add_task("", total=1.0)
        yield lambda fraction, label: shown.update(task, completed=min(fraction, 1.0), description=label)


@lru_cache(maxsize=1)
def revision() -> str:
    """The commit of this code, where it runs from a checkout; else the version of the package."""
    from roofline import __version__

    folder = Path(__file__).resolve().parent
    try:
        answer = subprocess.run(
            ("git", "describe", "--always", "--dirty"),  # noqa: S607 - whichever git there is
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=10,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return __version__
    return answer.stdout.strip() or __version__


def measure(
    points: Sequence[Point],
    seconds: float,
    device: Device,
    hardware: str,
    file: RowFile,
    cold: bool = True,
    progress: Progress = lambda _fraction, _label: None,
) -> Outcome:
    """Measure each case with its backend, in order, unless the file has its row, and stop after `seconds`.

    Raises RooflineError where the file cannot be written or the device stopped working.
    """
    start = time.monotonic()
    outcome = Outcome(before=len(file.rows))
    done = {identity(row) for row in file.rows}
    for index, (case, backend, benchmark) in enumerate(points):
        if planned(case, backend, cold) in done:
            continue
        spent = (time.monotonic() - start) / seconds if seconds > 0 else 1.0
        if spent >= 1.0:
            outcome.left += 1
            continue
        progress(max(spent, index / len(points)), f"{case.op} {case.format}")
        sample = measure_case(case, backend, device, benchmark, cold)
        if isinstance(sample, str):
            outcome.refused[f"{case.op} in {case.format}, {backend}: {sample}"] += 1
            continue
        file.append(row_of(case, backend, sample, device, hardware, cold))
        done.add(planned(case, backend, cold))
        outcome.measured += 1
    return outcome


def points_of(
    cases: Iterable[Case],
    known: Mapping[str, Benchmark],
    device: Device,
    backends: Collection[str] = (),
    preferred: str | None = None,
) -> list[Point]:
    """The cases with each of these backends (all if empty), PyTorch's first: calibrations are fitted to it.

    With `preferred`, each with that backend alone, or another one where it refuses the case. A CPU has PyTorch's only.
    """
    found: list[Point] = []
    for case in cases:
        benchmark = known[case.op]
        own = ["torch"] if device.name == "cpu" else benchmark.backends
        available = sorted(own, key=lambda name: (name != "torch", name))
        chosen = [name for name in available if not backends or name in backends]
        if preferred is not None:
            ordered = sorted(available, key=lambda name: name != preferred)
            chosen = [name for name in ordered if benchmark.refusal(case, name, device.name) is None][:1] or ordered[:1]
        found += [(case, name, benchmark) for name in chosen]
    return found


def measure_case(case: Case, backend: str, device: Device, benchmark: Benchmark, cold: bool = True) -> Sample | str:
    """The time of one case with one backend, or why it was not measured.

    Raises RooflineError where the device has stopped working.
    """
    if case.dtype not in benchmark.dtypes:
        return "there is no kernel in this format"
    refusal = benchmark.refusal(case, backend, device.name)
    if refusal is not None:
        return refusal
    needed = memory_bytes(case)
    if needed > device.memory:
        return "needs more memory than is free"
    try:
        return device.time(_calls(case, backend, device, benchmark, device.sets(needed, cold)), cold)
    except Exception as error:  # kernels, compilers and drivers raise any type
        if is_device_failure(error):
            raise RooflineError(
                f"the device stopped working at {case} ({_first_line(error)}); its rows are kept; run again"
            ) from None
        return "ran out of memory" if is_out_of_memory(error) else _first_line(error)
    finally:
        device.release()


def _calls(case: Case, backend: str, device: Device, benchmark: Benchmark, sets: int) -> list[Call]:
    """Calls of the case on `sets` sets of buffers: random inputs, and copies of them elsewhere in memory."""
    run = benchmark.backends[backend]
    first = benchmark.inputs(case, device.name, seed=0)
    operands = [first, *({name: tensor.clone() for name, tensor in first.items()} for _ in range(sets - 1))]
    results = [benchmark.outputs(case, device.name) for _ in range(sets)]
    return [
        lambda inputs=inputs, outputs=outputs: run(case, inputs, outputs)  # type: ignore[misc]
        for inputs, outputs in zip(operands, results, strict=True)
    ]


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0][:160].rstrip(". ")


def row_of(case: Case, backend: str, sample: Sample, device: Device, hardware: str, cold: bool) -> dict[str, object]:
    """The row of a measurement."""
    return {
        "hardware": hardware,
        "op": case.op,
        **case.columns,
        "latency_us": f"{sample.median * 1e6:.4g}",
        "latency_p10_us": f"{sample.percentile(0.1) * 1e6:.4g}",
        "latency_p90_us": f"{sample.percentile(0.9) * 1e6:.4g}",
        "samples": len(sample.seconds),
        "kernel": backend,
        "cache": "cold" if cold else "warm",
        "timing": sample.method,
        "software": device.software,
        **device.state,
        "revision": revision(),
        "date": datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
    }


# --- the command ---


class MeasureResult(Struct, frozen=True):
    """The machine, the measurement file, and counts of measured and skipped points."""

    machine: Machine
    path: Path
    outcome: Outcome
    software: str

    @property
    def lines(self) -> list[str]:
        return [*self.machine.lines, f"  {self.software}", *outcome_lines(self.outcome, self.path)]


def outcome_lines(outcome: Outcome, path: Path) -> list[str]:
    """Counts of measured and skipped points as text."""
    before = f", {outcome.before} already in the file" if outcome.before else ""
    left = f", {outcome.left} left for another run" if outcome.left else ""
    lines = [f"{path}: {outcome.measured} rows measured{before}{left}"]
    for reason, count in outcome.refused.most_common(8):
        lines.append(f"  skipped ({count}): {reason}")
    return lines


def run_measure(
    device: str = "cuda",
    minutes: float = 20.0,
    ops: Sequence[str] = (),
    output: Path = Path("measured.csv"),
    warm: bool = False,
    dtypes: Sequence[str] = (),
    backends: Sequence[str] = (),
    threads: int | None = None,
) -> MeasureResult:
    """Measure kernels for at most `minutes` and append them to a file."""
    opened, known = open_benchmarks(device, minutes, ops, threads)
    machine = examine(opened)
    outcome = measure_into(opened, machine, known, output, minutes, ops, dtypes, backends, not warm)
    return MeasureResult(machine, output, outcome, opened.software)


def open_benchmarks(
    device: str, minutes: float, ops: Sequence[str], threads: int | None
) -> tuple[Device, Mapping[str, Benchmark]]:
    """The device and its benchmarks; raises RooflineError for invalid minutes and for ops without a benchmark."""
    if not 0 < minutes <= 10_000:
        raise RooflineError(f"the minutes must be above 0 and at most 10000, got {minutes:g}")
    opened = open_device(device, threads)
    known = benchmarks(opened.name)
    for op in ops:
        if op not in known:
            raise UnknownNameError("op", op, known)
    return opened, known


def measure_into(
    device: Device,
    machine: Machine,
    known: Mapping[str, Benchmark],
    output: Path,
    minutes: float,
    ops: Sequence[str] = (),
    dtypes: Sequence[str] = (),
    backends: Sequence[str] = (),
    cold: bool = True,
    preferred: str | None = None,
) -> Outcome:
    """Measure the formats that the hardware has, for at most `minutes`, into a file; `preferred`: see `points_of`."""
    hardware = machine.hardware
    formats, refused = formats_for(device, hardware, {op: known[op] for op in ops or known}, dtypes)
    peaks = machine.peaks or {**hardware.tensor, **hardware.vector}
    seconds = MAX_CALL_TIME[device.name]
    limits = Limits(device.memory / 3, seconds * max(peaks.values()), seconds * machine.bandwidth)
    cases = design(formats, limits, POINTS[device.name])
    with RowFile(output) as file, bar() as progress:
        points = points_of(cases, known, device, backends, preferred)
        outcome = measure(points, 60 * minutes, device, hardware.name, file, cold, progress)
    outcome.refused.update(refused)
    return outcome


def formats_for(
    device: Device, hardware: Hardware, known: Mapping[str, Benchmark], requested: Sequence[str] = ()
) -> tuple[dict[str, tuple[str, ...]], list[str]]:
    """The formats of every op that the hardware supports, and a message for each that a GPU lacks."""
    chosen, refused = {}, []
    for op, benchmark in known.items():
        supported = []
        for name in (*benchmark.dtypes, *benchmark.mixed):
            if requested and name not in requested:
                continue
            missing = [form for part in name.split("/") if not hardware.supports(form := numbers(part).arithmetic)]
            if not missing:
                supported.append(name)
            elif device.name == "cuda":
                refused.append(f"{op} in {name}: {hardware.name} has no {missing[0]}")
        if supported:
            chosen[op] = tuple(supported)
    if not chosen:
        raise RooflineError(
            f"{hardware.name} has none of the requested formats"
            f" ({', '.join(requested) or 'none'}); it computes in {', '.join(hardware.formats)}"
        )
    return chosen, refused
