"""JSON documents of analyses, models and hardware: nested dictionaries from which every table is made."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from datetime import date
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict, fields
from rich.text import Text

from roofline import (
    Analysis,
    Hardware,
    Model,
    active_parameters,
    kv_bytes_per_token,
    parameters,
    state_bytes_per_sequence,
)
from roofline.launch.repository import name_of
from roofline.reports.documents import summary
from roofline.reports.output.blocks import Block, Document, Face, finite, picked
from roofline.reports.output.cells import csv_of
from roofline.reports.output.export import escape, markdown_table, printable
from roofline.reports.output.terminal import table
from roofline.scenario import cost
from roofline.scenario.memory import hardware_name, memory_is_static
from roofline.scenario.notes import ATTENTION, caches, fused, generates
from roofline.scenario.phase import Expectation, OpFigures, Phase
from roofline.scenario.scenario import Scenario
from roofline.specs.precision import parse_precision
from roofline.specs.reserve import MEMORY_READINGS, STATIC
from roofline.specs.written import to_spec
from roofline.techniques.unsupported import unsupported
from roofline.timing.intervals import Estimate
from roofline.whatif.metrics import AT, find_metric
from roofline.whatif.notes import notes, service_note

ANALYSIS_SCHEMA = "roofline.analysis/1"


def analysis_document(analysis: Analysis, phases: tuple[str, ...] = ("prefill", "decode")) -> dict[str, Any]:
    """The JSON document of an analysis of a single workload."""
    generation, speculation = analysis.generation, analysis.scenario.settings.speculation
    served = service_note(analysis)
    return {
        "schema": ANALYSIS_SCHEMA,
        "model": name_of(analysis.scenario),
        "hardware": hardware_name(analysis.scenario),
        "scenario": scenario_document(analysis),
        "parallelism": {
            **asdict(analysis.parallel),
            "devices": analysis.parallel.devices,
            "decode_devices": analysis.parallel.devices if analysis.scenario.settings.decode_hardware else 0,
        },
        "techniques": list(analysis.scenario.techniques),
        "phases": {
            name: _phase(phase, analysis.times_are_expected)
            for name in phases
            if (phase := getattr(analysis, name)) is not None
        },
        "memory": memory_document(analysis),
        "generation": {
            **picked(generation, "batch", "prompt", "generated"),
            "ttft_s": generation.ttft,
            "tpot_s": generation.tpot,
            "total_s": generation.total,
            "tokens_per_iteration": analysis.tokens_per_iteration,
            "acceptance_source": None if speculation is None else speculation.measured or "given",
            **rates_document(analysis),
            **_expected_times(analysis),
        },
        "energy": energy_document(analysis),
        "cost": cost_document(analysis),
        "unsupported": list(map(str, unsupported(analysis.scenario))),
        "notes": [*notes(analysis), *([] if served is None else [served])],
    }


def scenario_header(scenario: Scenario) -> dict[str, Any]:
    """What a document is about: model, hardware, its devices, and engine."""
    hardware, count = hardware_name(scenario), scenario.settings.parallel.devices
    return {"model": name_of(scenario), "hardware": hardware, "devices": count, "engine": scenario.profile.label}


def subject(document: Mapping[str, Any]) -> str:
    """The model of such a document and its devices, such as llama-3.1-8b on 2 x h100-sxm."""
    count = document["devices"]
    several = f"{count} x " if count > 1 and "+" not in document["hardware"] else ""
    return f"{document['model']} on {several}{document['hardware']}"


def memory_document(analysis: Analysis) -> dict[str, Any]:
    """Memory per device by part, what the engine may use (`budget`) of its capacity, and headroom, in bytes.

    `fits_with`: the options that make the scenario fit where it does not.
    """
    parts = ("weights", "kv_cache", "state", "activation_peak", "runtime", "total", "budget", "capacity", "headroom")
    sizes = {f"{name}_bytes": number(getattr(analysis.memory, name)) for name in parts}
    reading = STATIC if memory_is_static(analysis.scenario) else MEMORY_READINGS[0]
    document = {"reading": reading, **sizes, "fits": bool(analysis.memory.fits)}
    if analysis.scenario.asked and not document["fits"]:
        from roofline.advisor.fitting import what_fits

        document["fits_with"] = list(map(str, what_fits(analysis.scenario)))
    return document


def rates_document(analysis: Analysis) -> dict[str, Any]:
    """Generated tokens/s (None for an encoder) and sequences/s, with their intervals."""
    return {key: value for name in ("tokens_per_s", "sequences_per_s") for key, value in _read(analysis, name).items()}


def energy_document(analysis: Analysis) -> dict[str, Any]:
    """Joules per token and watts per device, at the bound and at expected times; None if the spec lacks figures."""
    keys = {
        "energy": "j_per_token",
        "energy.prefill": "prefill_j_per_prompt_token",
        "energy.decode": "decode_j_per_token",
        "power": "power_w",
        **({} if analysis.scenario.carbon is None else {"carbon": "g_co2e_per_million_tokens"}),
        "energy.tdp": "tdp_j_per_token",
        "energy.tdp.prefill": "tdp_prefill_j_per_prompt_token",
    }
    return {key: value for name, own in keys.items() for key, value in _read(analysis, name, own).items()}


def cost_document(analysis: Analysis) -> dict[str, Any] | None:
    """USD per million tokens and the device prices; None if a price is unknown."""
    if cost.hourly_rent(analysis) is None:
        return None
    given, pools = analysis.scenario.price, cost.billed_pools(analysis)
    return {
        "prices": [
            {
                "hardware": pool.name,
                "usd_per_hour": cost.price(pool, given),
                "date": None if given is not None or pool.price is None else pool.price.date.isoformat(),
                "source": None if given is not None else pool.sources.get("price.rent"),
            }
            for pool in pools
        ],
        "devices": analysis.parallel.devices * len(pools),
        **_read(analysis, "cost", "usd_per_million_tokens"),
        **_read(analysis, "cost.processed", "usd_per_million_processed_tokens"),
    }


def _read(analysis: Analysis, name: str, key: str | None = None) -> dict[str, Any]:
    """A metric at the bound, and its interval at expected times, under `key` (by default its name)."""
    key = key or name
    readings = (*AT.values(), "low", "high") if analysis.times_are_expected else ("bound",)
    found = {reading: float(find_metric(f"{name}.{reading}", "bound").figure(analysis)) for reading in readings}
    plain = {reading: None if math.isnan(value) else value for reading, value in found.items()}
    if not analysis.times_are_expected:
        return {key: plain["bound"]}
    expected = {reading: plain[reading] for reading in ("low", "mid", "high")}
    return {key: plain["bound"], f"expected_{key}": None if expected["mid"] is None else expected}


def _expected_times(analysis: Analysis) -> dict[str, Any]:
    """Expected times of a generation, if there are any; `expected_time_s` is the total."""
    if not analysis.times_are_expected:
        return {}
    expected = analysis.expected
    phase = analysis.prefill if analysis.decode is None else analysis.decode
    return {
        "expected_time_s": interval(expected.total),
        "expected_ttft_s": interval(expected.ttft),
        "expected_tpot_s": None if expected.tpot is None else interval(expected.tpot),
        **picked(phase.basis, "basis", "source"),
    }


def interval(estimate: Estimate) -> dict[str, float]:
    """An expected value with its 80% interval."""
    return picked(estimate, "low", "mid", "high")


def scenario_document(analysis: Analysis) -> dict[str, Any]:
    """The scenario with all defaults filled in; None for settings that have no effect on the model (see `notes`)."""
    scenario, precision, generating = analysis.scenario, analysis.precision, generates(analysis)
    return {
        **picked(scenario, "batch", "prompt"),
        "generate": scenario.generate if generating else None,
        "context": scenario.decode_context if generating else None,
        **picked(scenario, "prefix", "images"),
        **({} if scenario.image_size is None else {"image_size": scenario.image_size}),
        "base": precision.base.name,
        "weights": precision.weights.name,
        "activations": precision.activations.name,
        "kv": precision.kv.name if caches(analysis) else None,
        "flash": ATTENTION in fused(analysis),
        "fusions": list(analysis.fusions),
        "convention": str(scenario.convention),
        "engine": scenario.profile.label,
        **({} if scenario.host is None else {"host": scenario.host}),
        **({} if scenario.network is None else {"network": scenario.network}),
        "beyond_max_context": analysis.beyond_max_context,
    }


def _phase(phase: Phase, expected: bool) -> dict[str, Any]:
    """One phase: totals, then figures per instance of every operator, with expected times if `expected`.

    Work (FLOPs, bytes) is that of one device, times are those of the whole phase: in a pipeline a device waits while
    others run. So times sum over `count` instances, and work over `count * busy`.
    """
    expectations: tuple[Expectation | None, ...] = phase.expected_ops if expected else (None,) * len(phase.ops)
    times = {}
    if expected:
        times = {
            "expected_time_s": interval(phase.expected),
            "host_time_s": phase.idle,
            **picked(phase.basis, "basis", "source"),
            "share_outside_fitted_range": phase.basis.outside,
        }
    return {
        "flops": number(phase.flops),
        "bytes": number(phase.bytes),
        "link_bytes": number(phase.link_bytes),
        "bound": str(phase.bound),
        "bound_time_s": phase.bound_time,
        **times,
        "ops": [_op(phase, op, expectation) for op, expectation in zip(phase.ops, expectations, strict=True)],
    }


WORK = (
    *("flops", "bytes", "link_bytes", "weight_bytes", "activation_bytes", "kv_bytes", "state_bytes", "upcast_flops"),
)
"""FLOPs and bytes of an operator: names of its figures and keys of its document."""


def _op(phase: Phase, op: OpFigures, expectation: Expectation | None) -> dict[str, Any]:
    """One operator: figures per instance, and how many instances a phase takes in a row.

    `busy` is the fraction of the instances that one device runs: below 1 for pipeline parallelism. `share` is that of
    all instances in the expected time of the phase, or in its bound time where none is expected.
    """
    expected, share = {}, op.share
    if expectation is not None:
        share = op.count * expectation.time.mid / phase.expected.mid
        calibrated = picked(expectation, "basis", "source")
        expected = {"expected_time_s": interval(expectation.time), **calibrated, "in_fitted_range": expectation.inside}
    return {
        **picked(op, "name", "kind", "section", "count", "busy", "arithmetic"),
        **{name: number(getattr(op, name)) for name in WORK},
        **picked(op, "intensity", "ridge"),
        "attainable_flops_per_s": op.attainable,
        "bound": str(op.bound),
        "bound_time_s": op.bound_time,
        **expected,
        "share": share,
        "tensors": [
            {**finite(picked(tensor, "name", "role", "shape", "format")), "bytes": number(tensor.bytes)}
            for tensor in op.tensors
        ],
    }


def number(value: float) -> float:
    """`value` as an integer if it is whole."""
    return int(value) if float(value).is_integer() else float(value)


def model_document(model: Model) -> dict[str, Any]:
    """A model's spec with its parameter counts and cache sizes, and its files: bytes by format, bits with scales."""
    formats, stored = parse_precision("bf16"), {}
    if (files := model.stored) is not None:
        held = {"/".join(names): share for names, share in files.components.items() if share.elements}
        stored["checkpoint"] = {
            "files": files.files,
            "file_bytes": files.size,
            "header_bytes": files.header,
            "tensor_bytes": {format: share.bytes for format, share in files.formats.items()},
            "bits": {name: round(8 * share.bytes / share.elements, 4) for name, share in held.items()},
        }
    return {
        **to_spec(model),
        "title": model.title,
        "published_parameters": model.parameters,
        "parameters": parameters(model),
        "active_parameters": active_parameters(model),
        "kv_bytes_per_token": number(kv_bytes_per_token(model, formats)),
        "state_bytes_per_sequence": number(state_bytes_per_sequence(model, formats)),
        **stored,
    }


def hardware_document(hardware: Hardware) -> dict[str, Any]:
    """A hardware spec in base units (bytes, byte/s, FLOP/s, W)."""
    return {key: value for key, value in _plain(hardware).items() if value != {}}


def _plain(value: Any) -> Any:
    """A part of a spec for JSON, without what a struct does not have; whole numbers are integers."""
    if isinstance(value, Struct):
        entries = {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
        return {key: entry for key, entry in entries.items() if entry is not None}
    if isinstance(value, Mapping):
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, tuple):
        return [_plain(entry) for entry in value]
    if isinstance(value, date):
        return value.isoformat()
    return number(value) if isinstance(value, float) else value


OP_COLUMNS = (
    *("name", "kind", "section", "count", "busy", "arithmetic", "flops", "bytes", "link_bytes", "weight_bytes"),
    *("activation_bytes", "kv_bytes", "state_bytes", "upcast_flops", "intensity", "ridge"),
    *("attainable_flops_per_s", "bound", "bound_time_s", "share"),
)
ENDS = ("low", "mid", "high")


def _op_rows(document: Document) -> list[dict[str, Any]]:
    """The operators of all phases, without their tensors."""
    return [
        {"phase": name, **{key: value for key, value in op.items() if key != "tensors"}}
        for name, phase in document["phases"].items()
        for op in phase["ops"]
    ]


def as_csv(document: Document) -> str:
    """The operators of every phase of an analysis as CSV, one row each, in base units."""
    bound = {"expected_time_s": dict.fromkeys(ENDS, ""), "basis": ""}
    rows = [{**bound, **op, "model": document["model"], "hardware": document["hardware"]} for op in _op_rows(document)]
    times = {f"expected_time_{end}_s": f"expected_time_s.{end}" for end in ENDS}
    return csv_of(
        {**{key: key for key in ("model", "hardware", "phase", *OP_COLUMNS)}, **times, "basis": "basis"}, rows
    )


def as_markdown(document: Document) -> str:
    """The analysis as Markdown: a summary, then one table per phase."""
    parts = [f"# {escape(document['model'])} on {escape(document['hardware'])}", ""]
    parts += [f"- {escape(line)}" for line in summary.summary_lines(document)] + [""]
    for name, phase in document["phases"].items():
        parts += [f"## {name.capitalize()}", "", escape(summary.phase_line(phase)), ""]
        header, rows = summary.op_rows(phase)
        parts += [*markdown_table(header, rows), ""]
    return "\n".join(parts)


def parts(document: Document, ops: bool = True, verbose: bool = True) -> list[Any]:
    """The output of `roofline analyze`: a summary, then a line or a table of operators per phase.

    `verbose` adds where the figures come from.
    """
    title = Text(printable(f"{document['model']} on {document['hardware']}"), style="bold")
    lines = summary.summary_lines(document, verbose)
    drawn: list[Any] = [title, *(Text(printable(line)) for line in lines)]
    if not ops:
        drawn += [Text(f"{name}: {_limit(phase)}") for name, phase in document["phases"].items()]
        return [*drawn, Text("--ops lists the operators", "dim")]
    drawn.append(Text())
    for name, phase in document["phases"].items():
        header, rows = summary.op_rows(phase)
        drawn.append(table(header, rows, title=f"{name.capitalize()}: {summary.phase_line(phase)}"))
    drawn.append(Text("FLOP, bytes and times per instance; share of the phase's time for all instances.", "dim"))
    return drawn


def _analysis_blocks(document: Document) -> Iterator[Block]:
    """A summary, then a table of the operators of each phase."""
    yield Block(f"{document['model']} on {document['hardware']}", summary.summary_lines(document))
    for name, phase in document["phases"].items():
        yield Block(name.capitalize(), summary.phase_line(phase).split("\n"), *summary.op_rows(phase))


def _analysis_lines(document: Document) -> Iterator[str]:
    devices = document["parallelism"]["devices"]
    where = document["hardware"] if devices == 1 else f"{devices} {document['hardware']}"
    yield f"{document['model']} on {where}, {document['scenario']['engine']}"
    yield summary.workload_line(document)
    memory, *fitting = summary.memory_lines(document["memory"])
    yield memory
    yield summary.times_lines(document)[:2][-1]  # expected, or else at the bound
    yield "; ".join(f"{name}: {_limit(phase)}" for name, phase in document["phases"].items())
    yield from fitting
    yield from (f"note: {note}" for note in document["notes"])


def _limit(phase: Document) -> str:
    """What limits a phase, and its longest operator."""
    longest = max(phase["ops"], key=lambda op: op["share"])
    return f"mostly {phase['bound']}-bound, {longest['name']} takes {longest['share']:.0%}"


ANALYSIS = Face(analysis_document, _analysis_blocks, _op_rows, _analysis_lines)
