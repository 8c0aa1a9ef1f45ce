"""Measuring a design: every case and way that has no row yet, within a time, one row in the file after the other.

What cannot be measured (a format that the card lacks, memory that runs out, a way that refuses) is left out with its
reason, and the rest goes on; what no later point could survive ends the run in one sentence, its rows kept.
"""

from __future__ import annotations

import datetime
import subprocess
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct, field

from roofline.core.errors import RooflineError
from roofline.validate.kernels.benchmark import Benchmark
from roofline.validate.kernels.work import Case
from roofline.validate.measure.design import held_bytes
from roofline.validate.measure.device import Call, Device, Sample, is_broken, is_memory
from roofline.validate.tables.rowfile import RowFile, identity, planned

if TYPE_CHECKING:
    from collections.abc import Iterator


class Plan(Struct, frozen=True):
    """What is measured: `cases` in order, by these `ways` (all where none are named), cold or warm, for `seconds`.

    `single` names the one way that is wanted; a case that it cannot compute is taken by another.
    """

    cases: Sequence[Case]
    seconds: float
    ways: tuple[str, ...] = ()
    cold: bool = True
    single: str | None = None


class Outcome(Struct):
    """What became of a plan: rows taken now, rows that the file had, and reasons with how many points each left out."""

    taken: int = 0
    before: int = 0
    left: int = 0
    refused: Counter[str] = field(default_factory=Counter)


class Progress(Protocol):
    """Told how far a run is: the share done, and what is next."""

    def __call__(self, share: float, label: str) -> None:
        """Show it."""


def silent(share: float, label: str) -> None:
    """A progress that nobody sees."""
    del share, label


@contextmanager
def bar() -> Iterator[Progress]:
    """A progress bar with the time left, on stderr and only for a person."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        yield silent
        return
    columns = (BarColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console, transient=True) as shown:
        task = shown.add_task("", total=1.0)
        yield lambda share, label: shown.update(task, completed=min(share, 1.0), description=label)


@lru_cache(maxsize=1)
def revision() -> str:
    """The commit of the code that measures, where it runs from a checkout; else the version of the package."""
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
    plan: Plan,
    device: Device,
    hardware: str,
    benchmarks: Mapping[str, Benchmark],
    file: RowFile,
    progress: Progress = silent,
) -> Outcome:
    """Take the rows of a plan that the file does not have; `hardware` is the name they are written under.

    Raises RooflineError where the file cannot be written or the device stopped working.
    """
    start = time.monotonic()
    outcome = Outcome(before=len(file.rows))
    there = {identity(row) for row in file.rows}
    points = [(case, way) for case in plan.cases for way in _ways(case, plan, benchmarks[case.op], device.name)]
    for index, (case, way) in enumerate(points):
        if planned(case, way, plan.cold) in there:
            continue
        spent = (time.monotonic() - start) / plan.seconds if plan.seconds > 0 else 1.0
        if spent >= 1.0:
            outcome.left += 1
            continue
        progress(max(spent, index / len(points)), f"{case.op} {case.format}")
        sample = point(case, way, device, benchmarks[case.op], plan.cold)
        if isinstance(sample, str):
            outcome.refused[f"{case.op} in {case.format}, {way}: {sample}"] += 1
            continue
        file.append(row_of(case, way, sample, device, hardware, plan.cold))
        outcome.taken += 1
    return outcome


def _ways(case: Case, plan: Plan, benchmark: Benchmark, device: str) -> Iterable[str]:
    """The ways to take a case by: PyTorch's first, since calibrations are made from it."""
    have = sorted(benchmark.ways, key=lambda way: (way != "torch", way))
    if plan.single is not None:
        wanted = sorted(have, key=lambda way: way != plan.single)
        return [way for way in wanted if benchmark.refusal(case, way, device) is None][:1] or wanted[:1]
    return [way for way in have if not plan.ways or way in plan.ways]


def point(case: Case, way: str, device: Device, benchmark: Benchmark, cold: bool = True) -> Sample | str:
    """The time of one case by one way, or why there is none.

    Raises RooflineError where the device has stopped working.
    """
    if case.dtype not in benchmark.dtypes:
        return "there is no kernel in this format"
    refusal = benchmark.refusal(case, way, device.name)
    if refusal is not None:
        return refusal
    needed = held_bytes(case)
    if needed > device.memory:
        return "needs more memory than there is"
    try:
        return device.time(_calls(case, way, device, benchmark, device.sets(needed, cold)), cold)
    except Exception as error:  # kernels, compilers and drivers raise whatever they do
        if is_broken(error):
            raise RooflineError(
                f"the device stopped working at {case} ({_short(error)}); the rows before it are kept: run it again"
            ) from None
        return "ran out of memory" if is_memory(error) else _short(error)
    finally:
        device.release()


def _calls(case: Case, way: str, device: Device, benchmark: Benchmark, sets: int) -> list[Call]:
    """The case on `sets` sets of buffers: the first is drawn, the others are copies of it elsewhere in memory."""
    run = benchmark.ways[way]
    first = benchmark.inputs(case, device.name, seed=0)
    operands = [first, *({name: tensor.clone() for name, tensor in first.items()} for _ in range(sets - 1))]
    results = [benchmark.outputs(case, device.name) for _ in range(sets)]
    return [
        lambda inputs=inputs, outputs=outputs: run(case, inputs, outputs)  # type: ignore[misc]
        for inputs, outputs in zip(operands, results, strict=True)
    ]


def _short(error: BaseException) -> str:
    """The first line of an error, for a person."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0][:160].rstrip(". ")


def row_of(case: Case, way: str, sample: Sample, device: Device, hardware: str, cold: bool) -> dict[str, object]:
    """The row of a measurement."""
    return {
        "hardware": hardware,
        "op": case.op,
        **case.columns,
        "latency_us": f"{sample.median * 1e6:.4g}",
        "latency_p10_us": f"{sample.percentile(0.1) * 1e6:.4g}",
        "latency_p90_us": f"{sample.percentile(0.9) * 1e6:.4g}",
        "samples": len(sample.seconds),
        "kernel": way,
        "cache": "cold" if cold else "warm",
        "timing": sample.method,
        "software": device.software,
        **device.state,
        "revision": revision(),
        "date": datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
    }
