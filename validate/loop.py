"""The loop of `roofline validate`: measure this machine, calibrate it, run a model beside its prediction, watch drift.

Each function does what one command does and returns what it found; `lines` of it are for a person.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from roofline.analysis import analyze
from roofline.calibration import Calibration, Fit, load_calibration, render
from roofline.engine import Engine, load_engine
from roofline.engine import render as render_engine
from roofline.errors import RooflineError, UnknownNameError, quote
from roofline.hardware import Hardware, load_hardware
from roofline.kernels.elementwise import PASSES
from roofline.kernels.parameters import numbers
from roofline.library import SEARCH_PATH
from roofline.model import Attention, Layer, LayerGroup, Mlp, Model, Norm, Positions
from roofline.modelspec import load_model
from roofline.precision import parse_precision
from roofline.scenario import Scenario
from roofline.units import seconds as shown_time
from roofline.units import si
from validate.bench import Outcome, Plan, bar, measure, point
from validate.calibrate import describe, fit
from validate.decoder import FUSIONS, Decoder, check, layers_that_fit, with_layers
from validate.design import Limits, design
from validate.device import Device, is_memory, open_device
from validate.kernels.benchmark import Benchmark
from validate.kernels.registry import benchmarks
from validate.kernels.work import Case, work_of
from validate.machine import Machine, examine
from validate.rowfile import RowFile, case_of, read_rows
from validate.rows import Measurements, read_measurements
from validate.score import Group, score

LONGEST = {"cuda": 30e-3, "cpu": 50e-3}
"""Seconds: what one call of a point may take at the achieved roofs."""

POINTS = {"cuda": 100, "cpu": 60}
"""Points of an op and format."""

KEPT_ASIDE = 5
"""Every so many-th row of an op and format is scored, and not fitted."""

OWN_WAY = "torch"
"""The way that calibrations are of: what plain code runs."""

ENGINE_NAME = "plain-pytorch"

SPREAD = (0.85, 1.18)
"""What an engine's profile leaves open beside its kernels: allocation, caches that are warm, other programs."""


# --- measure ---


@dataclass(frozen=True)
class Measured:
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
    _check_minutes(minutes)
    opened = open_device(device, threads)
    known = benchmarks(opened.name)
    _check_names(ops, known)
    machine = examine(opened)
    outcome = _taken(opened, machine.hardware, machine, known, output, minutes, ops, dtypes, ways, not warm)
    return Measured(machine, output, outcome, opened.software)


def _check_minutes(minutes: float) -> None:
    if not 0 < minutes <= 10_000:
        raise RooflineError(f"--minutes must be above 0 and at most 10000, got {minutes:g}")


def _check_names(ops: Sequence[str], known: Mapping[str, Benchmark]) -> None:
    for op in ops:
        if op not in known:
            raise UnknownNameError("op", op, known)


def _taken(
    device: Device,
    hardware: Hardware,
    machine: Machine | None,
    known: Mapping[str, Benchmark],
    output: Path,
    minutes: float,
    ops: Sequence[str] = (),
    dtypes: Sequence[str] = (),
    ways: Sequence[str] = (),
    cold: bool = True,
    single: str | None = None,
) -> Outcome:
    formats, refused = formats_for(device, hardware, {op: known[op] for op in ops or known}, dtypes)
    peaks = (machine.peaks if machine else {}) or {**hardware.tensor, **hardware.vector}
    bandwidth = machine.bandwidth if machine else hardware.memory_bandwidth
    longest = LONGEST[device.name]
    limits = Limits(device.memory / 3, longest * max(peaks.values()), longest * bandwidth)
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


# --- calibrate ---


@dataclass(frozen=True)
class Calibrated:
    """What `calibrate` wrote, and how far predictions are off on the rows kept aside; `before` is without it."""

    measured: Measured
    folder: Path
    calibration: Calibration
    engine: Engine
    after: tuple[Group, ...]
    before: tuple[Group, ...]
    overall: Group | None
    failed: tuple[str, ...]

    @property
    def lines(self) -> list[str]:
        """For a person."""
        return [
            *self.measured.lines,
            "",
            *score_lines(self.after, self.before, self.overall),
            *self.failed,
            "",
            *self._where,
        ]

    @property
    def _where(self) -> list[str]:
        name = self.measured.machine.hardware.name
        return [
            f"{self.folder}: calibration of {name}, and its engine profile (engines/{name}.yaml)",
            f"use it:  {SEARCH_PATH}={self.folder} roofline analyze MODEL --hw {name}"
            f" --engine {self.folder}/engines/{name}.yaml",
        ]


def score_lines(after: Sequence[Group], before: Sequence[Group], overall: Group | None) -> list[str]:
    """Errors by op and format on the rows kept aside, for a person."""
    earlier = {(group.op, group.format): group for group in before}
    lines = ["errors on rows kept aside, %      rows   median    mean   in the interval   before   bound alone"]
    for group in after:
        old = earlier.get((group.op, group.format))
        was = f"{100 * old.median_ape:8.0f}" if old else f"{'-':>8}"
        lines.append(
            f"  {group.op + ' ' + group.format:<30}{group.rows:6}{100 * group.median_ape:9.1f}{100 * group.mape:8.1f}"
            f"{100 * group.interval_coverage:18.0f}{was} {100 * group.bound_mape:13.0f}"
        )
    if overall:
        lines.append(
            f"  {'all':<30}{overall.rows:6}{100 * overall.median_ape:9.1f}{100 * overall.mape:8.1f}"
            f"{100 * overall.interval_coverage:18.0f}"
        )
    return lines


def calibrated(
    device: str = "cuda",
    minutes: float = 20.0,
    ops: Sequence[str] = (),
    folder: Path = Path("specs"),
    dtypes: Sequence[str] = (),
    threads: int | None = None,
) -> Calibrated:
    """Measure, fit and score this machine; write its spec, calibration and engine profile into an overlay folder.

    A folder that has rows already is continued. Raises RooflineError where too little was measured for any fit.
    """
    _check_minutes(minutes)
    opened = open_device(device, threads)
    known = benchmarks(opened.name)
    _check_names(ops, known)
    machine = _known_machine(opened, folder)
    hardware = machine.hardware
    rows = folder / "measured" / f"{hardware.name}.csv"
    outcome = _taken(opened, hardware, machine, known, rows, minutes, ops, dtypes, single=OWN_WAY)
    engine = engine_profile(opened, known, preferred(dtypes, hardware))
    found = Measured(machine, rows, outcome, opened.software)
    parts = read_measurements(rows)
    calibration, after, before, overall, failed = fitted_and_scored(parts, hardware)
    command = f"roofline validate calibrate --device {opened.name} --minutes {minutes:g}"
    calibration = replace(calibration, source=replace(describe(parts), command=command))
    _write(folder / "calibration" / f"{hardware.name}.yaml", render(calibration))
    _write(folder / "engines" / f"{hardware.name}.yaml", render_engine(engine))
    return Calibrated(found, folder, calibration, engine, tuple(after), tuple(before), overall, tuple(failed))


def _known_machine(device: Device, folder: Path) -> Machine:
    """The machine; one whose spec the folder has keeps it, so that rows of two runs are of one hardware."""
    machine = examine(device)
    if machine.bundled:
        return machine
    path = folder / f"{machine.hardware.name}.yaml"
    if path.is_file():
        return replace(machine, hardware=load_hardware(str(path)))
    _write(path, machine.spec)
    return machine


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    except OSError as error:
        raise RooflineError(f"cannot write {quote(str(path), 200)}: {error.strerror}") from None


def fitted_and_scored(
    parts: Sequence[Measurements], hardware: Hardware
) -> tuple[Calibration, list[Group], list[Group], Group | None, list[str]]:
    """The calibration from four in five rows, and the errors on the others: with it, without it, and with it over all.

    What is too little to be fitted is said, and keeps the constants of other hardware.
    """
    inherited = load_calibration(hardware)
    fits: dict[tuple[str, str], Fit] = {}
    aside: list[Measurements] = []
    failed: list[str] = []
    for part in [_one_way(group) for whole in parts for group in whole.formats().values()]:
        chosen = np.arange(len(part)) % KEPT_ASIDE == KEPT_ASIDE - 1
        found = _fitted(part.rows(~chosen), hardware, inherited)
        if isinstance(found, str):
            failed.append(f"  not fitted: {found}")
            continue
        fits |= found
        if chosen.any():
            aside.append(part.rows(chosen))
    if not fits:
        reason = failed[0].removeprefix("  not fitted: ") if failed else "there are no rows"
        raise RooflineError(f"nothing can be fitted yet: {reason}; measure for longer")
    calibration = Calibration(hardware.name, "calibrated", fits, parents=tuple(inherited.chain))
    by = ("op", "format")
    after = score(aside, hardware, calibration, by=by) if aside else []
    before = score(aside, hardware, inherited, by=by) if aside else []
    overall = score(aside, hardware, calibration, by=())[0] if aside else None
    return calibration, after, before, overall, failed


def _fitted(part: Measurements, hardware: Hardware, inherited: Calibration) -> Mapping[tuple[str, str], Fit] | str:
    """The fit of one op and format, or why there is none.

    It starts from constants of other hardware; where rows are too few for that, two constants may still be fitted to
    them alone.
    """
    reason = ""
    for prior in (inherited, None):
        try:
            return fit([part], hardware, prior=prior).fits
        except RooflineError as error:
            reason = reason or str(error)
    return reason


def _one_way(part: Measurements) -> Measurements:
    """The rows of PyTorch's own kernels, where there are any; and of cold caches, where there are any."""
    for name, value in (("kernel", OWN_WAY), ("cache", "cold")):
        if name in part.frame:
            chosen = (part.frame[name] == value).to_numpy(dtype=bool)
            part = part.rows(chosen) if chosen.any() else part
    return part


# --- the host's share ---

TOY = Model(
    name="toy",
    hidden=64,
    vocabulary=64,
    groups=(LayerGroup("layer", 8, Layer(Norm("rmsnorm"), Attention(4, 2, 16), Mlp(128, True, "silu"))),),
    pattern=("layer",) * 8,
    norm=Norm("rmsnorm"),
    positions=Positions(),
)
"""A network whose kernels compute next to nothing: its time is that of issuing them."""

TOY_CONTEXT = 16

TOY_KERNELS: Sequence[tuple[str, Mapping[str, int], int]] = (
    ("gemm", {"m": 1, "n": 64, "k": 64}, 8 * 7 + 1),
    ("rope", {"rows": 1, "columns": 96}, 8),
    (
        "attention_decode",
        {"batch": 1, "q_len": 1, "kv_len": TOY_CONTEXT + 1, "heads": 4, "kv_heads": 2, "head_dim": 16, "window": 0},
        8,
    ),
    ("norm", {"rows": 1, "columns": 64}, 8 * 2 + 1),
    ("activation", {"rows": 1, "columns": 128}, 8),
    ("copy", {"rows": 1, "columns": 64}, 1),
)
"""The kernels of a decode step of it as the schema knows them, and how many of each."""


def preferred(dtypes: Sequence[str], hardware: Hardware) -> str:
    """The format that a model runs in where none is named: bf16 on a GPU, fp32 on a processor."""
    order = ("fp32", "bf16", "fp16") if hardware.kind == "cpu" else ("bf16", "fp16", "fp32")
    return next((name for name in order if hardware.supports(name) and (not dtypes or name in dtypes)), "fp32")


def engine_profile(device: Device, known: Mapping[str, Benchmark], dtype: str) -> Engine:
    """The profile of plain PyTorch here: `issue` is a step of the toy over its kernels.

    On a processor, where nothing runs ahead, `gap` is what that takes beyond the kernels' own times.
    """
    decoder = Decoder(TOY, dtype, device.name)
    step = _decode_step(decoder, 1, TOY_CONTEXT, TOY_CONTEXT + 1)
    whole = device.time([step], cold=False).median
    count = sum(number for _, _, number in TOY_KERNELS)
    issue = min(whole / count, 1e-3)
    gap = 0.0
    if device.name == "cpu":
        alone = 0.0
        for op, shape, number in TOY_KERNELS:
            stored = {"kv_dtype": dtype} if op.startswith("attention") else {}
            sample = point(Case(op, {"dtype": dtype, **stored, **shape}), OWN_WAY, device, known[op], cold=False)
            alone += number * (sample.median if not isinstance(sample, str) else issue)
        gap = min(max(0.0, (whole - alone) / count), 100e-6)
    return Engine(
        ENGINE_NAME,
        "Plain PyTorch, eager",
        fusions=FUSIONS,
        graphs=(),
        parameters={"issue": issue, "gap": gap},
        spread=SPREAD,
        sources=(f"measured by roofline validate calibrate: {device.software}",),
    )


def _decode_step(decoder: Decoder, batch: int, context: int, capacity: int) -> Any:
    """A call that computes one step with `context` tokens in the cache, again and again."""
    import torch

    cache = decoder.cache(batch, capacity)
    tokens = torch.zeros((batch, 1), dtype=torch.long, device=decoder.device)

    def step() -> None:
        cache.length = context
        with torch.inference_mode():
            decoder.forward(tokens, cache)

    return step


def _prefill(decoder: Decoder, batch: int, prompt: int, capacity: int) -> Any:
    """A call that computes a whole prompt."""
    import torch

    cache = decoder.cache(batch, capacity)
    tokens = torch.zeros((batch, prompt), dtype=torch.long, device=decoder.device)

    def run() -> None:
        cache.length = 0
        with torch.inference_mode():
            decoder.forward(tokens, cache)

    return run


# --- a whole model ---


@dataclass(frozen=True)
class Beside:
    """One time of a model, predicted and measured, in seconds."""

    name: str
    bound: float
    low: float
    mid: float
    high: float
    measured: float

    @property
    def error(self) -> float:
        """Of the prediction, as a fraction of what was measured."""
        return self.mid / self.measured - 1.0

    @property
    def inside(self) -> bool:
        """Whether the interval has the measured time."""
        return self.low <= self.measured <= self.high


@dataclass(frozen=True)
class ModelRun:
    """A model that was run beside its prediction."""

    model: Model
    layers: int
    hardware: Hardware
    dtype: str
    batch: int
    prompt: int
    generate: int
    weights: float
    cache: float
    basis: str
    times: tuple[Beside, ...]

    @property
    def lines(self) -> list[str]:
        """For a person."""
        cut = f", {self.layers} of {self.model.layers} layers" if self.layers < self.model.layers else ""
        lines = [
            f"{self.model.name}{cut} on {self.hardware.name}, {self.dtype}, batch {self.batch},"
            f" prompt {self.prompt}, generate {self.generate}; {self.basis}"
        ]
        for time in self.times:
            where = "in" if time.inside else "outside of"
            lines.append(
                f"  {time.name}: expected {shown_time(time.mid)} ({shown_time(time.low)} to {shown_time(time.high)}),"
                f" measured {shown_time(time.measured)}: {100 * time.error:+.1f}%, {where} the interval;"
                f" the bound is {shown_time(time.bound)}"
            )
        if self.weights < 2 * self.cache:
            lines.append(
                f"  its weights ({si(self.weights, 'B')}) stay in part in the cache ({si(self.cache, 'B')});"
                " predictions take them for cold"
            )
        return lines


@contextmanager
def overlay(folder: Path) -> Iterator[None]:
    """Specs and calibrations of `folder` before all others, while it lasts."""
    before = os.environ.get(SEARCH_PATH)
    if folder.is_dir():
        os.environ[SEARCH_PATH] = os.pathsep.join(filter(None, (str(folder), before)))
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(SEARCH_PATH, None)
        else:
            os.environ[SEARCH_PATH] = before


def model_run(
    model: str,
    device: str = "cuda",
    folder: Path = Path("specs"),
    dtype: str | None = None,
    batch: int = 1,
    prompt: int = 128,
    generate: int = 32,
    layers: int | None = None,
    threads: int | None = None,
    longest: float = 5.0,
) -> ModelRun:
    """Run a decoder of the model's architecture, and predict it with the calibration of `folder`.

    Without `layers`, as many as fit the memory and keep the expected prefill below `longest` seconds. Raises
    UnsupportedError for architectures other than dense Llama-like ones.
    """
    described = load_model(model)
    check(described)
    if generate < 2:
        raise RooflineError("--generate must be at least 2: the first token is prefill's")
    with overlay(folder):
        opened = open_device(device, threads)
        hardware = _calibrated_hardware(opened, folder)
        chosen = dtype or preferred((), hardware)
        engine = _engine(folder, hardware)

        def predicted(count: int) -> Any:
            return analyze(
                Scenario(
                    with_layers(described, count),
                    hardware,
                    batch=batch,
                    prompt=prompt,
                    generate=generate,
                    precision=parse_precision(chosen),
                    engine=engine,
                )
            )

        if layers is None:
            layers = layers_that_fit(described, 0.5 * opened.memory, round(numbers(chosen).bytes))
            while layers > 1 and float(predicted(layers).expected.ttft.mid) > longest:
                layers -= 1
        elif not 1 <= layers <= described.layers:
            raise RooflineError(f"--layers must be from 1 to {described.layers}, as {described.name} has them")
        answer = predicted(layers)
        basis = load_calibration(hardware).basis
        # Answers are computed when they are read: here, where the overlay's calibration is found.
        promised = (
            ("TTFT", float(answer.prefill.bound_time), answer.expected.ttft),
            ("TPOT", float(answer.decode.bound_time), answer.expected.tpot),
        )
        weights = float(answer.memory.weights)
    capacity = prompt + generate
    try:
        decoder = Decoder(with_layers(described, layers), chosen, opened.name)
        first = opened.time([_prefill(decoder, batch, prompt, capacity)], cold=False).median
        step = opened.time([_decode_step(decoder, batch, prompt + (generate - 1) // 2, capacity)], cold=False).median
    except (RuntimeError, MemoryError) as error:
        if not is_memory(error):
            raise
        raise RooflineError(f"{described.name} with {layers} layers does not fit in memory: ask for fewer") from None
    times = tuple(
        Beside(name, bound, float(time.low), float(time.mid), float(time.high), taken)
        for (name, bound, time), taken in zip(promised, (first, step), strict=True)
    )
    grounds = {"calibrated": "calibrated on this machine"}.get(basis, f"no calibration of this machine: {basis}")
    return ModelRun(
        described,
        layers,
        hardware,
        chosen,
        batch,
        prompt,
        generate,
        weights,
        opened.cache,
        grounds,
        times,
    )


def _calibrated_hardware(device: Device, folder: Path) -> Hardware:
    """The hardware of the machine: as the overlay folder has it, else as it is found to be now."""
    for path in sorted(folder.glob("calibration/*.yaml")) if folder.is_dir() else ():
        spec = folder / f"{path.stem}.yaml"
        if device.name == "cpu" and spec.is_file():
            hardware = load_hardware(str(spec))
            if hardware.kind == "cpu" and hardware.title.startswith(device.state["device"]):
                return hardware
    return examine(device).hardware


def _engine(folder: Path, hardware: Hardware) -> Engine:
    path = folder / "engines" / f"{hardware.name}.yaml"
    return load_engine(str(path)) if path.is_file() else load_engine("hf-eager")


# --- drift ---

DRIFT_POINTS = 12
"""Rows of an op that are measured again."""

LIMITED_POINTS = 36
"""Rows that bandwidth limits, of all ops together, and as many that arithmetic does."""

LIMITED = 0.6
"""Share of the highest rate in a file from which on a row is taken to be limited by it."""

DRIFT_MARGIN = 0.03
"""Relative change below which nothing is said: a card's clock moves as much."""

DRIFT_ERRORS = 2.6
"""Standard errors of a median on each side of it: 99 of 100 medians of noise alone are within."""

LEAST_NOISE = 0.01
"""Noise of a ratio that is assumed at least, however well few points agree."""

LONGEST_DRIFT = 60e-3
"""Seconds: rows that take longer are not measured again."""


@dataclass(frozen=True)
class Ratio:
    """Time now over time then for the rows of an op, or of all that one limit holds back: a median, its interval."""

    op: str
    rows: int
    low: float
    mid: float
    high: float
    pooled: bool = False

    @property
    def change(self) -> str:
        """What the interval says: `slower`, `faster` or `same`.

        There are many ops and few rows of each, so that an op's whole interval has to be beyond the margin.
        """
        low, high = (self.mid, self.mid) if self.pooled else (self.low, self.high)
        if self.low > 1 and low > 1 + DRIFT_MARGIN:
            return "slower"
        return "faster" if self.high < 1 and high < 1 - DRIFT_MARGIN else "same"


@dataclass(frozen=True)
class Drift:
    """What a short second measurement says: ratios by op, and of rows limited by `bandwidth` and by `arithmetic`."""

    path: Path
    ratios: tuple[Ratio, ...]
    left_out: int
    remarks: tuple[str, ...] = ()

    @property
    def changed(self) -> bool:
        """Whether the machine is another than it was."""
        return any(ratio.change != "same" for ratio in self.ratios)

    @property
    def lines(self) -> list[str]:
        """For a person."""
        lines = [f"time now over time in {self.path} (median, and where it lies with 99% confidence)"]
        for ratio in self.ratios:
            lines.append(
                f"  {ratio.op:<20}{ratio.rows:4} rows   {ratio.mid:.3f} ({ratio.low:.3f} to {ratio.high:.3f})"
                f"   {ratio.change}"
            )
        lines += [f"  {remark}" for remark in self.remarks]
        told = ", ".join(f"{ratio.op} {ratio.change}" for ratio in self.ratios if ratio.change != "same")
        lines.append(f"the machine has changed: {told}" if told else "the machine is as it was")
        return lines


def drift(path: Path, device: str | None = None, points: int = DRIFT_POINTS, threads: int | None = None) -> Drift:
    """Measure a few rows of a file again and compare; on the device and with the threads that the file names."""
    rows = read_rows(path)
    named = "cpu" if rows[0]["threads"] else "cuda"
    then = int(rows[0]["threads"]) if rows[0]["threads"].isdigit() else None
    opened = open_device(device or named, threads or then)
    with bar() as progress:
        return drift_on(opened, benchmarks(opened.name), rows, path, points, progress)


def drift_on(
    device: Device,
    known: Mapping[str, Benchmark],
    rows: Sequence[Mapping[str, str]],
    path: Path,
    points: int = DRIFT_POINTS,
    progress: Any = None,
) -> Drift:
    """Measure the calmest rows of every op again on `device`."""
    limits = _limits(rows, str(path))
    picked: dict[int, None] = {}
    for op in dict.fromkeys(row["op"] for row in rows):
        picked |= dict.fromkeys(_calmest(rows, [index for index, row in enumerate(rows) if row["op"] == op], points))
    for limit in ("bandwidth", "arithmetic"):
        those = [index for index, found in enumerate(limits) if found == limit]
        picked |= dict.fromkeys(_calmest(rows, those, LIMITED_POINTS))
    logs: dict[str, list[float]] = {}
    limited: dict[str, list[float]] = {}
    left_out = 0
    for done, index in enumerate(picked):
        row = rows[index]
        if progress:
            progress(done / len(picked), row["op"])
        case = case_of(row, str(path))
        benchmark = known.get(case.op)
        sample = point(case, row["kernel"], device, benchmark, row["cache"] != "warm") if benchmark else "no benchmark"
        if isinstance(sample, str):
            left_out += 1
            continue
        ratio = math.log(sample.median * 1e6 / float(row["latency_us"]))
        logs.setdefault(case.op, []).append(ratio)
        limited.setdefault(limits[index], []).append(ratio)
    if not logs:
        raise RooflineError(f"{path}: none of its rows can be measured on this machine")
    limited.pop("", None)
    ratios = [ratio_of(op, values) for op, values in logs.items()]
    ratios += [replace(ratio_of(limit, values), pooled=True) for limit, values in limited.items()]
    now, then = device.software, rows[0]["software"]
    remarks = [f"the software is another: {then} then, {now} now"] if now != then else []
    name = device.state.get("device", "")
    if rows[0]["device"] and name and rows[0]["device"] != name:
        remarks.append(f"the device is another: {rows[0]['device']} then, {name} now")
    return Drift(path, tuple(ratios), left_out, tuple(remarks))


def _limits(rows: Sequence[Mapping[str, str]], where: str) -> list[str]:
    """What holds each row back: `bandwidth` or `arithmetic` where it comes near the file's best rate, else nothing."""
    cases = [case_of(row, where) for row in rows]
    seconds = np.array([float(row["latency_us"]) * 1e-6 for row in rows])
    works = [work_of(case) for case in cases]
    moved = np.array([work.bytes for work in works]) / seconds
    computed = np.array([work.flops for work in works]) / seconds
    best = {case.dtype: 0.0 for case in cases}
    for case, rate in zip(cases, computed, strict=True):
        best[case.dtype] = max(best[case.dtype], float(rate))
    near = LIMITED * float(np.percentile(moved, 95))
    found = []
    for case, bytes, flops in zip(cases, moved, computed, strict=True):
        heavy = case.op not in PASSES and flops >= LIMITED * best[case.dtype]
        found.append("arithmetic" if heavy else "bandwidth" if bytes >= near else "")
    return found


def _calmest(rows: Sequence[Mapping[str, str]], those: Sequence[int], points: int) -> list[int]:
    """The rows with the smallest spread, among those that do not take long."""
    short = [index for index in those if float(rows[index]["latency_us"]) < 1e6 * LONGEST_DRIFT]
    return sorted(short, key=lambda index: _spread(rows[index]))[:points]


def _spread(row: Mapping[str, str]) -> float:
    try:
        return (float(row["latency_p90_us"]) - float(row["latency_p10_us"])) / float(row["latency_us"])
    except ValueError:
        return math.inf


def ratio_of(op: str, logs: Sequence[float]) -> Ratio:
    """The median of ratios and its interval, from their logarithms.

    The standard error of a median is 1.253 s / sqrt(n), with s from the median absolute deviation (1.4826 of it); a
    few rows are widened as Student's t would.
    """
    values = np.asarray(logs)
    mid = float(np.median(values))
    deviation = max(1.4826 * float(np.median(np.abs(values - mid))), LEAST_NOISE)
    few = 1.0 + 6.0 / len(values)
    half = DRIFT_ERRORS * few * 1.253 * deviation / math.sqrt(len(values))
    return Ratio(op, len(values), math.exp(mid - half), math.exp(mid), math.exp(mid + half))
