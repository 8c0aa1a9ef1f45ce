"""One result of a benchmark, and its rows of whole-model figures.

What a file lacks is given by `Given`, the options of `roofline validate import`, which take precedence over the file.
Nothing else is assumed: a result whose model, hardware, engine, lengths or load are unknown is an error that names the
missing option.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from msgspec import Struct

from roofline.core.errors import RooflineError, SpecError, quote
from roofline.specs.hardware import load_devices
from roofline.specs.modelspec import load_model
from roofline.validate.tables.names import AS_RELEASED, find_engine, find_model
from roofline.validate.tables.published import COLUMNS, METRICS

PREFILL = ("ttft", "prefill_throughput")
"""Metrics that need no output length."""


class Result(Struct, frozen=True):
    """A result as its file states it.

    Empty texts and None are unknown. `batch` is the sequences of a static batch, or the text of a load
    (`roofline.validate.tables.serving`). `prompt` and `output` are mean tokens. `figures` are milliseconds or tokens/s
    by metric of `METRICS`; unknown ones (None) have no row. `requests_per_s` stands for output tokens/s where those are
    not measured. `left_out` says why a result has no rows.
    """

    tool: str
    figures: Mapping[str, float | None]
    model: str = ""
    engine: str = ""
    hardware: str = ""
    gpus: int | None = None
    weights: str = ""
    kv: str = ""
    batch: str = ""
    prompt: float | None = None
    output: float | None = None
    requests_per_s: float | None = None
    left_out: str = ""


class Given(Struct, frozen=True):
    """What the user states beside a file; it takes precedence over the file. `hw` may have a count, as in 8xH200."""

    model: str | None = None
    hw: str | None = None
    engine: str | None = None
    weights: str | None = None
    kv: str | None = None
    batch: str | None = None
    prompt: float | None = None
    generate: float | None = None


def rows_of(result: Result, given: Given, where: str) -> Iterator[dict[str, object]]:
    """The rows of a result, by column; raises SpecError that names the file and the option for what is unknown."""
    hardware, gpus = _hardware(result, given, where)
    shared: dict[str, object] = {
        "model": _model(result, given, where),
        "hardware": hardware,
        "gpus": gpus,
        "engine": _engine(result, given, where),
        "weights": given.weights or result.weights or AS_RELEASED,
        "kv": given.kv or result.kv,
        "batch": _stated(given.batch or result.batch, "batch size or the concurrency", "batch", where),
        "source": f"{result.tool}: {where.rsplit('/', 1)[-1]}",
    }
    prompt, output = given.prompt or result.prompt, given.generate or result.output
    figures = {metric: value for metric, value in result.figures.items() if value is not None}
    if result.requests_per_s and "output_throughput_total" not in figures:
        _stated(output, "output length", "generate", where)
        figures["output_throughput_total"] = result.requests_per_s * (output or 0)
    if not figures:
        raise SpecError(where, f"has no time and no throughput that {result.tool} measured")
    for metric, value in figures.items():
        if metric != "decode_throughput":
            _stated(prompt, "prompt length", "prompt", where)
        if metric not in PREFILL:
            _stated(output, "output length", "generate", where)
        lengths = {"input_len": f"{prompt or 0:.6g}", "output_len": f"{output:.6g}" if output else ""}
        unit = "tok/s" if METRICS[metric].counted else "ms"
        row = {**shared, **lengths, "metric": metric, "value": f"{value:.6g}", "unit": unit}
        yield {name: row[name] for name in COLUMNS}


def _stated(value: object, what: str, option: str, where: str) -> object:
    if not value:
        raise SpecError(where, f"does not state the {what}", options=[option])
    return value


def _model(result: Result, given: Given, where: str) -> str:
    if given.model is not None:
        return load_model(given.model).name
    named = str(_stated(result.model, "model", "model", where))
    try:
        return find_model(re.sub(r"(\.(ya?ml|json|gguf))?/?$", "", named)).name
    except RooflineError:
        raise SpecError(where, f"names the model {quote(named)}, which is not bundled", options=["model"]) from None


def _hardware(result: Result, given: Given, where: str) -> tuple[str, int]:
    if given.hw is not None:
        hardware, devices = load_devices(given.hw)
        return hardware.name, devices if devices > 1 else result.gpus or 1
    named = str(_stated(result.hardware, "hardware", "hw", where))
    try:
        hardware, devices = load_devices(named.replace("/", " "))
    except RooflineError:
        raise SpecError(where, f"names the hardware {quote(named)}, which is not bundled", options=["hw"]) from None
    return hardware.name, result.gpus or devices


def _engine(result: Result, given: Given, where: str) -> str:
    if given.engine is not None:
        find_engine(given.engine)
        return given.engine
    return str(_stated(result.engine, "engine, such as 'vLLM 0.24.0'", "engine", where))
