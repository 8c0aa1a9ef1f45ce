"""Scores of whole-model predictions against published values: TTFT, TPOT, batch latency and throughput, by group.

Each row of a table (`roofline.validate.tables.published`) becomes a scenario, or is listed with the reason why it
cannot.

Every value is compared as a time: TTFT, TPOT (the mean over the generation), or the total of a static batch. Batch
latency is the prefill of the whole batch and output_len decode steps, the context growing by one each; throughput is
the tokens generated over that time. A generation from an empty prompt starts at a context of one token, the least that
a model needs.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import asdict

from roofline import Scenario, analyze
from roofline.core.errors import RooflineError, quote
from roofline.graph.parallel import Parallelism
from roofline.scenario.kv_capacity import kv_capacity, waves
from roofline.scenario.settings import Settings
from roofline.specs.engine import Engine, load_engine
from roofline.timing.intervals import Estimate
from roofline.validate.score.errors import Group, Predicted, Skipped, attempted, check_keys, counted, grouped
from roofline.validate.tables.names import Unmapped, find_engine, find_hardware, find_model, find_precision
from roofline.validate.tables.published import COLUMNS, PublishedRow, Quantity, read_all
from roofline.validate.tables.serving import is_load
from roofline.validate.tables.text import parse_count

CONDITIONS = tuple(name for name in COLUMNS if name not in ("value", "unit", "source"))

KEYS = ("file", "engine", "metric", "model", "hardware")
"""The keys to group by."""

NODE = 8
"""Accelerators of a node, where a value is per node."""

CONTRADICTION = 1.5
"""Largest factor between rows of a file with the same stated conditions; beyond it something unstated differs."""

CONTRADICTED = "rows with the same conditions differ by more than half: a condition is missing in the file"


class Case(Struct, frozen=True):
    """A row as a scenario, the quantity to compare, and its measured seconds."""

    row: PublishedRow
    scenario: Scenario
    engine: str
    quantity: Quantity
    measured: float
    assumed: str = ""
    waves: tuple[int, ...] = ()

    @property
    def parts(self) -> Iterator[tuple[Scenario, int]]:
        """The scenarios whose times add up to the row's, with their counts: one, or the waves of a batch."""
        if len(self.waves) < 2:
            yield self.scenario, 1
            return
        for size, times in Counter(self.waves).items():
            yield self.scenario.changed(batch=size), times

    @property
    def labels(self) -> dict[str, str]:
        """The row's value of each grouping key."""
        return {
            "file": self.row.line.file,
            "engine": self.row.cell("engine").split(" ")[0],
            "metric": self.row.cell("metric"),
            "model": self.scenario.model.name,
            "hardware": self.scenario.hardware.name,
        }


def map_rows(rows: Sequence[PublishedRow], engine: str | None = None) -> tuple[list[Case], list[Skipped]]:
    """The rows as cases, and the skipped ones with the reason; `engine` overrides the profile of all rows."""
    contradictory = _contradictory(rows)

    def case(row: PublishedRow) -> Case:
        if (row.line.file, row.line.number) in contradictory:
            raise Unmapped(CONTRADICTED)
        return to_case(row, engine)

    return attempted(rows, case, lambda row: row.line)


def _contradictory(rows: Iterable[PublishedRow]) -> set[tuple[str, int]]:
    """File and number of rows that differ by more than CONTRADICTION from others with the same conditions."""
    alike: dict[tuple[str, ...], list[PublishedRow]] = defaultdict(list)
    for row in rows:
        alike[(row.line.file, *(row.cell(name) for name in (*CONDITIONS, "source")))].append(row)
    return {
        (row.line.file, row.line.number)
        for same in alike.values()
        if max(row.value for row in same) > CONTRADICTION * min(row.value for row in same)
        for row in same
    }


def to_case(row: PublishedRow, engine: str | None = None) -> Case:
    """A row as a scenario; raises RooflineError, mostly Unmapped, with the reason where it cannot be simulated."""
    if is_load(row.cell("batch")):
        raise Unmapped("measured under a load: `roofline validate serving` scores it")
    model = find_model(row.cell("model"))
    named = find_hardware(row.cell("hardware"))
    profile = find_engine(row.cell("engine")) if engine is None else engine
    if "vulkan" in row.cell("engine").lower() and named.hardware.vendor in OWN_BACKENDS:
        raise Unmapped("measured with Vulkan: the profile is that of the vendor's own backend")
    gpus = int(float(row.cell("gpus")))
    if gpus > NODE:
        raise Unmapped("more than one node: the parallelism is not stated")
    texts = row.cell("weights"), row.cell("kv")
    precision = find_precision(*texts, model, named.hardware, row.cell("engine"))
    prompt, output = _lengths(row)
    batch = parse_count(row.cell("batch"))
    if not batch:
        raise Unmapped(f"the batch is not stated ({quote(row.cell('batch'))})")
    scenario = Scenario(
        model,
        named.hardware,
        batch=batch,
        prompt=max(prompt, 1),
        generate={"ttft": 1, "tpot": max(output, 2), "total": output + 1}[row.metric.quantity],
        precision=precision,
        settings=Settings(parallel=Parallelism(tensor=gpus)),
    )
    measured = _seconds(row, batch, prompt, output, gpus)
    return Case(row, scenario, profile, row.metric.quantity, measured, named.assumed, _waves(scenario, profile, output))


OWN_BACKENDS = ("NVIDIA", "AMD", "Apple")
"""Vendors for whose hardware llama.cpp has a backend beside Vulkan: CUDA, ROCm, Metal."""

SERVING = ("vllm", "tensorrt-llm", "sglang")
"""Serving engines, which split a batch whose KV cache does not fit into waves; others do not."""


def _waves(scenario: Scenario, engine: str, output: int) -> tuple[int, ...]:
    """The waves of a batch whose KV cache does not fit at once; the batch where it fits, or the model does not."""
    batch, prompt = int(scenario.batch), int(scenario.prompt)
    profile = load_engine(engine)
    if profile.name not in SERVING or output < 2 or batch == 1:
        return (batch,)
    precision, parallel = scenario.precision, scenario.settings.parallel
    found = kv_capacity(scenario.model, scenario.hardware, precision, parallel, profile.memory)
    try:
        return waves(batch, prompt + output, found)
    except RooflineError:
        return (batch,)


def _lengths(row: PublishedRow) -> tuple[int, int]:
    """Prompt and generated tokens; 0 for a length that the metric does not require."""
    prompt, text = parse_count(row.cell("input_len")), row.cell("output_len")
    output = prompt if text == "see input_len" else parse_count(text)
    quantity = row.metric.quantity
    if prompt is None or (prompt == 0 and quantity == "ttft"):
        raise Unmapped(f"the prompt length is not stated ({quote(row.cell('input_len'))})")
    if not output and quantity != "ttft":
        raise Unmapped(f"the output length is not stated ({quote(text)})")
    if quantity == "ttft":
        return prompt, 0
    assert output is not None
    # Throughput of decode alone counts steps, and a generation of n tokens has n - 1 steps after the first token.
    alone = quantity == "tpot" and prompt == 0
    return prompt, output + 1 if alone else output


def _seconds(row: PublishedRow, batch: int, prompt: int, output: int, gpus: int) -> float:
    """The measured value as the seconds of its quantity."""
    counted, per = row.metric.counted, row.metric.per
    if not counted:
        return row.value
    tokens = {"prompt": batch * prompt, "step": batch, "user": 1, "output": batch * output}[counted]
    return tokens / (row.value * {"all": 1.0, "device": gpus, "node": gpus / NODE}[per])


def predict(case: Case, engine: Engine | str | None = None) -> Predicted:
    """The simulated seconds of a case, with its engine's profile or another; the bound is that of the whole batch."""
    profile = case.engine if engine is None else engine
    bound = getattr(analyze(case.scenario.changed(engine=profile)).generation, case.quantity)
    total = Estimate(0.0, 0.0, 0.0)
    for scenario, times in case.parts:
        found: Estimate = getattr(analyze(scenario.changed(engine=profile)).expected, case.quantity)
        total += found * times
    return Predicted(bound, *total)


def score(
    rows: Sequence[PublishedRow],
    engine: str | None = None,
    by: Sequence[str] = ("file",),
    predictor: Callable[[Case], Predicted] = predict,
) -> tuple[list[Group], list[tuple[Case, Predicted]], list[Skipped]]:
    """Groups by the keys in `by` (others read `all`), every prediction, and the skipped rows.

    Raises UnknownNameError for an unknown key and RooflineError where no row can be simulated.
    """
    check_keys(by, KEYS)
    cases, skipped = map_rows(rows, engine)
    predicted, failed = attempted(cases, lambda case: (case, predictor(case)), lambda case: case.row.line)
    skipped += failed
    if not predicted:
        common = Counter(row.reason for row in skipped).most_common(1)[0][0]
        raise RooflineError(f"none of the {len(rows)} rows can be simulated; mostly: {common}")
    return summarise(predicted, by), predicted, skipped


def summarise(predicted: Sequence[tuple[Case, Predicted]], by: Sequence[str]) -> list[Group]:
    """The errors of each group, in order of first appearance."""

    def times(rows: Sequence[tuple[Case, Predicted]]) -> Any:
        return np.array([(case.measured, found.low, found.mid, found.high, found.bound) for case, found in rows]).T

    return grouped(((row[0].labels, row) for row in predicted), by, KEYS, times)


def end_to_end(path: Path, engine: str | None = None, by: Sequence[str] = ("file",)) -> Mapping[str, Any]:
    """The JSON document of `roofline validate end-to-end`."""
    rows, others = read_all(path)
    groups, predicted, skipped = score(rows, engine, by)
    assumed = (f"{case.row.cell('hardware')}: {case.assumed}" for case, _ in predicted if case.assumed)
    return {
        "schema": "roofline.end-to-end/1",
        "rows": len(rows),
        "scored": len(predicted),
        "groups": [group.document for group in groups],
        "total": summarise(predicted, ())[0].document,
        "predictions": [_row(case, found) for case, found in predicted],
        "unmapped": [
            {"file": row.line.file, "row": row.line.number, "metric": row.line.cells["metric"], "reason": row.reason}
            for row in skipped
        ],
        "reasons": counted((row.reason for row in skipped), "reason"),
        "assumptions": counted(assumed, "assumed"),
        "other_files": [{"file": name, "reason": reason} for name, reason in others.items()],
    }


def _row(case: Case, found: Predicted) -> dict[str, Any]:
    return {
        **case.labels,
        "row": case.row.line.number,
        "quantity": case.quantity,
        "measured_s": case.measured,
        **{f"{name}_s": value for name, value in asdict(found).items()},
    }
