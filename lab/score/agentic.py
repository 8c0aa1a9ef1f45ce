"""Published runs of coding agents, by configuration: hit rate, TTFT, TPOT and throughput, predicted and measured.

    python -m lab.score.agentic agentic_runs.csv [--half seen] [--only GLM] [--draws 5]

Configurations are in two halves by a hash of what they are: the one that is looked at, and the other one, which is held
out. A run is asked as InferenceX's rows are, in several draws of its sessions: predicted is their median, and a figure
is inside where it lies between the least and the greatest end of their 80% intervals. Runs that replay other sessions,
or state no deployment, are counted below the table by the reason.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

from msgspec.structs import replace

from lab.command import run_written
from roofline.core.errors import RooflineError
from roofline.reports.output.export import markdown_table
from roofline.serving.sessions.served import SessionOutcome, outcome_at
from roofline.serving.sessions.transient import theory_of
from roofline.timing.intervals import Estimate
from roofline.validate.score.serving import Predictor
from roofline.validate.tables.inferencex import AGENTIC, AGENTIC_COLUMNS, COLUMNS, PUBLISHED, to_case
from roofline.validate.tables.serving import ServingCase
from roofline.validate.tables.text import Line, read_lines

HALVES = ("seen", "held out")

METRICS = ("hits", "TTFT p50", "TPOT", "tokens/s")

REPLAYED = "cc-traces-weka-062126 (393 traces)"
"""The traces, with the rules that the profiles have, in the column of the workload."""

SHORTER = "(not a valid submission)"

MODELS: Mapping[str, str] = {
    "DeepSeek-V4-Pro": "dsv4",
    "DeepSeek-V4.1-Flash": "deepseek-v4.1-flash",
    "GLM-5.2": "glm5.2",
    "MiniMax-M3": "minimaxm3",
}

ENGINES = (("atom", "ATOM"), ("sglang", "SGLang"), ("vllm", "vLLM"))

JULY = range(2178, 2415)
"""Pull requests of InferenceX while the rules of 13 to 29 July 2026 stood."""

DRAFTED = 2480
"""The first of its pull requests after 3 August 2026, since when agents' recipes have drafts (its MODELS.md)."""

DATES: Mapping[str, str] = {
    "440246": "2026-08-22",
    "440845": "2026-08-27",
    "head-to-head": "2026-07-09",
    "ATOM PR1640": "2026-07-21",
}
"""Dates of published runs whose reproductions state other ones, or none; of what the same page compares.

ATOM's page runs its own and vLLM's with ten minutes before (--agentic-cache-warmup-duration 600), beside runs up to the
last date.
"""


class Run(NamedTuple):
    """A run: its case, configuration, number of sessions, and what was measured (the metrics that it states)."""

    case: ServingCase
    configuration: str
    sessions: int
    measured: Mapping[str, tuple[str, float]]

    @property
    def half(self) -> str:
        return HALVES[hashlib.sha256(self.configuration.encode()).digest()[0] % 2]


class Scored(NamedTuple):
    """A metric of a run: measured, predicted (median, least and greatest of the draws), and whether it is inside."""

    run: Run
    metric: str
    measured: float
    low: float
    mid: float
    high: float
    inside: bool

    @property
    def error(self) -> float:
        """Points of the hit rate, or the part by which the prediction is too large."""
        return self.mid - self.measured if self.metric == "hits" else self.mid / self.measured - 1


def _number(cells: Mapping[str, str], *names: str) -> tuple[str, float] | None:
    """The first of some columns that a row has, with its name."""
    return next(((name, float(cells[name])) for name in names if cells[name].strip()), None)


def _pull(cells: Mapping[str, str]) -> int:
    """The pull request of InferenceX in which a run was published, 0 for none."""
    found = re.search(r"InferenceX.*#(\d+)", cells["source"])
    return int(found[1]) if found else 0


def _date(cells: Mapping[str, str]) -> str:
    """The date of a run, as it or its pull request states it; empty for none."""
    known = next((date for number, date in DATES.items() if number in cells["experiment"] + cells["source"]), "")
    stated = re.search(r"\d{4}-\d\d-\d\d", cells["engine_version"])
    asked = "2026-07-18" if _pull(cells) in JULY else ""
    return known or (stated[0] if stated else asked)


def _measured(cells: Mapping[str, str]) -> dict[str, tuple[str, float]]:
    devices = _number(cells, "gpus")
    found = {
        "hits": _number(cells, "overall_hit_frac", "gpu_prefix_hit_frac"),
        "TTFT p50": _number(cells, "ttft_s_p50"),
        "tokens/s": _number(cells, "total_tok_s"),
    }
    tpot = _number(cells, "itl_ms_p50", "itl_ms_mean")
    if tpot is None and (user := _number(cells, "user_tok_s_p50")):
        tpot = user[0], 1e3 / user[1]
    found["TPOT"] = tpot and (tpot[0], tpot[1] / 1e3)
    if found["tokens/s"] is None and devices and (each := _number(cells, "total_tok_s_per_gpu")):
        found["tokens/s"] = each[0], each[1] * devices[1]
    return {name: value for name, value in found.items() if value is not None}


def _as_asked(cells: Mapping[str, str]) -> dict[str, str]:
    """A row in InferenceX's columns; raises RooflineError where it states no deployment of sessions."""
    if REPLAYED not in cells["workload"] and SHORTER not in cells["workload"]:
        raise RooflineError("it replays other sessions, or by other rules")
    if cells["model"] not in MODELS:
        raise RooflineError("the model has no short name")
    if "1P1D" in cells["pd_layout"] or "prefill" in cells["pd_layout"]:
        raise RooflineError("its pools are not stated one by one")
    version, name = cells["engine_version"], cells["experiment"]
    own = version.partition("+")[0]  # of a connector beside it there is another one
    engine = next((key for key, text in ENGINES if text in version or text in name), None)
    if engine is None or not cells["tp"].strip():
        raise RooflineError("it states no engine, or no layout")
    devices = float(cells["gpus"])
    ranks = float(cells["dp"].strip() or 1)
    asked = dict.fromkeys((*COLUMNS, *AGENTIC_COLUMNS), "")
    pull = _pull(cells)
    drafts = "mtp" in cells["spec_method"].lower() or " MTP " in name
    drafts = drafts or (not cells["spec_method"].strip() and pull >= DRAFTED)
    asked |= {
        "framework": engine,
        "hardware": cells["hardware"].lower(),
        "model": MODELS[cells["model"]],
        "precision": "fp4" if "FP4" in cells["precision"] else "fp8" if "FP8" in cells["precision"] else "",
        "speculation": "mtp" if drafts else "none",
        "disaggregated": "false",
        "concurrency": f"{float(cells['concurrency_or_rate']):.0f}",
        "tp": f"{devices:.0f}",
        "ep": f"{devices if ranks > 1 else float(cells['ep'].strip() or 1):.0f}",
        "dp_attention": str(ranks > 1).lower(),
        "image": ":" + own if re.search(r"v?0\.\d+\.\d+", own) else "",
        "date": _date(cells),
        "scenario": AGENTIC,
        "pool_tokens": cells["gpu_kv_capacity_tokens"],
        "duration": "600" if SHORTER in cells["workload"] else "",
    }
    return asked


def _tiers(cells: Mapping[str, str]) -> str:
    """The hosts' memory of a row's cache: by a ratio to the pool, a size, or all of a node; raises RooflineError."""
    kind, ratio = cells["host_cache_type"], re.search(r"ratio ([\d.]+)", cells["host_cache_type"])
    if not kind.strip() or kind.startswith("none"):
        return ""
    if "smaller" in cells["experiment"]:
        raise RooflineError("the size of its hosts' memory is not stated")
    stated, node = _number(cells, "host_cache_capacity_GB"), PUBLISHED.hosts.get(cells["hardware"].lower())
    whole = node[0] * 2**20 / 1e9 * float(cells["gpus"]) / node[1] if node else 0.0
    size = f"{ratio[1]}x" if ratio else f"{stated[1] if stated else whole:.6g}GB"
    return f"{'lmcache:' if 'LMCache' in kind else ''}dram={size}{':write=back' if 'write_back' in kind else ''}"


def _with_memory(case: ServingCase, version: str) -> ServingCase:
    """A case with the part of the devices' memory that the engine's version is written with (util 0.8)."""
    if not (stated := re.search(r"util (0\.\d+)", version)):
        return case
    engine = case.scenario.profile
    memory = replace(engine.memory, utilization=float(stated[1]))
    return replace(case, scenario=case.scenario.changed(engine=replace(engine, memory=memory)))


def _configuration(asked: Mapping[str, str], cells: Mapping[str, str]) -> str:
    layout = f"DP {asked['tp']}" if asked["dp_attention"] == "true" else f"TP {asked['tp']}"
    tier = "" if cells["host_cache_type"][:4] in ("", "none") else cells["host_cache_type"].split()[0]
    drafts = "MTP" if asked["speculation"] == "mtp" else ""
    words = (cells["model"], cells["hardware"], asked["framework"], layout, drafts, tier)
    return " ".join(word for word in words if word)


def read_runs(path: Path) -> tuple[list[Run], list[str]]:
    """The runs of a file that can be asked, and why others cannot."""
    runs, skipped = list[Run](), list[str]()
    for line in read_lines(path, ("experiment", "workload", "concurrency_or_rate")):
        name = line.cells["experiment"]
        try:
            measured = _measured(line.cells)
            if not measured or not line.cells["concurrency_or_rate"].strip():
                raise RooflineError("nothing that is scored was measured")
            asked = _as_asked(line.cells)
            case = to_case(Line(line.number, name, asked))
            assert case.agents is not None
            case = replace(case, agents=replace(case.agents, tiers=_tiers(line.cells)))
            case = _with_memory(case, line.cells["engine_version"])
            runs.append(Run(case, _configuration(asked, line.cells), int(asked["concurrency"]), measured))
        except RooflineError as reason:
            skipped.append(str(reason))
    return runs, skipped


def _of(outcome: SessionOutcome, metric: str, column: str) -> Estimate:
    """A metric of an outcome with its interval."""
    match metric:
        case "hits":
            return Estimate(outcome.near[0], outcome.hit, outcome.near[1])
        case "TTFT p50":
            return outcome.ttft.p50
        case "TPOT":
            return outcome.tpot.mean if "mean" in column else outcome.tpot.p50
    # Of a number of sessions: the time of turns has the error, their gaps have none.
    total, turn = outcome.input_tokens_per_second + outcome.output_tokens_per_second, outcome.e2e.mean
    gap = max(outcome.value / outcome.turns_per_second - turn.mid, 0.0)
    return Estimate(*(total * (gap + turn.mid) / (gap + each) for each in (turn.high, turn.mid, turn.low)))


def score(run: Run, draws: int, predictor: Predictor) -> Iterator[Scored]:
    """The metrics of a run that was measured; raises RooflineError where it is refused."""
    deployed = predictor.deployed(run.case)
    theories = [theory_of(deployed), *[None] * (draws - 1)]  # its range of hits is the same for all draws
    found = [
        outcome_at(deployed, theory, run.sessions, is_open=False, seed=1000 * seed)
        for seed, theory in enumerate(theories)
    ]
    for metric in METRICS:
        if metric not in run.measured:
            continue
        column, measured = run.measured[metric]
        each = [_of(outcome, metric, column) for outcome in found]
        mids = [float(one.mid) for one in each]
        low, high = min(float(one.low) for one in each), max(float(one.high) for one in each)
        slack = 0.005 if metric == "hits" else 0.0  # hit rates are stated to two digits
        inside = low - slack <= measured <= high + slack
        yield Scored(run, metric, measured, min(mids), median(mids), max(mids), inside)


def _shown(metric: str, value: float) -> str:
    if metric == "hits":
        return f"{value:.2f}"
    if metric == "TPOT":
        return f"{value * 1e3:.3g} ms"
    return f"{value / 1e3:.3g} k" if metric == "tokens/s" else f"{value:.3g} s"


def _table(scored: Sequence[Scored]) -> list[str]:
    """A row a run: of each metric what is predicted (with the range of draws) and measured, `!` where it is outside."""
    rows = []
    for run in dict.fromkeys(each.run.case.line.number for each in scored):
        own = {each.metric: each for each in scored if each.run.case.line.number == run}
        first = next(iter(own.values())).run
        pool = first.case.line.cells["pool_tokens"]
        cells = [first.half, first.configuration, f"{float(pool) / 1e6:.1f} M" if pool else "", str(first.sessions)]
        for metric in METRICS:
            found = own.get(metric)
            if found is None:
                cells.append("")
                continue
            low, mid, high, measured = (_shown(metric, each) for each in (*found[3:6], found.measured))
            spread = "" if low == high else f" ({low} to {high})"
            cells.append(f"{mid}{spread}; {measured}{'' if found.inside else ' !'}")
        rows.append(tuple(cells))
    return markdown_table(("half", "configuration", "pool", "sessions", *METRICS), rows)


def _totals(scored: Sequence[Scored]) -> list[str]:
    """Of each half and metric: runs, mean and median of the error's size, the median with its sign, those inside."""
    rows = []
    for half in HALVES:
        for metric in METRICS:
            own = [each for each in scored if each.run.half == half and each.metric == metric]
            if not own:
                continue
            errors = [each.error for each in own]
            sizes = [abs(error) for error in errors]
            texts = [f"{value:.1%}" for value in (math.fsum(sizes) / len(sizes), median(sizes), median(errors))]
            inside = sum(each.inside for each in own) / len(own)
            rows.append((half, metric, str(len(own)), *texts, f"{inside:.0%}"))
    return markdown_table(("half", "metric", "runs", "mean error", "median", "bias", "inside"), rows)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `python -m lab.score.agentic`; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m lab.score.agentic", description="Score runs of coding agents.")
    parser.add_argument("file", type=Path, help="agentic_runs.csv")
    parser.add_argument("--half", choices=HALVES, help="one of the halves")
    parser.add_argument("--only", default="", help="configurations with this text")
    parser.add_argument("--draws", type=int, default=3, help="draws of a run")

    def report(options: argparse.Namespace) -> str:
        runs, skipped = read_runs(options.file)
        predictor, scored = Predictor(), list[Scored]()
        for run in sorted(runs, key=lambda run: (HALVES.index(run.half), run.configuration, run.sessions)):
            if options.half in (None, run.half) and options.only in run.configuration:
                try:
                    scored += score(run, options.draws, predictor)
                except RooflineError as reason:
                    skipped.append(f"{run.case.line.file}: {reason}")
        left = [f"not asked: {number} runs, {reason}" for reason, number in Counter(skipped).most_common()]
        return "\n".join([*_table(scored), "", *_totals(scored), "", *left, ""])

    return run_written(parser, report, arguments)


if __name__ == "__main__":
    sys.exit(main())
