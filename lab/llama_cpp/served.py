"""`python -m lab.llama_cpp.served`: a llama.cpp server on this CPU, beside its prediction.

Models with random weights are served by the server of llama.cpp's Python binding. Each server is started several times,
since memory is placed anew at each start, and measured by the load of `roofline validate server`; the medians over the
starts count. They are predicted with the shipped profile, and with one fitted to the other models of the format.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain, product
from pathlib import Path
from statistics import median

from msgspec import Struct

from lab.command import run_command
from lab.llama_cpp.demo import machine, parser_of, random_model
from lab.llama_cpp.random_model import library
from roofline.core.errors import RooflineError, install
from roofline.scenario.scenario import Scenario
from roofline.specs.hardware import Hardware
from roofline.specs.modelspec import load_model
from roofline.validate.fit.user_profile import fit_own
from roofline.validate.score.serving import Predictor, estimate_of
from roofline.validate.servers.measure import Limits, Measured
from roofline.validate.servers.server import Plan, Target, case_of, drive
from roofline.validate.tables.rowfile import RowFile
from roofline.validate.tables.serving import ServingCase

ENGINE = "llama-cpp-python"
FORMATS = ("q8_0", "q4_0")
PROMPTS = (45, 160)
OUTPUT, CONCURRENCY = 16, 2

START_SECONDS = 120.0
"""The longest that a server may take to answer."""

FIGURES = ("concurrency", "requests", "prompt", "output", "ttft", "tpot", "e2e", "throughput")
"""What is kept of a point (`Measured`), in seconds, tokens and tokens/s."""

COLUMNS = ("file", "hardware", "start", *FIGURES)


class Figure(Struct, frozen=True):
    """A measured time of a load, and what the shipped and the fitted profile predict, in seconds."""

    case: ServingCase
    metric: str
    measured: float
    shipped: float
    fitted: float

    @property
    def line(self) -> str:
        """The figure as text: errors in percent of the measured time."""
        load, model = self.case.load, self.case.scenario.model.name
        errors = [f"{100 * (time / self.measured - 1):>+9.1f}%" for time in (self.shipped, self.fitted)]
        where = f"{model:24} {load.means[0]:>6.0f} {load.concurrency or 0:>9}"
        return f"{where} {self.metric:8} {1e3 * self.measured:>11.2f} {errors[0]} {errors[1]}"


HEAD = f"{'model':24} {'prompt':>6} {'in flight':>9} {'metric':8} {'measured ms':>11} {'shipped':>10} {'fitted':>10}"


@contextmanager
def serving(path: Path, threads: int, context: int) -> Iterator[str]:
    """The URL of a server of a file, alone on the last cores of this machine; it ends with the block."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = {"port": port, "n_ctx": context, "n_threads": threads, "n_threads_batch": threads}
    words = [word for key, value in options.items() for word in (f"--{key}", str(value))]
    command = [sys.executable, "-m", "llama_cpp.server", "--model", str(path), "--host", "127.0.0.1", *words]
    command += ["--interrupt_requests", "false"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:  # noqa: S603
        try:
            if hasattr(os, "sched_setaffinity"):
                os.sched_setaffinity(process.pid, sorted(os.sched_getaffinity(0))[-threads:])
            _wait(process, port)
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            process.terminate()


def _wait(process: subprocess.Popen[bytes], port: int) -> None:
    """Return when the server listens; raises RooflineError if it ends or takes too long."""
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end and process.poll() is None:
        with socket.socket() as client:
            if client.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise RooflineError(f"llama.cpp's server did not start: {install('llama-cpp')}")


def measure(
    files: Sequence[Path], hardware: Hardware, starts: int, prompts: tuple[int, ...], output: Path
) -> list[Mapping[str, str]]:
    """The rows of all files and starts; those that `output` has are not measured again."""
    plan = Plan(prompts, OUTPUT, CONCURRENCY, Limits(200, 600.0, 120.0), 60.0)
    with RowFile(output, COLUMNS) as rows:
        for start, path in product(range(starts), files):
            key = {"file": path.name, "hardware": hardware.name, "start": str(start)}
            if any(key.items() <= row.items() for row in rows.rows):
                continue
            found: list[Measured] = []
            with serving(path, int(hardware.units or 1), 2 * max(prompts) + 4 * OUTPUT) as url:
                _, ended = drive(Target(url), plan, found.append)
            if ended.reason:
                raise RooflineError(f"{path.name}: {ended.reason}")
            for point in found:
                rows.append({**key, **{figure: getattr(point, figure) for figure in FIGURES}})
        return [row for row in rows.rows if row["hardware"] == hardware.name]


def cases_of(path: Path, rows: Iterable[Mapping[str, str]], hardware: Hardware) -> Iterator[ServingCase]:
    """The loads of a file, with medians over its starts."""
    scenario = Scenario(load_model(str(path)), hardware, engine=ENGINE)
    starts: dict[str, list[Mapping[str, str]]] = {}
    for row in rows:
        if row["file"] == path.name:
            starts.setdefault(row["start"], []).append(row)
    for index, same in enumerate(zip(*starts.values(), strict=True)):
        concurrency, requests, *times = (median(float(row[figure]) for row in same) for figure in FIGURES)
        yield case_of(Measured(int(concurrency), int(requests), *times), scenario, index)


def compare(models: Sequence[Sequence[ServingCase]]) -> Iterator[Figure]:
    """TTFT and TPOT of every load of some models with the shipped profile, and with one fitted to the other models."""
    predictor = Predictor()
    for own in models:
        others = [case for model in models if model is not own for case in model]
        engines = [own[0].scenario.profile]
        engines += [fit_own(others, "other models of the format").engine] if others else []
        for case in own:
            outcomes = [predictor(case.run_by(engine)) for engine in engines]
            for metric in ("ttft", "tpot"):
                shipped, *fitted = (float(estimate_of(outcome, metric).mid) for outcome in outcomes)
                yield Figure(case, metric, getattr(case, metric), shipped, fitted[0] if fitted else shipped)


def summary(figures: Sequence[Figure]) -> Iterator[str]:
    """How many figures of a single stream are within 25% before the fit and within 10% after it."""
    single = [figure for figure in figures if figure.case.load.concurrency == 1]
    for name, limit in (("shipped", 0.25), ("fitted", 0.10)):
        errors = [abs(getattr(figure, name) / figure.measured - 1) for figure in single]
        inside = sum(error <= limit for error in errors)
        yield (
            f"single stream, {name} profile: {inside} of {len(errors)} within {limit:.0%},"
            f" median {median(errors):.1%}, largest {max(errors):.1%}"
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve, measure, predict, fit and compare; the exit status."""
    parser = parser_of("served", __doc__, FORMATS, PROMPTS)
    parser.add_argument("--threads", type=int, default=1, help="threads of the server [1]")
    parser.add_argument("--starts", type=int, default=3, help="starts of each server [3]")
    return run_command(parser, _work, arguments)


def _work(options: Namespace) -> str:
    folder: Path = options.folder
    library("llama_cpp")
    folder.mkdir(parents=True, exist_ok=True)
    own = machine(options.threads, folder)
    formats = [[random_model(name, format, folder) for name in options.models] for format in options.formats]
    rows = measure([*chain(*formats)], own, options.starts, tuple(options.prompts), folder / "served.csv")
    figures = [figure for files in formats for figure in compare([list(cases_of(path, rows, own)) for path in files])]
    title = f"{own.title}: {own.memory_bandwidth / 1e9:.1f} GB/s"
    return "\n".join((title, HEAD, *(figure.line for figure in figures), "", *summary(figures))) + "\n"


if __name__ == "__main__":
    sys.exit(main())
