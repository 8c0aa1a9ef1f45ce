"""Public cases, asked of the command line: what was measured, what is predicted, and whether it is inside the interval.

    python -m lab.score.cases CASES_DIR [--only TEXT] [--output cases.md]

`speed.csv` (id, case, command, measured with its unit, source) becomes a table with errors by class; `memory.csv` the
sentences on memory that its commands print, beside what is right; `models.csv` the parameters of its files. A quantity
is chosen by the unit and by the case's name: `ttft` and `.c16` (latency of a request), `tpot`, `pp` and `prefill`.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import io
import json
import math
import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple
from unittest.mock import patch

from lab.command import run_written
from roofline.cli.program import main as roofline
from roofline.core.errors import RooflineError


class Speed(NamedTuple):
    """One row of `speed.csv`: measured and predicted with its interval, in the unit of the row; NaN where refused."""

    name: str
    group: str
    measured: float
    low: float
    mid: float
    high: float
    refusal: str = ""

    @property
    def error(self) -> float:
        """Of the predicted against the measured, in the direction of speed: above zero is too fast."""
        return self.mid / self.measured - 1


def printed(command: str, folder: Path, *more: str) -> str:
    """What `roofline COMMAND` prints; raises RooflineError with its message when it is refused."""
    out, err = io.StringIO(), io.StringIO()
    arguments = [word.replace("cases/", f"{folder}/") for word in shlex.split(command)] + list(more)
    with (
        patch.object(sys, "argv", ["roofline", *arguments]),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        contextlib.suppress(SystemExit),
    ):
        roofline()
    if not out.getvalue():
        raise RooflineError(err.getvalue().strip().removeprefix("roofline: "))
    return out.getvalue()


def group_of(command: str, name: str) -> str:
    """The class of a case, by what decides its error."""
    if "--nodes" in command or "--ep " in command or "gb200" in command.split("--hw ")[1].split()[0]:
        return "several nodes or wide EP"
    if "xeon" in command or "epyc" in command:
        return "CPU"
    if "multi-token" in command:
        return "MTP"
    moe = re.search(r"deepseek|gpt-oss|-a\d+b|mixtral|glm|kimi", command) is not None
    if "llama.cpp" in command:
        return f"llama.cpp, {'MoE' if moe else 'dense'}"
    where = "under load" if command.startswith("serve") else "static"
    return f"{'gpt-oss' if 'gpt-oss' in name + command else 'MoE' if moe else 'dense'}, {where}"


def _predicted(command: str, name: str, unit: str, answer: Mapping[str, Any]) -> tuple[float, float, float]:
    """Low, mid and high in the row's unit."""
    if command.startswith("serve"):
        point = answer["points"][0]
        if unit == "ms":
            quantity = "ttft_s" if "ttft" in name else "e2e_s" if "mi300x" in name else "tpot_s"
            found = point[quantity]["mean"]
            return found["low"] * 1e3, found["mid"] * 1e3, found["high"] * 1e3
        ends = point["e2e_s"]["mean"]
        rate = point["output_tokens_per_s"]
        return rate * ends["mid"] / ends["high"], rate, rate * ends["mid"] / ends["low"]
    made, asked = answer["generation"], answer["scenario"]
    prefill = re.search(r"ttft|prefill|\.pp\d*", name) is not None
    times = made["expected_ttft_s"] if prefill else made["expected_tpot_s"]
    if unit == "ms":
        return times["low"] * 1e3, times["mid"] * 1e3, times["high"] * 1e3
    tokens = asked["batch"] * (asked["prompt"] if prefill else 1)
    return tokens / times["high"], tokens / times["mid"], tokens / times["low"]


def _rows(path: Path) -> Iterator[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        yield from csv.DictReader(file)


def speeds(folder: Path, only: str = "") -> list[Speed]:
    """The rows of `speed.csv` whose case or command has `only` in it."""
    found = []
    for row in _rows(folder / "speed.csv"):
        command, name = row["command (roofline ...)"], row["case"]
        if only not in command and only not in name:
            continue
        amount, unit = row["measured"].split()
        measured, group = float(amount.replace(",", "")), group_of(command, name)
        try:
            answer = json.loads(printed(command, folder, "--format", "json"))
            found.append(Speed(name, group, measured, *_predicted(command, name, unit, answer)))
        except RooflineError as error:
            found.append(Speed(name, group, measured, math.nan, math.nan, math.nan, str(error)))
        if unit == "ms":  # speeds are compared
            last = found[-1]
            found[-1] = last._replace(
                measured=1e3 / measured, low=1e3 / last.high, mid=1e3 / last.mid, high=1e3 / last.low
            )
    return found


def speed_table(rows: Sequence[Speed]) -> str:
    """Every row by class, and the classes: number, median error and share inside."""
    lines = ["| case | measured | predicted | interval | too fast by | inside |", "|---|---|---|---|---|---|"]
    for row in sorted(rows, key=lambda row: row.group):
        if row.refusal:
            lines.append(f"| {row.name} | {row.measured:.4g} | refused: {row.refusal} | | | |")
        else:
            inside = "yes" if row.low <= row.measured <= row.high else "no"
            lines.append(
                f"| {row.name} | {row.measured:.4g} | {row.mid:.4g} | {row.low:.4g} to {row.high:.4g} "
                f"| {row.error:+.0%} | {inside} |"
            )
    lines += ["", "| class | rows | median error | median, signed | inside |", "|---|---|---|---|---|"]
    far = "several nodes or wide EP"
    groups = {group: [row for row in rows if row.group == group] for group in sorted({row.group for row in rows})}
    groups |= {"all": list(rows), f"all but {far}": [row for row in rows if row.group != far]}
    for group, members in groups.items():
        answered = [row for row in members if not row.refusal]
        if answered:
            share = sum(row.low <= row.measured <= row.high for row in answered) / len(answered)
            lines.append(
                f"| {group} | {len(members)} | {median(abs(row.error) for row in answered):.1%} "
                f"| {median(row.error for row in answered):+.1%} | {share:.0%} |"
            )
    return "\n".join(lines) + "\n"


def memory_table(folder: Path) -> str:
    """What the commands of `memory.csv` say of memory, beside what is right."""
    lines = []
    for row in _rows(folder / "memory.csv"):
        lines.append(f"{row['id']}: {row['command (roofline ...)']}\n  right: {row['right']}")
        try:
            said = printed(row["command (roofline ...)"].split(" (")[0], folder)
        except RooflineError as error:
            said = f"memory: refused: {error}"
        kept = [line for line in said.splitlines() if re.search(r"memory|[Kk][Vv] cache|context|batch ", line)]
        lines += [f"  {line.strip()}" for line in kept[:4]]
    return "\n".join(lines) + "\n"


def model_table(folder: Path) -> str:
    """Parameters of the files of `models.csv`, beside those of the real class."""
    lines = ["| file | parameters | right |", "|---|---|---|"]
    for row in _rows(folder / "models.csv"):
        right = re.search(r"([\d,]+) params", row["right (transformers 5.24 on the meta device)"])
        try:
            spec = json.loads(printed(f"specs show cases/models/{row['file (models/)']}", folder, "--format", "json"))
            said = f"{spec['parameters']:,}"
        except RooflineError as error:
            said = f"refused: {error}"
        lines.append(f"| {row['file (models/)']} | {said} | {right[1] if right else ''} |")
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `python -m lab.score.cases`; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m lab.score.cases", description="Score the public cases.")
    parser.add_argument("cases", type=Path, help="folder of speed.csv, memory.csv and models.csv")
    parser.add_argument("--only", default="", help="rows of speed.csv with this text, and no other table")

    def report(options: argparse.Namespace) -> str:
        folder = options.cases.resolve()
        speed = speed_table(speeds(folder, options.only))
        return speed if options.only else f"{speed}\n{memory_table(folder)}\n{model_table(folder)}"

    return run_written(parser, report, arguments)


if __name__ == "__main__":
    sys.exit(main())
