"""The verdict on a benchmark's result: hit or miss of each metric that was predicted, and where a miss comes from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import msgspec
from msgspec.structs import replace

from roofline.core.errors import SpecError
from roofline.core.inputs import read_text
from roofline.core.units import seconds
from roofline.launch.forecast import Forecast
from roofline.validate.imports.result import Given

MAX_BYTES = 1_000_000
"""The most bytes of a prediction."""

NEAR = 0.02
"""The relative difference of lengths from which a benchmark was another than the predicted one."""

TOLD = {"model": "model", "hw": "hardware", "engine": "engine", "weights": "weights", "kv": "kv"}
"""What a prediction tells of a result, by the option that states it."""

NAMES = {
    "ttft_mean": "TTFT",
    "tpot_mean": "TPOT",
    "e2e_mean": "E2E latency",
    "output_throughput_total": "output tokens/s",
}
"""The metrics of a prediction in words."""


def read_forecast(path: Path) -> Forecast:
    """The prediction of a launch's `prediction.json`; raises SpecError."""
    try:
        return msgspec.json.decode(read_text(path, MAX_BYTES), type=Forecast)
    except (msgspec.DecodeError, UnicodeError):
        raise SpecError(str(path), "is no prediction of 'roofline launch --output'") from None


def told(given: Given, found: Forecast) -> Given:
    """What the user states beside a file, and the model, hardware, engine and formats of the prediction."""
    own = {name: getattr(found, field) or None for name, field in TOLD.items()}
    return replace(given, **{name: value for name, value in own.items() if getattr(given, name) is None})


def verdict(rows: Iterable[Mapping[str, object]], found: Forecast) -> Iterator[str]:
    """A line a metric of the rows of one result, and where a miss comes from. Raises SpecError without metrics."""
    texts = [{name: str(value) for name, value in row.items()} for row in rows]
    measured = {row["metric"]: float(row["value"]) for row in texts}
    shared = {name: value for name, value in measured.items() if name in found.metrics and name in NAMES}
    if not shared:
        raise SpecError("the result", f"has none of the predicted metrics: {', '.join(found.metrics)}")
    missed: dict[str, float] = {}
    for name, value in shared.items():
        interval = found.metrics[name]
        hit = interval.low <= value <= interval.high
        missed |= {} if hit else {name: value / interval.mid}
        low, mid, high = (_shown(name, part) for part in (interval.low, interval.mid, interval.high))
        ends = f"{mid} ({low} to {high}): {'hit' if hit else 'miss'}"
        yield f"{NAMES[name]}: measured {_shown(name, value)}, predicted {ends}"
    if missed:
        yield from _causes(texts[0], found, missed)


def _shown(name: str, value: float) -> str:
    return f"{value:,.0f}" if name == "output_throughput_total" else seconds(value / 1e3)


def _causes(row: Mapping[str, str], found: Forecast, missed: Mapping[str, float]) -> Iterator[str]:
    """Where misses come from: another benchmark than the predicted one, else the part of a request that differs."""
    other = [
        f"{what} was {given}, not {planned:g}"
        for what, given, planned in (
            ("the prompt", row["input_len"], found.prompt),
            ("the output", row["output_len"], found.output),
        )
        if given and abs(float(given) - planned) > NEAR * planned
    ]
    if row["batch"].partition(";")[0] != found.load.partition(";")[0]:
        other.append(f"the load was {row['batch']}, not {found.load}")
    if other:
        yield f"the benchmark was another one: {'; '.join(other)}"
        return
    ratios = {name: f"{ratio:.2f} times the predicted" for name, ratio in missed.items()}
    if "tpot_mean" in missed:
        yield f"decode steps take {ratios['tpot_mean']} time: kernels, or host work of the engine between steps"
    if "ttft_mean" in missed:
        same = "" if "tpot_mean" in missed else ", while decode steps are as predicted"
        yield f"prompts wait or run {ratios['ttft_mean']} time{same}: prefill, its queue, or the network and tokenizer"
    if not missed.keys() & {"tpot_mean", "ttft_mean"}:
        yield "TTFT and TPOT are as predicted: the run's start and end, with fewer requests in flight, make the rest"
