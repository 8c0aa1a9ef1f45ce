"""Anchors: published figures of whole models, each with its source and conditions, and their predictions.

A file of `validate/anchors/` holds the figures of one source; the head of the file has what they share (source,
conditions). A prediction and its bound are in the unit of the published figure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from msgspec import Meta, Struct

from roofline import Scenario
from roofline.bound.memory import kv_bytes_per_token
from roofline.core.documents import bundled_path, read_mapping
from roofline.core.errors import RooflineError, SpecError, UnknownNameError, quote
from roofline.core.limits import MAX_CONCURRENCY
from roofline.core.units import Dimension, parse_quantity
from roofline.scenario.analysis import Analysis, analyze
from roofline.scenario.fields import DEFAULT_PROMPT
from roofline.scenario.kv_capacity import kv_capacity
from roofline.scenario.memory import memory_reserve
from roofline.scenario.options import OPTIONS, read_options
from roofline.serving.curve import serve
from roofline.specs.library import unknown_key
from roofline.specs.precision import Precision
from roofline.specs.records import record
from roofline.timing.intervals import Estimate
from roofline.validate.score.errors import Predicted
from roofline.validate.tables.text import is_plausible

FOLDER = bundled_path("validate/anchors")

TIME, MEMORY, RATE, TOKENS = "time", "memory", "rate", "tokens"


class Metric(NamedTuple):
    """A metric: the kind of its unit, and its meaning."""

    kind: str
    meaning: str


METRICS: Mapping[str, Metric] = {
    "ttft": Metric(TIME, "time to first token: the prefill of the whole batch"),
    "tpot": Metric(TIME, "time per output token: the mean decode step, or the one at `context`"),
    "total": Metric(TIME, "the whole batch from prompt to last token"),
    "tokens_per_s": Metric(RATE, "generated tokens of all sequences over the total time"),
    "decode_tokens_per_s": Metric(RATE, "sequences over the time per output token"),
    "prefill_tokens_per_s": Metric(RATE, "prompt tokens of all sequences, cached ones left out, over the prefill"),
    "weight_bytes": Metric(MEMORY, "weights on one device, or in a checkpoint file"),
    "kv_bytes_per_token": Metric(MEMORY, "KV cache of one token of one sequence"),
    "kv_cache_bytes": Metric(MEMORY, "KV cache of the batch at its largest, on one device"),
    "memory_bytes": Metric(MEMORY, "peak of weights, KV cache, states and activations, on one device"),
    "kv_capacity_tokens": Metric(TOKENS, "tokens whose KV cache fits beside weights and activations"),
}
"""All metrics of anchors."""

TIMED = (TIME, RATE)
"""Kinds of metrics that have a bound and an interval."""

PER: Mapping[str, Callable[[Scenario], int]] = {
    "": lambda _: 1,
    "/device": lambda scenario: scenario.settings.parallel.devices,
    "/node": lambda scenario: scenario.settings.parallel.on(scenario.hardware).nodes or 1,
    "/sequence": lambda scenario: int(scenario.batch),
}
"""Divisors of published rates, by the suffix of the unit."""

Text = Annotated[str, Meta(min_length=1, max_length=2000)]
Slug = re.compile(r"[a-z0-9][a-z0-9._-]{1,79}")


DEFAULTS: Mapping[str, Any] = {"batch": 1, "prompt": DEFAULT_PROMPT, "generate": 1, "prefix": 0}
"""Conditions of an anchor that states none."""

RENAMED = {"techniques": "with", "utilisation": "gpu_memory_utilization"}
"""Conditions that are called otherwise than the option of `roofline analyze`."""


USERS = "concurrency"
"""The condition of a figure that clients of a server measured: the requests in flight, as of `roofline serve`."""


class _Entry(Struct, frozen=True):
    id: Text
    metric: Text
    value: Text
    conditions: dict[str, Any]
    source: Text
    note: Text | None = None
    faster_than_bound: Text | None = None


class _File(Struct, frozen=True):
    title: Text
    source: Text
    anchors: Annotated[list[dict[str, Any]], Meta(min_length=1)]
    note: Text | None = None
    conditions: dict[str, Any] | None = None


class Value(Struct, frozen=True):
    """A published number in its unit; `scale` converts to base units, `per` is the suffix of a divided rate."""

    number: float
    unit: str
    scale: float
    per: str


class Anchor(Struct, frozen=True, dict=True):
    """A published figure.

    `conditions` are options of a scenario, as of `roofline analyze`; with `users` it was measured on a server, by
    clients with so many requests in flight. `group` is the title of its source, `where` its
    file. `faster_than_bound` explains a measurement that is faster than the bound; without it, such a measurement is an
    error in the anchor, the spec or the simulator.
    """

    id: str
    group: str
    metric: str
    value: Value
    source: str
    conditions: Mapping[str, Any]
    where: str
    note: str | None
    faster_than_bound: str | None
    users: int | None = None

    @cached_property
    def options(self) -> Mapping[str, Any]:
        """The values of the conditions and of `DEFAULTS`; raises RooflineError for an invalid one."""
        return {**DEFAULTS, **read_options(self.conditions)}


class Figure(Struct, frozen=True):
    """A figure and its prediction, both in `unit`; `rate`: more is faster.

    A size is `exact`: its prediction has neither bound nor interval. A load has no bound (`bounded`): in the committed
    file the end of the interval on its side stands for it.
    """

    id: str
    unit: str
    published: float
    prediction: Predicted
    rate: bool = False
    exact: bool = False
    bounded: bool = True
    group: str = ""
    source: str = ""
    metric: str = ""
    conditions: str = ""
    note: str | None = None
    faster_than_bound: str | None = None

    def error(self, predicted: float) -> float:
        """The relative error of a prediction; of a rate, that of the corresponding time.

        A negative error always means that the prediction is too fast (or too small).
        """
        return (self.published / predicted if self.rate else predicted / self.published) - 1

    @property
    def row(self) -> dict[str, Any]:
        """The figure in the document of a check."""
        bound, low, mid, high = self.prediction
        stated = ("id", "group", "source", "metric", "conditions", "unit", "published")
        return {
            **{name: getattr(self, name) for name in stated},
            "bound": bound if self.bounded else None,
            "low": low,
            "mid": mid,
            "high": high,
            "error": self.error(mid),
            "bound_error": self.error(bound) if self.bounded and not self.exact else None,
            "inside": low <= self.published <= high if low < high and not self.exact else None,
            **{name: getattr(self, name) for name in ("note", "faster_than_bound")},
        }


# --- reading ----------------------------------------------------------------------------------------------------------


def load_anchors(path: Path = FOLDER) -> list[Anchor]:
    """The anchors of a YAML file, or of every one in a folder, ordered by file.

    Raises SpecError naming the file and the key, and RooflineError for a folder without files.
    """
    paths = [path] if path.is_file() else sorted(path.glob("*.yaml"))
    if not paths:
        raise RooflineError(f"{quote(str(path), 200)} holds no anchors (*.yaml)")
    anchors: dict[str, Anchor] = {}
    for path in paths:
        for anchor in read_anchors(path):
            if anchor.id in anchors:
                first = anchors[anchor.id].where
                raise SpecError(str(path), f"the anchor {quote(anchor.id)} is already in {quote(first, 200)}")
            anchors[anchor.id] = anchor
    return list(anchors.values())


def read_anchors(path: Path) -> list[Anchor]:
    """The anchors of one file."""
    where = str(path)
    file = record(_File, read_mapping(path), where)
    anchors = [_anchor(file, entry, index, where) for index, entry in enumerate(file.anchors)]
    ids = [anchor.id for anchor in anchors]
    twice = next((name for name in ids if ids.count(name) > 1), None)
    if twice is not None:
        raise SpecError(where, f"two anchors are called {quote(twice)}")
    return anchors


def _anchor(file: _File, entry: Mapping[str, Any], index: int, where: str) -> Anchor:
    """One entry of a file, completed by the head of the file."""
    named = entry.get("id")
    label = named if isinstance(named, str) and Slug.fullmatch(named) else str(index)
    own = entry.get("conditions", {})
    if not isinstance(own, dict):
        raise SpecError(where, f"'anchors.{label}.conditions': must be a mapping of keys to values")
    content = {"source": file.source, **entry, "conditions": {**(file.conditions or {}), **own}}
    read = record(_Entry, content, where, f"anchors.{label}")
    if not Slug.fullmatch(read.id):
        raise SpecError(where, f"'anchors.{label}.id': {quote(read.id)} is not of small letters, digits, '.' and '-'")
    conditions = {RENAMED.get(name, name): value for name, value in read.conditions.items()}
    users = conditions.pop(USERS, None)
    if users is not None and not (type(users) is int and 1 <= users <= MAX_CONCURRENCY):
        expected = f"an integer from 1 to {MAX_CONCURRENCY}"
        raise SpecError(where, f"'anchors.{label}.conditions.{USERS}': must be {expected}, got {quote(users)}")
    if unknown := sorted(conditions.keys() - OPTIONS.keys()):
        raise SpecError(where, unknown_key(unknown[0], (*OPTIONS, *RENAMED, USERS), f"anchors.{label}.conditions"))
    try:
        metric = find_metric(read.metric)
        value = parse_value(read.value, metric)
    except RooflineError as error:
        raise SpecError(where, f"the anchor {quote(read.id)}: {error}") from None
    note = " ".join(filter(None, (file.note, read.note))) or None
    return Anchor(
        read.id, file.title, read.metric, value, read.source, conditions, where, note, read.faster_than_bound, users
    )


def find_metric(name: str) -> Metric:
    """The metric called `name`; raises UnknownNameError with the nearest one."""
    if name not in METRICS:
        raise UnknownNameError("metric", name, METRICS)
    return METRICS[name]


_VALUE = re.compile(r"\s*(\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)\s+(\S+)\s*", re.ASCII)
_DIMENSIONS = {TIME: Dimension.TIME, MEMORY: Dimension.BYTES}
_EXAMPLES = {TIME: "'9.53 ms'", MEMORY: "'14.96 GiB'", RATE: "'104.9 tokens/s'", TOKENS: "'117616 tokens'"}


def parse_value(text: str, metric: Metric) -> Value:
    """A published figure such as `104.9 tokens/s`; raises RooflineError if its number or unit is invalid."""
    match = _VALUE.fullmatch(text[:100])
    if match is None or not is_plausible(float(match[1])):
        raise RooflineError(f"cannot read {quote(text)} as a figure such as {_EXAMPLES[metric.kind]}")
    number, unit = float(match[1]), match[2]
    if metric.kind in _DIMENSIONS:
        return Value(number, unit, parse_quantity(f"1 {unit}", _DIMENSIONS[metric.kind]).value, "")
    stem = "tokens/s" if metric.kind == RATE else "tokens"
    per = unit.removeprefix(stem)
    if not unit.startswith(stem) or per not in PER or (per and metric.kind == TOKENS):
        known = ", ".join(f"{stem}{per}" for per in PER) if metric.kind == RATE else stem
        raise RooflineError(f"{quote(text)} has the unit {quote(unit)}; known: {known}")
    return Value(number, unit, 1.0, per)


# --- predicting -------------------------------------------------------------------------------------------------------


def scenario_of(anchor: Anchor) -> Scenario:
    """The scenario of an anchor's conditions; raises SpecError naming file and anchor if they are invalid."""
    try:
        return Scenario(**anchor.options)
    except RooflineError as error:
        raise SpecError(anchor.where, f"the anchor {quote(anchor.id)}: {error}") from None


def predict(anchor: Anchor) -> Predicted:
    """The prediction of an anchor, in the unit of the published figure.

    Sizes in bytes and tokens are exact: their four figures are equal. Raises SpecError naming the file and anchor.
    """
    scenario = scenario_of(anchor)
    try:
        figures = _figures(anchor, scenario)
    except RooflineError as error:
        raise SpecError(anchor.where, f"the anchor {quote(anchor.id)}: {error}") from None
    scale = anchor.value.scale * PER[anchor.value.per](scenario)
    return Predicted(*(figure / scale for figure in figures))


def figure_of(anchor: Anchor) -> Figure:
    """The anchor beside its prediction; raises SpecError naming file and anchor."""
    kind = METRICS[anchor.metric].kind
    return Figure(
        anchor.id,
        anchor.value.unit,
        anchor.value.number,
        predict(anchor),
        rate=kind == RATE,
        exact=kind not in TIMED,
        group=anchor.group,
        source=anchor.source,
        metric=anchor.metric,
        conditions=conditions_text(anchor),
        note=anchor.note,
        faster_than_bound=anchor.faster_than_bound,
    )


def _figures(anchor: Anchor, scenario: Scenario) -> Predicted:
    """The prediction in base units, for all devices and sequences together."""
    answer = analyze(scenario)
    kind = METRICS[anchor.metric].kind
    if kind not in TIMED:
        exact = _stored(anchor, answer)
        return Predicted(exact, exact, exact, exact)
    phase, tokens = _timed(anchor, scenario)
    seconds = _seconds(answer, phase) if anchor.users is None else _served(answer, phase, anchor.users)
    if seconds is None:
        raise RooflineError(f"{anchor.metric} needs 'generate' above 1")
    if kind == TIME:
        return seconds
    return Predicted(tokens / seconds.bound, tokens / seconds.high, tokens / seconds.mid, tokens / seconds.low)


def _timed(anchor: Anchor, scenario: Scenario) -> tuple[str, float]:
    """The time that a metric is computed from, and the tokens that a rate counts in it."""
    given, useful = anchor.options, scenario.settings.useful
    decode = "tpot" if given.get("context") is None else "decode"
    return {
        "ttft": ("ttft", 0.0),
        "tpot": (decode, 0.0),
        "total": ("total", 0.0),
        "tokens_per_s": ("total", given["batch"] * given["generate"] * useful),
        "decode_tokens_per_s": (decode, given["batch"] * useful),
        "prefill_tokens_per_s": ("ttft", float(given["batch"] * given["prompt"])),
    }[anchor.metric]


def _seconds(answer: Analysis, which: str) -> Predicted | None:
    """Seconds of ttft, tpot, total or a token of the decode step; None if there is no token after the first."""
    expected: Estimate | None
    if which == "decode":
        assert answer.decode is not None
        share = 1 / answer.tokens_per_iteration
        bound, expected = float(answer.decode.bound_time) * share, answer.decode.expected * share
    else:
        bound, expected = getattr(answer.generation, which), getattr(answer.expected, which)
    if bound is None or expected is None:
        return None
    return Predicted(bound, *(float(part) for part in expected))


def _served(answer: Analysis, which: str, users: int) -> Predicted | None:
    """Seconds of ttft or tpot of a server, as its clients see them; the bound is that of one request alone."""
    if which not in ("ttft", "tpot"):
        raise RooflineError(f"the condition 'concurrency' goes with ttft and tpot, not with {which}")
    bound = getattr(answer.generation, which)
    found = getattr(serve(answer.scenario.without("batch"), concurrency=users).outcomes[0], which).mean
    return None if bound is None else Predicted(float(bound), *found.at_least(float(bound)))


PARTS = {"weight_bytes": "weights", "kv_cache_bytes": "kv_cache", "memory_bytes": "total"}
"""The parts of a device's memory, by metric."""


def _stored(anchor: Anchor, answer: Analysis) -> float:
    """A size in bytes, or a capacity in tokens with the engine's reserve, at `utilisation` of the device."""
    scenario, precision = answer.scenario, answer.precision
    if anchor.metric in PARTS:
        return float(getattr(answer.memory, PARTS[anchor.metric]))
    if anchor.metric == "kv_bytes_per_token":
        return kv_bytes_per_token(scenario.model, precision)
    if anchor.options.get("gpu_memory_utilization") is None:
        raise RooflineError("kv_capacity_tokens needs the condition 'utilisation'")
    found = kv_capacity(scenario.model, scenario.hardware, precision, answer.parallel, memory_reserve(scenario))
    return float(found.tokens or 0)


def conditions_text(anchor: Anchor) -> str:
    """The conditions of an anchor in one line."""
    given, scenario = anchor.options, scenario_of(anchor)
    devices, context = scenario.settings.parallel.devices, given.get("context")
    names = ("tp", "pp", "ep", "dp", "sp")
    degrees = " ".join(f"{name.upper()}{given[name]}" for name in names if given.get(name, 1) > 1)
    place = f"{devices} x {given['hw']} ({degrees})" if devices > 1 else given["hw"]
    parts = [f"{given['model']} on {place}", precision_text(scenario.run_precision)]
    if METRICS[anchor.metric].kind in TIMED:
        parts.append(f"batch {given['batch']}" if anchor.users is None else f"{anchor.users} in flight")
        parts += [f"{given['prompt']} in" if context is None else f"context {context}"]
        parts += [f"{given['prefix']} cached"] if given["prefix"] else []
        parts += [f"{given['generate']} out"] if given["generate"] > 1 and context is None else []
        parts += [given["engine"]] if given.get("engine") else []
    return ", ".join([*parts, *given.get("with", ())])


def precision_text(precision: Precision) -> str:
    """The formats of a scenario as text: 'bf16', or 'fp16; weights int8; activations, KV fp8'."""
    named = {"weights": precision.weights.name, "activations": precision.activations.name, "KV": precision.kv.name}
    formats = dict.fromkeys(name for name in named.values() if name != precision.base.name)
    alike = (", ".join(part for part, own in named.items() if own == name) + f" {name}" for name in formats)
    return "; ".join([precision.base.name, *alike])
