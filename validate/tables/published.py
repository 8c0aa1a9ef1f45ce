"""Tables of published whole-model values: TTFT, TPOT, batch latency and throughput.

A file has the columns model, hardware, gpus, engine, weights, kv, batch, input_len, output_len, metric, value, unit,
source; a folder is all its CSV files.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Literal, NamedTuple

from msgspec import Struct

from roofline.core.errors import SpecError
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


Quantity = Literal["ttft", "tpot", "total"]
"""The time that a value is compared as."""


class Metric(NamedTuple):
    """A metric of the files: the time that it is compared as, of what its value is the tokens a second, and its scope.

    `counted` is nothing of a time, else tokens of the prompts, of a step, of each user's step, or generated ones.
    """

    quantity: Quantity
    counted: Literal["", "prompt", "step", "user", "output"] = ""
    per: Literal["all", "device", "node"] = "all"


METRICS: Mapping[str, Metric] = MappingProxyType(
    {
        "ttft": Metric("ttft"),
        "tpot": Metric("tpot"),
        "batch_latency": Metric("total"),
        "prefill_throughput": Metric("ttft", "prompt"),
        "prefill_throughput_per_gpu": Metric("ttft", "prompt", "device"),
        "prefill_input_throughput_per_node": Metric("ttft", "prompt", "node"),
        "decode_throughput": Metric("tpot", "step"),
        "decode_throughput_per_gpu": Metric("tpot", "step", "device"),
        "decode_output_throughput_per_node": Metric("tpot", "step", "node"),
        "per_user_output_speed": Metric("tpot", "user"),
        "output_throughput": Metric("total", "output"),
        "output_throughput_per_gpu": Metric("total", "output", "device"),
        "ttft_mean": Metric("ttft"),
        "tpot_mean": Metric("tpot"),
        "itl_mean": Metric("tpot"),
        "e2e_mean": Metric("total"),
        "output_throughput_total": Metric("total", "output"),
    }
)

SECONDS: Mapping[str, float] = MappingProxyType({"s": 1.0, "ms": 1e-3, "us": 1e-6})
_RATE = re.compile(r"tok(ens)?/s\b.*")


class PublishedRow(Struct, frozen=True):
    """One checked row: its value in seconds or tokens a second."""

    line: Line
    metric: Metric
    value: float

    def cell(self, column: str) -> str:
        return self.line.cells[column].strip()


def read_rows(path: Path) -> list[PublishedRow]:
    """The checked rows of a file; raises SpecError for the first error."""
    where = str(path)
    lines = read_lines(path, COLUMNS)
    check_filled(lines, ("model", "hardware", "gpus", "engine", "metric", "value", "unit"), where)
    check_known(lines, "metric", METRICS, where)
    values = numbers_above_zero(lines, "value", where)
    refuse([line.number for line in lines if not parse_count(line.cells["gpus"])], "'gpus' is no count", where)
    wrong = [line.number for line in lines if _scale(line) is None]
    refuse(wrong, "the unit does not fit the metric: a time (s, ms, us), or tokens a second (tok/s)", where)
    return [
        PublishedRow(line, METRICS[line.cells["metric"].strip()], value * (_scale(line) or 1.0))
        for line, value in zip(lines, values, strict=True)
    ]


def _scale(line: Line) -> float | None:
    """The factor from the row's unit to seconds or tokens a second; None for a unit that does not fit the metric."""
    unit, metric = line.cells["unit"].strip(), METRICS[line.cells["metric"].strip()]
    if not metric.counted:
        return SECONDS.get(unit)
    return 1.0 if _RATE.fullmatch(unit) else None


def read_all(path: Path) -> tuple[list[PublishedRow], dict[str, str]]:
    """The rows of a file or of a folder's CSV files, and the reasons why other CSV files there are not such tables."""
    if not path.is_dir():
        return read_rows(path), {}
    files = sorted(entry for entry in path.iterdir() if entry.suffix.lower() == ".csv")
    rows: list[PublishedRow] = []
    others: dict[str, str] = {}
    for file in files:
        try:
            read_lines(file, COLUMNS)
        except SpecError as reason:
            if "lacks the column" not in str(reason):
                raise
            others[file.name] = str(reason).removeprefix(f"{file}: ")
            continue
        rows += read_rows(file)
    if not rows:
        raise SpecError(str(path), "holds no CSV file of whole-model values")
    return rows, others
