"""What a visit found, as Markdown: how its steps ended, and each kind of kernel beside the library's and the roof.

The same text is the summary in the folder of a visit and the body of the page `docs/gpu.md`.
"""

from __future__ import annotations

import csv
import gzip
import io
import math
import re
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from roofline.core.errors import RooflineError
from roofline.core.inputs import read_bytes
from roofline.core.units import si
from roofline.specs.hardware import Hardware
from roofline.validate.gpu.visit import NETWORK, ROWS, VERDICTS, Result, machine_from
from roofline.validate.kernels.work import Case, work_of
from roofline.validate.tables.rowfile import case_of
from roofline.validate.tables.text import MAX_BYTES

Row = Mapping[str, str]

REGIMES = {"gemm": ("m", (16, 128, 1024)), "moe": ("tokens", (16, 256, 2048)), "attention_decode": ("batch", (4, 32))}
"""By op, the column and the bounds that split its rows: few rows read weights, many compute."""


PAIRS = (("torch", "triton"), ("torch_flash", "triton"), ("torch_append", "triton_append"))
"""A library's kernel and ours for the same work."""

LABELS = {"torch_flash": ", PyTorch's FlashAttention,", "torch_append": " (KV append)"}
"""What a line says of other kernels than the library's fastest."""


class Timing(Struct, frozen=True):
    """A measured kernel: its case, its source (torch, triton, …), seconds, and the roof's seconds."""

    case: Case
    kernel: str
    seconds: float
    roof: float


def summary(folder: Path, results: Sequence[Result]) -> str:
    """The summary of a folder."""
    parts = ["# A visit to a GPU", ""]
    machine = next((result for result in reversed(results) if result.step == "machine" and result.facts), None)
    rows = [(result.step, result.status, f"{result.seconds:.0f}", result.sentence) for result in results]
    parts += table(("step", "status", "seconds", "what"), rows)
    if machine is not None:
        parts += body(folder, machine_from(machine.facts).hardware, machine, results)
    return "\n".join(parts) + "\n"


def body(
    folder: Path, hardware: Hardware, machine: Result, results: Sequence[Result], others: Sequence[Row] = ()
) -> list[str]:
    """The sections on the machine, correctness, kernels, a network and the fit.

    `others` are timings beside those in the folder.
    """
    return [
        *_machine(hardware, machine),
        *_correctness(rows_in(folder / VERDICTS)),
        *_kernels(timings([*others, *rows_in(folder / ROWS)], hardware)),
        *_network(rows_in(folder / NETWORK)),
        *_fit(results),
    ]


def rows_in(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file or, beside where it would be, of a compressed one; none where there is neither.

    A last line that was cut short is left out.
    """
    packed = path.with_name(f"{path.name}.gz")
    if not path.is_file() and not packed.is_file():
        return []
    found = read_bytes(path if path.is_file() else packed, MAX_BYTES)
    content = found if path.is_file() else gzip.decompress(found)
    reader = csv.DictReader(io.StringIO(content.decode("utf-8", "replace"), newline=""))
    return [row for row in reader if None not in row and None not in row.values()]


def timings(rows: Iterable[Row], hardware: Hardware) -> list[Timing]:
    """The kernels of this hardware's rows with cold caches, each with the time of its roof."""
    found = []
    for row in rows:
        if row["cache"] != "cold" or row["hardware"] != hardware.name:
            continue
        try:
            case = case_of(row)
        except RooflineError:
            continue
        found.append(Timing(case, row["kernel"], 1e-6 * float(row["latency_us"]), roof(case, hardware)))
    return found


def roof(case: Case, hardware: Hardware) -> float:
    """Seconds that the case takes at least: its FLOPs at the format's peak, or its bytes at the memory's bandwidth."""
    work = work_of(case)
    format = work.arithmetic if work.arithmetic and hardware.supports(work.arithmetic) else None
    peak = hardware.matrix_peak(format) if format else hardware.vector.get("fp32", float("inf"))
    return max(work.flops / peak, work.bytes / hardware.memory_bandwidth)


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """A Markdown table, its numbers right-aligned."""
    lines = [[escaped(cell) for cell in row] for row in rows]
    return [
        "| " + " | ".join(header) + " |",
        "|" + "|".join("---" if index == 0 else "---:" for index in range(len(header))) + "|",
        *("| " + " | ".join(line) + " |" for line in lines),
        "",
    ]


_SPECIAL = re.compile(r"[\\`*\[\]<>|&]")


def escaped(text: object) -> str:
    """A text of a file in one line, with nothing that Markdown or HTML would read as more than text."""
    return _SPECIAL.sub(lambda found: f"&#{ord(found[0])};", " ".join(str(text).split()))


def _machine(hardware: Hardware, machine: Result) -> list[str]:
    facts = machine.facts
    state = ", ".join(f"{name} {value}" for name, value in facts.get("state", {}).items())
    rates = [("bandwidth", facts["bandwidth"], hardware.memory_bandwidth, "B/s")]
    for format, peak in facts["peaks"].items():
        sheet = hardware.matrix_peak(format) if hardware.supports(format) else 0.0
        rates.append((f"{format} GEMM", peak, sheet, "FLOP/s"))
    rows = [
        (name, si(value, unit), si(sheet, unit) if sheet else "", f"{100 * value / sheet:.0f}%" if sheet else "")
        for name, value, sheet, unit in rates
    ]
    return [
        "## The machine",
        "",
        f"{escaped(facts['title'])} (`{hardware.name}`): {escaped(facts['software'])}; {escaped(state)}.",
        "",
        *table(("rate", "achieved", "datasheet", "fraction"), rows),
    ]


def _correctness(rows: Sequence[Row]) -> list[str]:
    if not rows:
        return []
    groups: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows:
        groups[row["op"], row["kernel"]].append(row)
    lines = []
    for (op, kernel), found in sorted(groups.items()):
        count = {status: sum(row["status"] == status for row in found) for status in ("correct", "refused")}
        worst = max((share(row) for row in found if row["error"]), default=0.0)
        wrong = len(found) - count["correct"] - count["refused"]
        lines.append((f"{op}, {kernel}", count["correct"], wrong, count["refused"], f"{100 * worst:.0f}%"))
    failed = [
        escaped(f"{row['case']}, {row['kernel']}: {row['reason'] or row['error'] + ', allowed ' + row['allowed']}")
        for row in rows
        if row["status"] in ("wrong", "failed")
    ]
    header = ("kernel", "correct", "wrong or failed", "refused", "largest error, % of the allowed")
    return [
        "## Correctness against float64",
        "",
        *table(header, lines),
        *(f"- {text}" for text in failed[:40]),
        *([""] if failed else []),
    ]


def share(row: Row) -> float:
    """The error of a verdict over the allowed one; infinite where it is NaN, which is what nobody wrote."""
    error, allowed = float(row["error"]), float(row["allowed"])
    return error / allowed if allowed > 0 and math.isfinite(error) else math.inf


def _kernels(found: Sequence[Timing]) -> list[str]:
    """By op, format and regime: the fraction of the roof that each source reaches, and ours of the library's speed."""
    if not found:
        return []
    groups: dict[tuple[str, str, str], dict[Case, dict[str, Timing]]] = defaultdict(lambda: defaultdict(dict))
    for timing in found:
        groups[timing.case.op, timing.case.format, regime(timing.case)][timing.case][timing.kernel] = timing
    lines = []
    for (op, format, where), cases in sorted(
        groups.items(), key=lambda group: (*group[0][:2], first_number(group[0][2]))
    ):
        sources = {kernel for case in cases.values() for kernel in case}
        for library, own in PAIRS:
            if not sources & {library, own} or (own == "triton" and library != "torch" and library not in sources):
                continue
            both = [case for case in cases.values() if {library, own} <= set(case)]
            reached = [
                [100 * case[name].roof / case[name].seconds for case in both or cases.values() if name in case]
                for name in (library, own)
            ]
            ratios = [100 * case[library].seconds / case[own].seconds for case in both]
            label = f"{op}{LABELS.get(library, '')} {format} {where}".rstrip()
            lines.append(
                (label, max(map(len, reached)), *(middle(values) for values in reached), middle(ratios), spread(ratios))
            )
    header = (
        *("kernel", "shapes", "PyTorch, % of the roof", "Triton, % of the roof"),
        *("Triton, % of PyTorch's speed", "least to most"),
    )
    note = (
        "Triton is this project's kernels. PyTorch's GEMMs are cuBLAS's, its fastest attention is cuDNN's or"
        " FlashAttention; norms, activations, RoPE and softmax are its own, several kernels each. Medians over shapes,"
        " column by column. The roof is the larger of FLOPs at the datasheet's peak and bytes at its bandwidth; caches"
        " are cold."
    )
    return ["## Kernels", "", note, "", *table(header, lines)]


def first_number(text: str) -> int:
    """The first number in a text, 0 if it has none."""
    found = re.search(r"\d+", text)
    return int(found[0]) if found else 0


def regime(case: Case) -> str:
    """The regime of a case in words, such as `m 17 to 128`."""
    if case.op not in REGIMES:
        return ""
    name, bounds = REGIMES[case.op]
    value = case[name]
    low = max((bound + 1 for bound in bounds if value > bound), default=1)
    high = min((bound for bound in bounds if value <= bound), default=None)
    return f"{name} {low} to {high}" if high else f"{name} from {low}"


def middle(values: Sequence[float]) -> str:
    """The median, in whole numbers."""
    return f"{statistics.median(values):.0f}" if values else ""


def spread(values: Sequence[float]) -> str:
    """The smallest and largest, in whole numbers."""
    return f"{min(values):.0f} to {max(values):.0f}" if values else ""


def _network(rows: Sequence[Row]) -> list[str]:
    if not rows:
        return []
    lines = []
    for row in rows:
        measured, expected = float(row["latency_us"]), float(row["expected_us"])
        inside = float(row["low_us"]) <= measured <= float(row["high_us"])
        lines.append(
            (
                f"{row['phase']}, batch {row['batch']}, {row['context']} tokens",
                f"{1e-3 * measured:.3g}",
                f"{1e-3 * expected:.3g} ({1e-3 * float(row['low_us']):.3g} to {1e-3 * float(row['high_us']):.3g})",
                f"{100 * (expected / measured - 1):+.0f}%",
                "inside" if inside else "outside",
                row["timing"],
            )
        )
    header = ("pass", "measured, ms", "predicted, ms", "error", "interval", "timed by")
    note = "Predictions are those of the shipped constants; below 0, a pass was predicted too fast. Intervals hold 80%."
    heading = f"## A network: {escaped(rows[0]['model'])} in {escaped(rows[0]['dtype'])}"
    return [heading, "", note, "", *table(header, lines)]


def _fit(results: Sequence[Result]) -> list[str]:
    result = next((result for result in reversed(results) if result.step == "fit" and result.facts.get("groups")), None)
    if result is None:
        return []
    lines = [
        (
            name,
            group["rows"],
            f"{100 * group['before']:.0f}%" if group["before"] is not None else "",
            f"{100 * group['after']:.0f}%",
            f"{100 * group['inside']:.0f}%",
        )
        for name, group in result.facts["groups"].items()
    ]
    header = ("kernel", "held-out rows", "median error, shipped", "median error, fitted", "inside the interval")
    parts = ["## A calibration fitted to four of five rows", "", *table(header, lines)]
    passes = result.facts.get("network", {})
    if passes:
        errors = [(name, *(f"{100 * error:+.0f}%" for error in pair)) for name, pair in passes.items()]
        parts += table(("pass of the network, none of it fitted to", "error, shipped", "error, fitted"), errors)
    return parts
