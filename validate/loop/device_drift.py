"""`roofline validate drift`: measure a few rows of a file again, to detect a change of the machine."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from roofline.core.errors import RooflineError
from roofline.timing.kernels.elementwise import PASSES
from roofline.validate.kernels.benchmark import Benchmark, benchmarks
from roofline.validate.kernels.work import work_of
from roofline.validate.measure.bench import Progress, bar, measure_case
from roofline.validate.measure.device import Device, open_device
from roofline.validate.tables.rowfile import case_of, read_rows

POINTS = 12
"""Rows of each op that are measured again."""

POOLED_POINTS = 36
"""Memory-bound rows of all ops together, and as many compute-bound ones."""

NEAR_BEST = 0.6
"""Fraction of the highest rate in a file above which a row counts as bound by it."""

MARGIN = 0.03
"""Relative change that is ignored: a GPU's clock varies as much."""

STANDARD_ERRORS = 2.6
"""Standard errors on each side of a median: its 99% confidence interval."""

MIN_NOISE = 0.01
"""Lower limit of the deviation of a ratio, for the case that a few points agree by chance."""

MAX_TIME = 60e-3
"""Seconds: rows that take longer are not measured again."""


class Ratio(Struct, frozen=True):
    """Time now over time then for rows of an op, or pooled over memory- or compute-bound rows: median and interval."""

    op: str
    rows: int
    low: float
    mid: float
    high: float
    pooled: bool = False

    @property
    def change(self) -> str:
        """`slower`, `faster` or `same`.

        There are many ops with few rows each, so that the whole interval of an op has to exceed the margin.
        """
        low, high = (self.mid, self.mid) if self.pooled else (self.low, self.high)
        if self.low > 1 and low > 1 + MARGIN:
            return "slower"
        return "faster" if self.high < 1 and high < 1 - MARGIN else "same"


class DriftResult(Struct, frozen=True):
    """Ratios by op, and of the rows bound by `bandwidth` and by `arithmetic`; rows that could not be measured."""

    path: Path
    ratios: tuple[Ratio, ...]
    left_out: int
    remarks: tuple[str, ...] = ()

    @property
    def changed(self) -> bool:
        return any(ratio.change != "same" for ratio in self.ratios)

    @property
    def lines(self) -> list[str]:
        lines = [f"time now over time in {self.path} (median, and its 99% confidence interval)"]
        for ratio in self.ratios:
            lines.append(
                f"  {ratio.op:<20}{ratio.rows:4} rows   {ratio.mid:.3f} ({ratio.low:.3f} to {ratio.high:.3f})"
                f"   {ratio.change}"
            )
        lines += [f"  {remark}" for remark in self.remarks]
        changes = ", ".join(f"{ratio.op} {ratio.change}" for ratio in self.ratios if ratio.change != "same")
        lines.append(f"the machine has changed: {changes}" if changes else "no change of the machine")
        return lines


def run_drift(path: Path, threads: int | None = None) -> DriftResult:
    """Measure a few rows of a file again and compare, by default on the file's device with its number of threads."""
    rows = read_rows(path)
    then = int(rows[0]["threads"]) if rows[0]["threads"].isdigit() else None
    device = open_device("cpu" if rows[0]["threads"] else "cuda", threads or then)
    with bar() as progress:
        return drift_on(device, benchmarks(device.name), rows, path, progress=progress)


def drift_on(
    device: Device,
    known: Mapping[str, Benchmark],
    rows: Sequence[Mapping[str, str]],
    path: Path,
    points: int = POINTS,
    progress: Progress = lambda _fraction, _label: None,
) -> DriftResult:
    """Measure the rows with the smallest spread again on `device`, of every op and of each bound."""
    limits = _limits(rows, str(path))
    picked: dict[int, None] = {}
    for op in dict.fromkeys(row["op"] for row in rows):
        picked |= dict.fromkeys(_steadiest(rows, [index for index, row in enumerate(rows) if row["op"] == op], points))
    for limit in ("bandwidth", "arithmetic"):
        those = [index for index, found in enumerate(limits) if found == limit]
        picked |= dict.fromkeys(_steadiest(rows, those, POOLED_POINTS))
    logs: dict[str, list[float]] = {}
    limited: dict[str, list[float]] = {}
    left_out = 0
    for done, index in enumerate(picked):
        row = rows[index]
        progress(done / len(picked), row["op"])
        case = case_of(row, str(path))
        benchmark = known.get(case.op)
        sample = (
            measure_case(case, row["kernel"], device, benchmark, row["cache"] != "warm")
            if benchmark
            else "no benchmark"
        )
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
    remarks = [f"the software has changed: {then} then, {now} now"] if now != then else []
    name = device.state.get("device", "")
    if rows[0]["device"] and name and rows[0]["device"] != name:
        remarks.append(f"the device has changed: {rows[0]['device']} then, {name} now")
    return DriftResult(path, tuple(ratios), left_out, tuple(remarks))


def _limits(rows: Sequence[Mapping[str, str]], where: str) -> list[str]:
    """What bounds each row: `bandwidth` or `arithmetic` where it comes near the file's best rate, else nothing."""
    cases = [case_of(row, where) for row in rows]
    seconds = np.array([float(row["latency_us"]) * 1e-6 for row in rows])
    works = [work_of(case) for case in cases]
    moved = np.array([work.bytes for work in works]) / seconds
    computed = np.array([work.flops for work in works]) / seconds
    best = {case.dtype: 0.0 for case in cases}
    for case, rate in zip(cases, computed, strict=True):
        best[case.dtype] = max(best[case.dtype], float(rate))
    near = NEAR_BEST * float(np.percentile(moved, 95))
    found = []
    for case, bytes, flops in zip(cases, moved, computed, strict=True):
        heavy = case.op not in PASSES and flops >= NEAR_BEST * best[case.dtype]
        found.append("arithmetic" if heavy else "bandwidth" if bytes >= near else "")
    return found


def _steadiest(rows: Sequence[Mapping[str, str]], those: Sequence[int], points: int) -> list[int]:
    """The rows with the smallest spread, among those shorter than `MAX_TIME`."""
    short = [index for index in those if float(rows[index]["latency_us"]) < 1e6 * MAX_TIME]
    return sorted(short, key=lambda index: _spread(rows[index]))[:points]


def _spread(row: Mapping[str, str]) -> float:
    try:
        return (float(row["latency_p90_us"]) - float(row["latency_p10_us"])) / float(row["latency_us"])
    except ValueError:
        return math.inf


def ratio_of(op: str, logs: Sequence[float]) -> Ratio:
    """The median of ratios and its interval, from their logarithms.

    The standard error of a median is 1.253 s / sqrt(n), with s = 1.4826 median absolute deviations; few rows widen it,
    like Student's t.
    """
    values = np.asarray(logs)
    mid = float(np.median(values))
    deviation = max(1.4826 * float(np.median(np.abs(values - mid))), MIN_NOISE)
    few = 1.0 + 6.0 / len(values)
    half = STANDARD_ERRORS * few * 1.253 * deviation / math.sqrt(len(values))
    return Ratio(op, len(values), math.exp(mid - half), math.exp(mid), math.exp(mid + half))
