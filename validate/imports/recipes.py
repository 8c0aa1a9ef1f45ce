"""InferenceX's configurations and results as rows of `roofline.validate.tables.inferencex`.

A configuration (SemiAnalysisAI/InferenceX, configs/nvidia-master.yaml and amd-master.yaml, described in its CONFIGS.md)
names a model, hardware, an engine's image and formats, and of each scenario a search space: layouts, each at several
numbers of requests in flight or of sessions. A row is one of these numbers, without times; a result file (agg_*.json)
is the row with times. Both are predicted alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from roofline.core.documents import finite_number, read_mapping, scalar_text
from roofline.core.errors import RooflineError, SpecError, UnknownNameError
from roofline.serving.outcome import Outcome
from roofline.serving.sessions.served import SessionOutcome
from roofline.specs.engine import PHASES
from roofline.validate.imports.convert import Imported
from roofline.validate.imports.fields import Fields, read_content
from roofline.validate.score.serving import Predictor
from roofline.validate.tables.inferencex import AGENTIC, AGENTIC_COLUMNS, COLUMNS, PUBLISHED, fallback_of, to_case
from roofline.validate.tables.text import Line, csv_text

PREDICTED = ("predicted_ttft", "predicted_tpot", "predicted_e2el", "predicted_output_tokens_per_s_per_gpu")
ROW = ("configuration", "image", *COLUMNS, *AGENTIC_COLUMNS, *PREDICTED, "predicted_hit_rate", "reason")
"""The columns of the rows: `reason` says what is assumed, or why one is not predicted."""

MIB, GB = 1 << 20, 1e9
"""Bytes of a MiB, in which the memory of hosts is published, and of a GB, in which rows state it."""

UTILIZATION = 0.8
"""Of the hosts' memory where an entry does not say (dram-utilization of nearly all others)."""

Cells = dict[str, str]


class Recipe(Struct, frozen=True):
    """A named configuration: the cells of each of its rows."""

    name: str
    rows: tuple[Cells, ...]


def is_recipe(path: Path) -> bool:
    """Whether a file is one of configurations, or a result of InferenceX."""
    if path.suffix.lower() in (".yaml", ".yml"):
        return True
    documents = read_content(path).documents
    return bool(documents) and all({"hw", "conc", "framework", "precision"} <= set(each) for each in documents)


def import_recipes(paths: Sequence[Path], names: Sequence[str] = (), predict: bool = False) -> Imported:
    """The rows of configurations, all or those of `names`, and of results; predicted ones with `predict`.

    Notes say how many rows and configurations can be asked, and of each that cannot, why.
    """
    found = [recipe for path in paths for recipe in _read(path)]
    known = {recipe.name for recipe in found}
    for name in names:
        if name not in known:
            raise UnknownNameError("configuration", name, sorted(known))
    rows, notes, predictor = list[dict[str, object]](), list[str](), Predictor()
    left_out = list[str]()
    for recipe in found:
        if names and recipe.name not in names:
            continue
        own = [_answered(recipe.name, cells, predictor if predict else None) for cells in recipe.rows]
        rows += own
        if own and all(row["reason"] and not row["predicted_ttft"] for row in own):
            left_out.append(f"{recipe.name}: {own[0]['reason']}")
    asked = len(names or found)
    notes.append(f"{len(rows)} rows; {asked - len(left_out)} of {asked} configurations can be asked")
    return Imported(csv_text(rows, ROW), notes + left_out, rows)


def _answered(name: str, cells: Cells, predictor: Predictor | None) -> dict[str, object]:
    """A row with its prediction, or the reason why it cannot be asked."""
    row: dict[str, object] = {"configuration": name, **{key: cells.get(key, "") for key in ROW[1:]}}
    stated = {key: str(value) for key, value in row.items()}
    try:
        case = to_case(Line(1, name, stated))
        if predictor is not None:
            outcome = predictor(case)
            pools = case.pools
            devices = case.scenario.settings.parallel.devices
            if pools is not None and pools.parallel is not None:
                devices = pools.decodes * pools.parallel.devices
            row |= _predicted(outcome, devices) | {"reason": case.assumed or fallback_of(stated)[1]}
    except RooflineError as reason:
        row["reason"] = str(reason)
    return row


def _predicted(outcome: Outcome | SessionOutcome, devices: int) -> dict[str, object]:
    """Medians in seconds, and output tokens/s of a device (of decode)."""
    medians = (outcome.ttft, outcome.tpot, outcome.e2e)
    values = [f"{float(each.p50.mid):.4g}" for each in medians]
    values.append(f"{outcome.output_tokens_per_second / devices:.4g}")
    hit = f"{outcome.hit:.3f}" if isinstance(outcome, SessionOutcome) else ""
    return {**dict(zip(PREDICTED, values, strict=True)), "predicted_hit_rate": hit}


def _read(path: Path) -> Iterator[Recipe]:
    """The configurations of a file, or its results, each under the name of the file; raises SpecError."""
    if path.suffix.lower() not in (".yaml", ".yml"):
        content = read_content(path)
        yield Recipe(path.stem, tuple(_result(Fields(each, str(path))) for each in content.documents))
        return
    for name, entry in read_mapping(path).items():
        where = f"{path}: {name}"
        yield Recipe(str(name), tuple(_rows(_mapping(entry, where), where)))


def _rows(entry: Mapping[str, Any], where: str) -> Iterator[Cells]:
    """A row for each number of each layout of each scenario; raises SpecError."""
    scenarios = entry.get("scenarios") or {"fixed-seq-len": entry.get("seq-len-configs")}
    shared = {
        "image": _text(entry, "image"),
        "hardware": _text(entry, "runner").removeprefix("cluster:").partition("-")[0],
        "model": _text(entry, "model-prefix"),
        "checkpoint": _text(entry, "model"),
        "precision": _text(entry, "precision"),
        "framework": _text(entry, "framework"),
        **{f"{pool}_hardware": _text(_mapping(entry.get("hardware") or {}, where), pool) for pool in PHASES},
    }
    for kind, scenario in _mapping(scenarios, where).items():
        for part in _list(scenario, where):
            for space in _list(_mapping(part, where).get("search-space"), where):
                for concurrency in _concurrencies(_mapping(space, where), where):
                    workers = _number(_mapping(space.get("worker") or {}, where), "num-worker", where)
                    own = max(concurrency // max(workers, 1), 1)  # equal workers divide the requests
                    cells = shared | {"concurrency": str(own), "scenario": str(kind)}
                    yield cells | _layout(space, bool(entry.get("disagg")), where) | _load(part, space, cells, where)


def _layout(space: Mapping[str, Any], apart: bool, where: str) -> Cells:
    """The layout of a deployment, of one of its workers, or of those of its pools; prefill may decode, too."""
    pools = {pool: _mapping(space.get(pool) or {}, where) for pool in PHASES}
    found = {"speculation": _text(space, "spec-decoding"), "disaggregated": str(apart).lower()}
    if not apart or not _number(pools["decode"], "num-worker", where):
        own = _mapping(space.get("worker") or pools["prefill"] or space, where)
        return found | {"disaggregated": "false"} | _degrees(own, "")
    for name, pool in pools.items():
        own = _degrees(pool, f"{name}_")
        workers = _number(pool, "num-worker", where)
        wide = _number(pool, "ep", where) if own[f"{name}_dp_attention"] == "true" else 1
        devices = max(_number(pool, "tp", where), wide) * max(_number(pool, "pp", where), 1)
        found |= own | {f"{name}_num_workers": str(workers), f"{name}_gpus": str(workers * devices)}
    return found


def _degrees(space: Mapping[str, Any], prefix: str) -> Cells:
    names = {"tp": "tp", "ep": "ep", "pp": "pp", "dcp-size": "dcp_size", "dp-attn": "dp_attention"}
    return {f"{prefix}{cell}": _text(space, key) for key, cell in names.items()}


def _load(part: Mapping[str, Any], space: Mapping[str, Any], cells: Cells, where: str) -> Cells:
    """Lengths of requests, or of sessions the seconds of a run and the hosts' memory a device for their cache."""
    if cells["scenario"] != AGENTIC:
        return {"isl": _text(part, "isl"), "osl": _text(part, "osl")}
    found = {"duration": _text(part, "duration")}
    if _text(space, "kv-offloading" if "kv-offloading" in space else "offloading") in ("", "none"):
        return found
    # Its entries of June 2026 name the memory themselves: of the layout's devices, or of a node of so many.
    stated, node = (finite_number(each.get(name)) for each, name in ((space, "total-cpu-dram-gb"), (part, NODE)))
    devices = max(_number(space, "tp", where), _number(space, "ep", where), 1) * max(_number(space, "pp", where), 1)
    host, each = PUBLISHED.hosts.get(cells["hardware"], (0.0, 1))
    memory = stated / devices if stated else _share(part) * (host / each) * MIB / GB
    if node and not stated:
        memory = _share(part) * node / (finite_number(part.get("gpus-per-node")) or 8) * MIB / GB
    return found | {"host_gb_per_gpu": f"{memory:.4g}"}


NODE = "available-cpu-dram-mib"


def _share(part: Mapping[str, Any]) -> float:
    names = ("dram-utilization", "cpu-offload-utilization")
    return next(filter(None, (finite_number(part.get(name)) for name in names)), UTILIZATION)


def _concurrencies(space: Mapping[str, Any], where: str) -> list[int]:
    """The list of numbers, or those from the first to the last by doubling."""
    if "conc-list" in space:
        return [_number({"conc-list": each}, "conc-list", where) for each in _list(space["conc-list"], where)]
    number, last = (_number(space, f"conc-{end}", where) for end in ("start", "end"))
    found = [number]
    while 0 < found[-1] < last:
        found.append(min(2 * found[-1], last))
    return found


def _result(fields: Fields) -> Cells:
    """The cells of a result: its own fields, those of the pools, and times of requests or of turns in seconds."""

    def text(*paths: str) -> str:
        value = fields.value(*paths)[1]
        return str(value).lower() if isinstance(value, bool) else fields.text(*paths)

    found = {name: text(name) for name in PUBLISHED.stated}
    found |= {name: text(*paths) for name, paths in PUBLISHED.results.items()}
    found["hardware"] = found["hardware"].removeprefix("cluster:").partition("-")[0]
    if found["scenario"] == AGENTIC:
        gpus = fields.number("num_gpus") or fields.number("tp") or 1
        memory = fields.number("allocated_cpu_dram_gb")
        found["host_gb_per_gpu"] = f"{memory / gpus:.4g}" if memory and text("kv_offloading") != "none" else ""
        found |= {name: text(path) for name, path in PUBLISHED.turns.items()}
    return found


def _mapping(value: object, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise SpecError(where, "is no configuration of InferenceX: it has a value where settings are expected")
    return value


def _list(value: object, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise SpecError(where, "is no configuration of InferenceX: it lacks a list of scenarios or of layouts")
    return value


def _text(entry: Mapping[str, Any], name: str) -> str:
    value = entry.get(name)
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else (scalar_text(value) or "")[:500]


def _number(entry: Mapping[str, Any], name: str, where: str) -> int:
    """A whole number; 0 without one. Raises SpecError."""
    value = entry.get(name, 0)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 10**6:
        raise SpecError(where, f"{name} is no whole number")
    return value
