"""Whole-model figures beside predicted ones: TTFT, TPOT, batch latency and throughput, with errors by what they share.

A file has the columns model, hardware, gpus, engine, weights, kv, batch, input_len, output_len, metric, value, unit,
source; a folder is all its CSV files. Each row becomes a scenario; a row that cannot, is listed with the reason.

Every figure is compared as a time: that of the prompt (TTFT), of a decode step averaged over the generation (TPOT), or
of a whole static batch. Batch latency is the prefill of the whole batch and output_len decode steps, the context
growing by one each. Throughput is the tokens of that time over it. A generation from an empty prompt starts at a
context of one token, which a model needs to start at all.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import asdict, replace

from roofline import Scenario, analyze
from roofline.core.errors import RooflineError, SpecError, UnknownNameError, quote
from roofline.graph.parallel import Parallelism
from roofline.scenario.kv_capacity import SGLANG, TENSORRT_LLM, VLLM_0, Reserve, kv_capacity, waves
from roofline.scenario.schedule import Settings
from roofline.specs.engine import Engine
from roofline.timing.estimate import Estimate
from roofline.validate.tables.errors import error_figures
from roofline.validate.tables.names import Unmapped, find_engine, find_hardware, find_model, find_precision
from roofline.validate.tables.text import (
    Line,
    check_filled,
    check_known,
    numbers_above_zero,
    parse_count,
    read_lines,
    refuse,
)

COLUMNS = (
    *("model", "hardware", "gpus", "engine", "weights", "kv", "batch", "input_len", "output_len"),
    *("metric", "value", "unit", "source"),
)
CONDITIONS = tuple(name for name in COLUMNS if name not in ("value", "unit", "source"))

KEYS = ("file", "engine", "metric", "model", "hardware")
"""What groups may be formed by."""

NODE = 8
"""Accelerators of a node, where a figure is given by the node."""

CONTRADICTION = 1.5
"""Rows of a file that state the same conditions and differ by more than this factor differ in something unstated."""

CONTRADICTED = "rows of the same conditions differ by more than half: something that the file does not state"


class Quantity(StrEnum):
    """The time that a figure is compared as."""

    TTFT = "ttft"
    TPOT = "tpot"
    TOTAL = "total"


class Counted(StrEnum):
    """How a value relates to that time."""

    TIME = "time"
    PROMPT = "prompt tokens a second"
    STEP = "tokens of a step a second"
    USER = "tokens a second for each sequence"
    OUTPUT = "generated tokens a second"


class Per(StrEnum):
    """What the value is given for."""

    ALL = "all"
    DEVICE = "device"
    NODE = "node"


class Metric(Struct, frozen=True):
    """A metric of the files."""

    quantity: Quantity
    counted: Counted
    per: Per = Per.ALL


METRICS: Mapping[str, Metric] = MappingProxyType(
    {
        "ttft": Metric(Quantity.TTFT, Counted.TIME),
        "tpot": Metric(Quantity.TPOT, Counted.TIME),
        "batch_latency": Metric(Quantity.TOTAL, Counted.TIME),
        "prefill_throughput": Metric(Quantity.TTFT, Counted.PROMPT),
        "prefill_throughput_per_gpu": Metric(Quantity.TTFT, Counted.PROMPT, Per.DEVICE),
        "prefill_input_throughput_per_node": Metric(Quantity.TTFT, Counted.PROMPT, Per.NODE),
        "decode_throughput": Metric(Quantity.TPOT, Counted.STEP),
        "decode_throughput_per_gpu": Metric(Quantity.TPOT, Counted.STEP, Per.DEVICE),
        "decode_output_throughput_per_node": Metric(Quantity.TPOT, Counted.STEP, Per.NODE),
        "per_user_output_speed": Metric(Quantity.TPOT, Counted.USER),
        "output_throughput": Metric(Quantity.TOTAL, Counted.OUTPUT),
        "output_throughput_per_gpu": Metric(Quantity.TOTAL, Counted.OUTPUT, Per.DEVICE),
    }
)

SECONDS: Mapping[str, float] = MappingProxyType({"s": 1.0, "ms": 1e-3, "us": 1e-6})
_RATE = re.compile(r"tok(ens)?/s\b.*")


class Figure(Struct, frozen=True):
    """One checked row: its value in seconds or tokens a second."""

    line: Line
    metric: Metric
    value: float

    def cell(self, column: str) -> str:
        """The text of a column."""
        return self.line.cells[column].strip()


class Case(Struct, frozen=True):
    """A row as a scenario, the quantity to compare, and its measured seconds."""

    figure: Figure
    scenario: Scenario
    engine: str
    quantity: Quantity
    measured: float
    assumed: str = ""
    waves: tuple[int, ...] = ()

    @property
    def parts(self) -> Iterator[tuple[Scenario, int]]:
        """The scenarios that its time is the sum of, with how often each runs: one, or the waves of a batch."""
        if len(self.waves) < 2:
            yield self.scenario, 1
            return
        for size, times in Counter(self.waves).items():
            yield replace(self.scenario, batch=size), times

    @property
    def labels(self) -> dict[str, str]:
        """What groups are formed by."""
        return {
            "file": self.figure.line.file,
            "engine": self.figure.cell("engine").split(" ")[0],
            "metric": self.figure.cell("metric"),
            "model": self.scenario.model.name,
            "hardware": self.scenario.hardware.name,
        }


class Left(Struct, frozen=True):
    """A row without a scenario, and why."""

    line: Line
    reason: str


class Predicted(Struct, frozen=True):
    """Seconds: the bound, and the expected time with its interval."""

    bound: float
    low: float
    mid: float
    high: float


class Group(Struct, frozen=True):
    """Errors of the predictions for the rows of one group, as fractions of the measured time."""

    file: str
    engine: str
    metric: str
    model: str
    hardware: str
    rows: int
    mape: float
    median_ape: float
    p90_ape: float
    bias: float
    bound_mape: float
    interval_coverage: float


# --- reading ----------------------------------------------------------------------------------------------------------


def read_figures(path: Path) -> list[Figure]:
    """The checked rows of a file; raises SpecError with one sentence for the first thing wrong."""
    where = str(path)
    lines = read_lines(path, COLUMNS)
    check_filled(lines, ("model", "hardware", "gpus", "engine", "metric", "value", "unit"), where)
    check_known(lines, "metric", METRICS, where)
    values = numbers_above_zero(lines, "value", where)
    refuse([line.number for line in lines if not parse_count(line.cells["gpus"])], "'gpus' is no count", where)
    wrong = [line.number for line in lines if _scale(line) is None]
    refuse(wrong, "the unit is neither a time (s, ms, us) nor tokens a second (tok/s), as the metric asks", where)
    return [
        Figure(line, METRICS[line.cells["metric"].strip()], value * (_scale(line) or 1.0))
        for line, value in zip(lines, values, strict=True)
    ]


def _scale(line: Line) -> float | None:
    """What a value is multiplied by to be in seconds or tokens a second; None where the unit does not suit."""
    unit, metric = line.cells["unit"].strip(), METRICS[line.cells["metric"].strip()]
    if metric.counted is Counted.TIME:
        return SECONDS.get(unit)
    return 1.0 if _RATE.fullmatch(unit) else None


def read_all(path: Path) -> tuple[list[Figure], dict[str, str]]:
    """The rows of a file or of a folder's CSV files, and the files there that are other tables, with the reason."""
    if not path.is_dir():
        return read_figures(path), {}
    files = sorted(entry for entry in path.iterdir() if entry.suffix.lower() == ".csv")
    figures: list[Figure] = []
    others: dict[str, str] = {}
    for file in files:
        try:
            read_lines(file, COLUMNS)
        except SpecError as reason:
            if "lacks the column" not in str(reason):
                raise
            others[file.name] = str(reason).removeprefix(f"{file}: ")
            continue
        figures += read_figures(file)
    if not figures:
        raise SpecError(str(path), "holds no CSV file of whole-model figures")
    return figures, others


# --- from a row to a scenario -----------------------------------------------------------------------------------------


def map_figures(figures: Sequence[Figure], engine: str | None = None) -> tuple[list[Case], list[Left]]:
    """Every row as a case, or listed with the reason; `engine` names one profile for all of them."""
    cases: list[Case] = []
    left: list[Left] = []
    contradictory = _contradictory(figures)
    for figure in figures:
        try:
            if (figure.line.file, figure.line.number) in contradictory:
                raise Unmapped(CONTRADICTED)
            cases.append(to_case(figure, engine))
        except RooflineError as reason:
            left.append(Left(figure.line, str(reason)))
    return cases, left


def _contradictory(figures: Iterable[Figure]) -> set[tuple[str, int]]:
    """File and number of rows that share all conditions with others and differ too much to be the same thing."""
    alike: dict[tuple[str, ...], list[Figure]] = defaultdict(list)
    for figure in figures:
        alike[(figure.line.file, *(figure.cell(name) for name in (*CONDITIONS, "source")))].append(figure)
    return {
        (figure.line.file, figure.line.number)
        for same in alike.values()
        if max(figure.value for figure in same) > CONTRADICTION * min(figure.value for figure in same)
        for figure in same
    }


def to_case(figure: Figure, engine: str | None = None) -> Case:
    """A row as a scenario; raises RooflineError, mostly Unmapped, with the reason why it cannot be one."""
    model = find_model(figure.cell("model"))
    named = find_hardware(figure.cell("hardware"))
    profile = find_engine(figure.cell("engine")) if engine is None else engine
    gpus = int(float(figure.cell("gpus")))
    if gpus > NODE:
        raise Unmapped("more than one node: how its devices share the work is not stated")
    texts = figure.cell("weights"), figure.cell("kv")
    precision = find_precision(*texts, model, named.hardware, figure.cell("engine"))
    prompt, output = _lengths(figure)
    batch = parse_count(figure.cell("batch"))
    if not batch:
        raise Unmapped(f"the batch is not stated ({quote(figure.cell('batch'))})")
    scenario = Scenario(
        model,
        named.hardware,
        batch=batch,
        prompt=max(prompt, 1),
        generate={Quantity.TTFT: 1, Quantity.TPOT: max(output, 2), Quantity.TOTAL: output + 1}[figure.metric.quantity],
        precision=precision,
        settings=Settings(parallel=Parallelism(tensor=gpus)),
    )
    measured = _seconds(figure, batch, prompt, output, gpus)
    return Case(
        figure, scenario, profile, figure.metric.quantity, measured, named.assumed, _waves(scenario, profile, output)
    )


RESERVES: Mapping[str, Reserve] = MappingProxyType(
    {"vllm": VLLM_0, "vllm-sync": VLLM_0, "vllm-v0": VLLM_0, "tensorrt-llm": TENSORRT_LLM, "sglang": SGLANG}
)
"""What serving engines reserve, which serve a batch whose cache does not fit in waves; others take it as it is."""


def _waves(scenario: Scenario, engine: str, output: int) -> tuple[int, ...]:
    """The sizes in which a batch is served whose cache is kept to its end; the batch itself where it fits.

    A model that does not fit itself is taken to run as the row says it did.
    """
    batch, prompt = int(scenario.batch), int(scenario.prompt)
    if engine not in RESERVES or output < 2 or batch == 1:
        return (batch,)
    precision, parallel = scenario.precision, scenario.settings.parallel
    found = kv_capacity(scenario.model, scenario.hardware, precision, parallel, RESERVES[engine])
    try:
        return waves(batch, prompt + output, found)
    except RooflineError:
        return (batch,)


def _lengths(figure: Figure) -> tuple[int, int]:
    """Prompt and generated tokens; 0 for a length that the metric does not need."""
    prompt, text = parse_count(figure.cell("input_len")), figure.cell("output_len")
    output = prompt if text == "see input_len" else parse_count(text)
    quantity = figure.metric.quantity
    if prompt is None or (prompt == 0 and quantity is Quantity.TTFT):
        raise Unmapped(f"the prompt length is not stated ({quote(figure.cell('input_len'))})")
    if not output and quantity is not Quantity.TTFT:
        raise Unmapped(f"the output length is not stated ({quote(text)})")
    if quantity is Quantity.TTFT:
        return prompt, 0
    assert output is not None
    # A throughput of decode alone counts the steps; a generation of n tokens has n - 1 of them after the first.
    alone = quantity is Quantity.TPOT and prompt == 0
    return prompt, output + 1 if alone else output


def _seconds(figure: Figure, batch: int, prompt: int, output: int, gpus: int) -> float:
    """The measured value as the seconds of its quantity."""
    value = figure.value * {Per.ALL: 1.0, Per.DEVICE: gpus, Per.NODE: gpus / NODE}[figure.metric.per]
    match figure.metric.counted:
        case Counted.TIME:
            return figure.value
        case Counted.PROMPT:
            return batch * prompt / value
        case Counted.STEP:
            return batch / value
        case Counted.USER:
            return 1 / figure.value
        case Counted.OUTPUT:
            return batch * output / value


# --- prediction and scores --------------------------------------------------------------------------------------------


def predict(case: Case, engine: Engine | str | None = None) -> Predicted:
    """The seconds that are simulated for a case, with its own engine's profile or another.

    The bound is that of the batch at once: waves are how an engine serves it, not a law.
    """
    profile = case.engine if engine is None else engine
    bound = _times(analyze(replace(case.scenario, engine=profile)).generation, case.quantity)
    total = Estimate(0.0, 0.0, 0.0)
    for scenario, times in case.parts:
        found: Estimate = _times(analyze(replace(scenario, engine=profile)).expected, case.quantity)
        total = total.plus(found.times(times))
    return Predicted(bound, *total)


def _times(generation: Any, quantity: Quantity) -> Any:
    """The time of a generation that is a quantity."""
    return {Quantity.TTFT: generation.ttft, Quantity.TPOT: generation.tpot, Quantity.TOTAL: generation.total}[quantity]


def score(
    figures: Sequence[Figure],
    engine: str | None = None,
    by: Sequence[str] = ("file",),
    predictor: Callable[[Case], Predicted] = predict,
) -> tuple[list[Group], list[tuple[Case, Predicted]], list[Left]]:
    """Groups by the keys in `by` (a key that is left out reads `all`), every prediction, and the rows left.

    Raises UnknownNameError for an unknown key and RooflineError where no row can be simulated.
    """
    for key in by:
        if key not in KEYS:
            raise UnknownNameError("grouping", key, KEYS)
    cases, left = map_figures(figures, engine)
    predicted: list[tuple[Case, Predicted]] = []
    for case in cases:
        try:
            predicted.append((case, predictor(case)))
        except RooflineError as reason:
            left.append(Left(case.figure.line, str(reason)))
    if not predicted:
        common = Counter(row.reason for row in left).most_common(1)[0][0]
        raise RooflineError(f"none of the {len(figures)} rows can be simulated; mostly: {common}")
    return summarise(predicted, by), predicted, left


def summarise(predicted: Sequence[tuple[Case, Predicted]], by: Sequence[str]) -> list[Group]:
    """The errors of each group, in the order in which they are first met."""
    gathered: dict[tuple[str, ...], list[tuple[Case, Predicted]]] = {}
    for case, found in predicted:
        labels = case.labels
        gathered.setdefault(tuple(labels[key] if key in by else "all" for key in KEYS), []).append((case, found))
    return [_group(key, rows) for key, rows in gathered.items()]


def _group(key: tuple[str, ...], rows: Sequence[tuple[Case, Predicted]]) -> Group:
    measured = np.array([case.measured for case, _ in rows])
    low, mid, high, bound = (
        np.array([getattr(found, name) for _, found in rows]) for name in ("low", "mid", "high", "bound")
    )
    file, engine, metric, model, hardware = key
    return Group(
        file=file,
        engine=engine,
        metric=metric,
        model=model,
        hardware=hardware,
        rows=len(rows),
        **error_figures(measured, low, mid, high, bound),
    )


def end_to_end(path: Path, engine: str | None = None, by: Sequence[str] = ("file",)) -> Mapping[str, Any]:
    """What `roofline validate end-to-end` shows, as a plain document."""
    figures, others = read_all(path)
    groups, predicted, left = score(figures, engine, by)
    reasons = Counter(row.reason for row in left)
    assumed = Counter(f"{case.figure.cell('hardware')}: {case.assumed}" for case, _ in predicted if case.assumed)
    return {
        "schema": "roofline.end-to-end/1",
        "rows": len(figures),
        "scored": len(predicted),
        "groups": [asdict(group) for group in groups],
        "total": asdict(summarise(predicted, ())[0]),
        "predictions": [_row(case, found) for case, found in predicted],
        "unmapped": [
            {"file": row.line.file, "row": row.line.number, "metric": row.line.cells["metric"], "reason": row.reason}
            for row in left
        ],
        "reasons": [{"reason": reason, "rows": rows} for reason, rows in reasons.most_common()],
        "assumptions": [{"assumed": text, "rows": rows} for text, rows in assumed.most_common()],
        "other_files": [{"file": name, "reason": reason} for name, reason in others.items()],
    }


def _row(case: Case, found: Predicted) -> dict[str, Any]:
    return {
        **case.labels,
        "row": case.figure.line.number,
        "quantity": str(case.quantity),
        "measured_s": case.measured,
        **{f"{name}_s": value for name, value in asdict(found).items()},
    }
