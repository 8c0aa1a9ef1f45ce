"""Measuring this machine: kernels of the ops and formats that it has, most informative first, into a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from roofline.core.errors import RooflineError, UnknownNameError
from roofline.specs.hardware import Hardware
from roofline.timing.kernels.common import numbers
from roofline.validate.kernels.benchmark import Benchmark
from roofline.validate.kernels.registry import benchmarks
from roofline.validate.measure.bench import Outcome, Plan, bar, measure
from roofline.validate.measure.design import Limits, design
from roofline.validate.measure.device import Device, open_device
from roofline.validate.measure.machine import Machine, examine
from roofline.validate.tables.rowfile import RowFile

LONGEST = {"cuda": 30e-3, "cpu": 50e-3}
"""Seconds: what one call of a point may take at the achieved roofs."""

POINTS = {"cuda": 100, "cpu": 60}
"""Points of an op and format."""


class Measured(Struct, frozen=True):
    """What `measure` did: the machine, the file, and what became of the points."""

    machine: Machine
    path: Path
    outcome: Outcome
    software: str

    @property
    def lines(self) -> list[str]:
        """For a person."""
        return [*self.machine.lines, f"  {self.software}", *outcome_lines(self.outcome, self.path)]


def outcome_lines(outcome: Outcome, path: Path) -> list[str]:
    """What became of the points, for a person."""
    earlier = f", {outcome.before} were there before" if outcome.before else ""
    left = f", {outcome.left} left for another run" if outcome.left else ""
    lines = [f"{path}: {outcome.taken} rows measured{earlier}{left}"]
    for reason, count in outcome.refused.most_common(8):
        lines.append(f"  left out ({count}): {reason}")
    return lines


def measured(
    device: str = "cuda",
    minutes: float = 20.0,
    ops: Sequence[str] = (),
    output: Path = Path("measured.csv"),
    warm: bool = False,
    dtypes: Sequence[str] = (),
    ways: Sequence[str] = (),
    threads: int | None = None,
) -> Measured:
    """Measure kernels for so many minutes into a file; a file that is there is continued."""
    opened, known = ready(device, minutes, ops, threads)
    machine = examine(opened)
    outcome = taken(opened, machine, known, output, minutes, ops, dtypes, ways, not warm)
    return Measured(machine, output, outcome, opened.software)


def ready(
    device: str, minutes: float, ops: Sequence[str], threads: int | None
) -> tuple[Device, Mapping[str, Benchmark]]:
    """The device and its benchmarks; raises RooflineError for minutes that are none and ops without a benchmark."""
    if not 0 < minutes <= 10_000:
        raise RooflineError(f"--minutes must be above 0 and at most 10000, got {minutes:g}")
    opened = open_device(device, threads)
    known = benchmarks(opened.name)
    for op in ops:
        if op not in known:
            raise UnknownNameError("op", op, known)
    return opened, known


def taken(
    device: Device,
    machine: Machine,
    known: Mapping[str, Benchmark],
    output: Path,
    minutes: float,
    ops: Sequence[str] = (),
    dtypes: Sequence[str] = (),
    ways: Sequence[str] = (),
    cold: bool = True,
    single: str | None = None,
) -> Outcome:
    """Measures into a file, within the minutes, what the hardware has; `single` is as in `Plan`."""
    hardware = machine.hardware
    formats, refused = formats_for(device, hardware, {op: known[op] for op in ops or known}, dtypes)
    peaks = machine.peaks or {**hardware.tensor, **hardware.vector}
    longest = LONGEST[device.name]
    limits = Limits(device.memory / 3, longest * max(peaks.values()), longest * machine.bandwidth)
    cases = design(formats, limits, POINTS[device.name])
    with RowFile(output) as file, bar() as progress:
        plan = Plan(cases, 60 * minutes, tuple(ways), cold, single)
        outcome = measure(plan, device, hardware.name, known, file, progress)
    outcome.refused.update(refused)
    return outcome


def formats_for(
    device: Device, hardware: Hardware, known: Mapping[str, Benchmark], wanted: Sequence[str] = ()
) -> tuple[dict[str, tuple[str, ...]], list[str]]:
    """The formats of every op that the hardware computes in, and in one sentence each those that it does not.

    Processors are measured in the formats whose peaks were worth measuring.
    """
    chosen, refused = {}, []
    for op, benchmark in known.items():
        able = []
        for name in (*benchmark.dtypes, *benchmark.mixed):
            if wanted and name not in wanted:
                continue
            lacking = [form for part in name.split("/") if not hardware.supports(form := numbers(part).arithmetic)]
            if not lacking:
                able.append(name)
            elif device.name == "cuda":
                refused.append(f"{op} in {name}: {hardware.name} has no {lacking[0]}")
        if able:
            chosen[op] = tuple(able)
    if not chosen:
        raise RooflineError(
            f"{hardware.name} has none of the formats asked for"
            f" ({', '.join(wanted) or 'none'}); it computes in {', '.join(hardware.formats)}"
        )
    return chosen, refused
