"""`roofline validate measure`: time kernels of the ops and formats of this machine, and write them to a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from roofline.core.errors import RooflineError, UnknownNameError
from roofline.specs.hardware import Hardware
from roofline.timing.kernels.formats import numbers
from roofline.validate.kernels.benchmark import Benchmark, benchmarks
from roofline.validate.measure.bench import Outcome, bar, measure, points_of
from roofline.validate.measure.design import Limits, design
from roofline.validate.measure.device import Device, open_device
from roofline.validate.measure.machine import Machine, examine
from roofline.validate.tables.rowfile import RowFile

MAX_CALL_TIME = {"cuda": 30e-3, "cpu": 50e-3}
"""Seconds of one call of a point at the achieved peak and bandwidth."""

POINTS = {"cuda": 100, "cpu": 60}
"""Points for each op and format."""


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
