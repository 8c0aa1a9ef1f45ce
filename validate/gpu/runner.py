"""Run a plan within its minutes: each step in a process of its own, stopped at its limit, its end written down.

The process that runs the plan never touches the GPU: a step that faults, hangs or is stopped leaves a whole device to
the next one. Steps are forked from it after PyTorch is imported.
"""

from __future__ import annotations

import csv
import importlib
import io
import math
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from roofline.core.errors import RooflineError, needs_extra, quote
from roofline.core.files import cannot_write, save_text, write_bytes
from roofline.validate.gpu import network
from roofline.validate.gpu.plan import STEPS, VERDICT_COLUMNS, Step
from roofline.validate.gpu.pool import Answer, each, sentence
from roofline.validate.gpu.summary import rows_in, summary
from roofline.validate.gpu.visit import (
    LOG,
    NETWORK,
    PARQUET,
    ROWS,
    SUMMARY,
    VERDICTS,
    Bench,
    Result,
    Visit,
    read_results,
)
from roofline.validate.measure.device import torch_module
from roofline.validate.tables.frames import read_frame
from roofline.validate.tables.rowfile import COLUMNS, RowFile

LEAST = 5.0
"""Seconds that a step needs to be begun at all."""


def dry_run(minutes: float, steps: Sequence[Step] = STEPS) -> list[str]:
    """A line for each step, with the seconds that it should take and the most it may."""
    check(minutes)
    scale = min(1.0, 60 * minutes / sum(step.seconds for step in steps))
    lines = [
        f"{step.name:<12}{scale * step.seconds:5.0f} s"
        f"{f' (at most {most:.0f})' if math.isfinite(most := limit(step, minutes, steps)) else '':<16}{step.title}"
        for step in steps
    ]
    total = sum(scale * step.seconds for step in steps)
    return [*lines, f"{'all':<12}{total:5.0f} s of {60 * minutes:.0f}; what is left goes to further shapes"]


def check(minutes: float) -> None:
    """Raises RooflineError for minutes in which nothing can be measured."""
    if not 0.5 <= minutes <= 600:
        raise RooflineError(f"the minutes must be from 0.5 to 600, got {minutes:g}")


def check_folder(folder: Path) -> None:
    """Raises SpecError where a file of the folder is none of a visit: it is found before the GPU is."""
    read_results(folder)
    for name, columns in ((ROWS, COLUMNS), (VERDICTS, VERDICT_COLUMNS), (NETWORK, network.COLUMNS)):
        if (folder / name).exists():
            with RowFile(folder / name, columns):
                pass


def check_machine(folder: Path, hardware: str) -> None:
    """Raises RooflineError where the folder has rows of another machine."""
    others = {row["hardware"] for row in rows_in(folder / ROWS)} - {hardware}
    if others:
        named = ", ".join(quote(name) for name in sorted(others))
        raise RooflineError(f"the folder has rows of {named}, this is {quote(hardware)}: name another folder")


def limit(step: Step, minutes: float, steps: Sequence[Step]) -> float:
    """The most seconds that a step may take in a visit of so many minutes: less where all of them need more."""
    return step.limit * min(1.0, 60 * minutes / sum(other.seconds for other in steps))


def run(
    folder: Path, minutes: float, say: Callable[[str], None], bench: Bench | None = None, steps: Sequence[Step] = STEPS
) -> list[Result]:
    """Run the steps in order into a folder, and say how each ended; rows that are there are kept.

    Raises RooflineError where the first step, which finds the device, fails, or the folder is of another machine.
    """
    check(minutes)
    bench = bench or Bench()
    torch_module()
    with needs_extra("validate"):
        importlib.import_module("pyarrow")
    with suppress(ImportError):
        importlib.import_module("triton")
    made = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_write(folder, error) from None
    check_folder(folder)
    visit = Visit(folder, bench)
    results: list[Result] = []
    end = bench.clock() + 60 * minutes
    for index, step in enumerate(steps):
        reserved = steps[-1].seconds if index + 1 < len(steps) else 0.0
        try:
            result = _step(visit, step, end - reserved, limit(step, minutes, steps))
        except BaseException:  # Ctrl-C, or a signal: what was measured is kept, and can be read
            if results:
                _note(folder, Result(step.name, "stopped", "interrupted; its rows are kept", 0.0))
                save_parquet(folder)
            raise
        if index == 0 and result.status != "done":
            if made:
                with suppress(OSError):
                    folder.rmdir()
            raise RooflineError(f"nothing was measured: {result.sentence}")
        if index == 0 and "hardware" in result.facts:
            check_machine(folder, str(result.facts["hardware"]))
        results.append(result)
        visit.facts[step.name] = result.facts
        _note(folder, result)
        say(result.line)
    save_parquet(folder)
    return results


def _step(visit: Visit, step: Step, end: float, most: float) -> Result:
    """Run one step until `end`, which leaves the last one its time, and for at most `most` seconds."""
    clock = visit.bench.clock
    start = clock()
    seconds = min(end - start, most)
    if seconds < min(LEAST, step.seconds / 2):
        return Result(step.name, "skipped", f"{max(0.0, seconds):.0f} seconds are too few for it", 0.0)
    visit.deadline = start + seconds
    result = _isolated(step, visit, seconds) if visit.bench.isolated else _ended(step, visit)
    return msgspec.structs.replace(result, seconds=clock() - start)


def _ended(step: Step, visit: Visit) -> Result:
    """The result of a step in this process."""
    try:
        said, facts = step.run(visit)
    except RooflineError as error:
        return Result(step.name, "failed", str(error), 0.0)
    except Exception as error:  # kernels, compilers and drivers raise any type
        return Result(step.name, "failed", sentence(error), 0.0)
    return Result(step.name, "done", said, 0.0, facts)


def _isolated(step: Step, visit: Visit, seconds: float) -> Result:
    """The result of a step in a forked process, which is ended at its limit."""

    def work(one: Step) -> Result:
        warnings.simplefilter("ignore")
        return _ended(one, visit)

    found: list[Answer] = []
    if each(work, [step], 1, found.append, seconds, nests=True):
        return Result(step.name, "stopped", "its time was up; its rows are kept", 0.0)
    (answer,) = found
    if answer.error is not None:
        return Result(step.name, "failed", f"{answer.error}; its rows are kept", 0.0)
    result: Result = answer.value
    return result


def _note(folder: Path, result: Result) -> None:
    """Write down how a step ended, and renew what is made of all results."""
    results = [*(one for one in read_results(folder) if one.step != result.step), result]
    write_bytes(folder / LOG, b"".join(msgspec.json.encode(one) + b"\n" for one in results))
    try:
        text = summary(folder, results)
    except (RooflineError, LookupError, ValueError, TypeError, ArithmeticError, csv.Error) as error:
        text = f"There is no summary: {sentence(error)}\n"  # a report must not end a measurement
    save_text(folder / SUMMARY, text)


def save_parquet(folder: Path) -> None:
    """Write the rows of a visit as Parquet, in the measurement schema."""
    if not (folder / ROWS).is_file():
        return
    content = io.BytesIO()
    read_frame(folder / ROWS).to_parquet(content, index=False)
    write_bytes(folder / PARQUET, content.getvalue())
