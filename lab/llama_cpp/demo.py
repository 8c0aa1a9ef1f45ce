"""`python -m lab.llama_cpp.demo`: llama.cpp on this CPU, beside its prediction before and after a fit.

Models with random weights are written as GGUF files, and their prefill and decode are timed on the given numbers of
threads. The prediction before the fit has the shipped constants and this machine's measured bandwidth and peaks. The
fit sees the first model alone; its errors are those on the others.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path

import numpy as np
from msgspec import Struct

from lab.command import run_command
from lab.llama_cpp.fit import ENGINE, Timed, fit, with_fits
from lab.llama_cpp.measure import time_passes
from lab.llama_cpp.random_model import library, write_random_model
from roofline.core.errors import RooflineError
from roofline.core.files import save_text
from roofline.core.units import seconds
from roofline.specs.hardware import Hardware, load_hardware
from roofline.specs.modelspec import load_model
from roofline.timing.calibration import Calibration, Fits, Source
from roofline.timing.calibration_files import render
from roofline.timing.chains import load_calibration
from roofline.validate.measure.device import open_device
from roofline.validate.measure.machine import examine

MODELS = ("qwen2.5-0.5b", "llama-3.2-1b", "qwen2.5-1.5b")
FORMATS = ("fp16", "q8_0", "q4_0")
PROMPTS = (32, 128, 512, 1024)

BUSY = 0.9
"""Passes whose CPU time is less than this part of wall time and threads are left out: others had a core."""


class Row(Struct, frozen=True):
    """A measured pass, and its expected seconds with the shipped and with the fitted constants."""

    timed: Timed
    before: float
    after: float
    fitted: bool

    @property
    def line(self) -> str:
        """The row as text."""
        timed = self.timed
        name = f"{timed.model.name:24} {timed.hardware.units:>7} {timed.phase:8} {timed.prompt:>6}"
        times = f"{seconds(timed.seconds):>9} {seconds(self.before):>9} {self.error(self.before):>7}"
        return f"{name} {times} {seconds(self.after):>9} {self.error(self.after):>7}{' fitted' * self.fitted}"

    def error(self, expected: float) -> str:
        """The relative error of an expected time."""
        return f"{100 * (expected / self.timed.seconds - 1):+.1f}%"


HEAD = f"{'model':24} {'threads':>7} {'phase':8} {'prompt':>6} {'measured':>9} {'before':>9} {'':>7} {'after fit':>9}"


def machine(threads: int, folder: Path) -> Hardware:
    """The CPU of this machine on so many threads: its spec in the folder, else measured now and written there."""
    for path in folder.glob(f"*-{threads}-thread*.yaml"):
        return load_hardware(str(path))
    found = examine(open_device("cpu", threads))
    save_text(folder / f"{found.hardware.name}.yaml", found.spec)
    return found.hardware


def random_model(name: str, format: str, folder: Path) -> Path:
    """The file of a model with random weights, written once."""
    path = folder / f"{name}-{format}.gguf"
    return path if path.is_file() else write_random_model(load_model(name), format, path)


def measure(
    models: Sequence[str], formats: Sequence[str], machines: Sequence[Hardware], prompts: Sequence[int], folder: Path
) -> Iterator[Timed]:
    """Time the models in all formats on all machines; passes that `rows.csv` of the folder has are not run again."""
    path = folder / "rows.csv"
    known = list(csv.reader(path.read_text(encoding="utf-8").splitlines())) if path.is_file() else []
    for name, format, own in product(models, formats, machines):
        file = random_model(name, format, folder)
        model, key = load_model(str(file)), [name, format, own.name]
        rows = [row[3:] for row in known if row[:3] == key and len(row) == 8 and int(row[3]) in prompts]
        if not rows:
            found = time_passes(file, int(own.units or 1), prompts)
            spans = [(one.prompt, *one.prefill, *one.decode) for one in found]
            rows = [[f"{value:.6g}" for value in span] for span in spans]
            with path.open("a", encoding="utf-8", newline="") as opened:
                csv.writer(opened).writerows([[*key, *row] for row in rows])
        for prompt, prefill, ran, decode, stepped in rows:
            yield Timed(model, own, "prefill", int(prompt), float(prefill), busy=float(ran))
            yield Timed(model, own, "decode", int(prompt), float(decode), busy=float(stepped))


def undisturbed(rows: Sequence[Timed]) -> list[Timed]:
    """The passes whose threads ran for nearly all of their time; raises RooflineError for none."""
    kept = [row for row in rows if row.busy >= BUSY]
    if not kept:
        raise RooflineError("other processes had the cores during all passes: nothing is fitted")
    return kept


def compare(rows: Sequence[Timed], base: str) -> tuple[list[Row], Fits]:
    """The rows with their predictions, and the constants fitted to those of the model `base`."""
    seen = [row for row in rows if row.model.name.startswith(base)]
    fits = fit(seen)
    chains = {row.hardware: load_calibration(row.hardware, engine=ENGINE, kind=False) for row in rows}
    fitted = with_fits(chains, fits)
    found = [Row(row, float(row.expected().mid), float(row.expected(fitted).mid), row in seen) for row in rows]
    return found, fits


def summary(rows: Sequence[Row]) -> Iterator[str]:
    """Median and largest absolute errors by phase, of the models that the fit did not see."""
    for phase in ("prefill", "decode"):
        own = [row for row in rows if row.timed.phase == phase]
        unseen = [row for row in own if not row.fitted]
        before = np.array([abs(row.before / row.timed.seconds - 1) for row in own])
        after = np.array([abs(row.after / row.timed.seconds - 1) for row in unseen or own])
        yield (
            f"{phase}: before the fit median {np.median(before):.1%}, largest {before.max():.1%} ({len(own)} rows);"
            f" after it, on {'other models' if unseen else 'the same rows'}, median {np.median(after):.1%},"
            f" largest {after.max():.1%} ({after.size} rows)"
        )


def names(text: str) -> list[str]:
    """Names between commas."""
    return text.split(",")


def integers(text: str) -> list[int]:
    """Integers between commas."""
    return [int(part) for part in text.split(",")]


def parser_of(
    module: str, description: str | None, formats: Sequence[str], prompts: Sequence[int]
) -> argparse.ArgumentParser:
    """The options of a module that measures random models: which, in what formats and lengths, and where they are."""
    parser = argparse.ArgumentParser(prog=f"python -m lab.llama_cpp.{module}", description=description)
    parser.add_argument("--models", type=names, default=MODELS, help="names of dense Llama-like models")
    parser.add_argument("--formats", type=names, default=formats, help="of fp16, q8_0 and q4_0")
    parser.add_argument("--prompts", type=integers, default=prompts, help="lengths of prompts in tokens")
    parser.add_argument("--folder", type=Path, default=Path("specs-llama.cpp"), help="for models, specs and rows")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, predict, fit and compare; the exit status."""
    parser = parser_of("demo", __doc__, FORMATS, PROMPTS)
    parser.add_argument("--threads", type=integers, default=[2, 1], help="numbers of threads [2,1]")
    return run_command(parser, _work, arguments)


def _work(options: argparse.Namespace) -> str:
    folder: Path = options.folder
    folder.mkdir(parents=True, exist_ok=True)
    machines = [machine(count, folder) for count in options.threads]
    sys.stdout.write("".join(f"{own.title}: {own.memory_bandwidth / 1e9:.1f} GB/s\n" for own in machines))
    sys.stdout.flush()
    timed = list(measure(options.models, options.formats, machines, options.prompts, folder))
    rows, fits = compare(undisturbed(timed), options.models[0])
    software = f"llama-cpp-python {library('llama_cpp').__version__}"
    for own in machines:
        source = Source("models with random weights, timed on this machine", software=(software,))
        text = render(Calibration(own.name, "calibrated", fits, source, engine=ENGINE))
        save_text(folder / "calibration" / ENGINE / f"{own.name}.yaml", text)
    lines = [HEAD, *(row.line for row in rows), "", *summary(rows)]
    if left := len(timed) - len(rows):
        lines.append(f"{left} passes are left out: CPU time below {BUSY:.0%} of threads x wall time, others had a core")
    used = f"--hw {machines[0].name} --engine {ENGINE}"
    lines.append(f"use it:  ROOFLINE_SPECS={folder} roofline analyze MODEL {used}")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
