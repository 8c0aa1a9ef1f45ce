"""Studies: the axes of a sweep, its fixed options, its metrics and a selection of rows.

A study can be a YAML file:

    model: llama-3.1-8b
    generate: 256
    over:
      hw: [h100-sxm, mi300x]
      batch: 1:256:log16
    metrics: [ttft, tokens_per_s_per_gpu]
    where: fits and ttft < 500ms
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

import msgspec.json
import numpy as np
from msgspec import Struct, field

from roofline.core.checked import expect
from roofline.core.documents import read_mapping
from roofline.core.errors import RooflineError, SpecError, UnknownNameError, quote, suggest
from roofline.core.expressions import Expression, Type, parse_condition
from roofline.core.options import Kind
from roofline.scenario.options import NEEDED, OPTIONS, SPELLINGS, by_name, missing, read_options
from roofline.scenario.question import OBJECTS, Question
from roofline.specs.engine import load_engine
from roofline.specs.hardware import load_mixed
from roofline.specs.host import load_host
from roofline.specs.modelspec import load_model
from roofline.specs.network import load_fabric
from roofline.timing.chains import FileFits, load_calibration
from roofline.whatif.axes import Axis, assigned, parse_axes
from roofline.whatif.metrics import AT, NAMES, check_needs, default_metrics, expand, find_metric
from roofline.whatif.selection import Selection

INVALID = ("drop", "keep")
"""Treatment of combinations that cannot run: only counted, or kept as rows with an error."""

ERROR = "error"
"""The column of error messages, if invalid combinations are kept."""


class StudyQuestion(Struct, frozen=True):
    """A study without its points, which is pickled for worker processes.

    `axes` are the types of the axes, `outputs` the metrics shown, `figures` all metrics to compute. `sources` are
    digests of the specs used, by kind and name. `objects` are the values of loop axes that are no text, by name and
    label.
    """

    fixed: Mapping[str, Any]
    axes: Mapping[str, Type]
    outputs: tuple[str, ...]
    figures: tuple[str, ...]
    at: str
    where: str | None
    selection: Selection
    keep: bool
    sources: Mapping[tuple[str, str], str] = field(default_factory=dict)
    objects: Mapping[tuple[str, str], Any] = field(default_factory=dict)

    @property
    def condition(self) -> Expression | None:
        return None if self.where is None else parse_condition(self.where, _types(self.axes, self.at), TIMES)

    @property
    def columns(self) -> dict[str, Type]:
        """The type of each column: the axes, the metrics, and the error."""
        metrics = {name: find_metric(name, self.at).type for name in self.outputs}
        return {**self.axes, **metrics, **({ERROR: Type.TEXT} if self.keep else {})}


class Study(Struct, frozen=True, eq=False, dict=True):
    """Axes over a scenario, and the question for every point. `make_study` checks and builds one.

    Rows are in the order of nested loops: the loop axes outside, then the grid axes.
    """

    axes: tuple[Axis, ...]
    question: StudyQuestion

    @property
    def loops(self) -> tuple[Axis, ...]:
        """The axes with one analysis per value."""
        return tuple(axis for axis in self.axes if not axis.grid)

    @property
    def grid(self) -> tuple[Axis, ...]:
        """The axes that one analysis evaluates at once."""
        return tuple(axis for axis in self.axes if axis.grid)

    @property
    def points(self) -> int:
        """The number of points."""
        return math.prod(map(len, self.axes))

    @cached_property
    def key(self) -> str:
        """A digest of points, question, specs and version; studies with equal keys have equal results."""
        from roofline import __version__

        question = self.question
        selection = (question.selection.pareto, question.selection.top, question.selection.by)
        parts: list[Any] = [__version__, dict(question.fixed), question.outputs, question.at, question.where, selection]
        parts += [question.keep, sorted((*name, digest) for name, digest in question.sources.items())]
        parts += [[*name, _digest(value)] for name, value in sorted(question.objects.items())]
        digest = hashlib.sha256(json.dumps(parts, sort_keys=True, default=_digest).encode())
        for axis in self.axes:
            digest.update(f"\0{axis.name}\0".encode())
            digest.update(axis.values.tobytes() if axis.grid else json.dumps(list(axis.labels)).encode())
        return digest.hexdigest()[:32]


def make_study(
    over: Mapping[str, object],
    metrics: str | Iterable[str] | None = None,
    at: str = "expected",
    where: str | None = None,
    top: int | None = None,
    by: str | None = None,
    pareto: str | Iterable[str] = (),
    invalid: str = "drop",
    **fixed: Any,
) -> Study:
    """The study over the axes `over` (option to values, as text or a list), with the other options `fixed`.

    Options are texts, or values as a `Scenario` takes them: `**scenario.options` fixes those of a scenario.
    `metrics` are the columns, by default those of the models' tasks; times are expected or the bound (`at`). Rows that
    meet `where` are kept, of these the Pareto front of `pareto`, of these the `top` ones `by` a metric or a count.
    `invalid` combinations are counted ("drop") or kept ("keep") as rows with an error, whose metrics are NaN, False or
    empty, unless rows are selected.
    Raises RooflineError for invalid names, values or ranges.

    >>> from roofline.whatif import make_study
    >>> study = make_study({"batch": "1:256:log9", "hw": "h100-sxm,mi300x"}, model="llama-3.1-8b", prompt=1024)
    >>> study.points
    18
    """
    expect(over, Mapping, "over")
    axes = parse_axes(over)
    if not axes:
        raise RooflineError("a study needs an axis, like batch=1:256:log16", options=["over"])
    if at not in AT:
        raise UnknownNameError("reading of times", at, AT)
    if invalid not in INVALID:
        raise UnknownNameError("treatment of invalid combinations", invalid, INVALID)
    kinds = {axis.name: axis.option.kind for axis in axes}
    types = {name: Type.NUMBER if kind.ranged else Type.TEXT for name, kind in kinds.items()}
    varied = types | {name: Type.TRUTH for name, kind in kinds.items() if kind is Kind.SWITCH}
    settled = _read_fixed(fixed, varied)
    values = {name: (value,) for name, value in settled.items()} | {axis.name: axis.values for axis in axes}
    selection = _selection(_listed("pareto", pareto), top, by, varied, at)
    if metrics is None:
        metrics = default_metrics(map(load_model, values["model"]))
    ranked = [name for name in selection.names if name not in varied]
    outputs = tuple(dict.fromkeys((*expand(_listed("metrics", metrics), at), *ranked)))
    if not outputs:
        raise RooflineError("the study has no metrics")
    if where is not None and not isinstance(where, str):
        raise RooflineError(f"where takes a condition, such as 'fits and ttft < 500ms', got {quote(where)}")
    condition = None if where is None else parse_condition(where, _types(varied, at), TIMES)
    tested = condition.names if condition else frozenset()
    figures = (*outputs, *sorted(name for name in tested if name not in varied and name not in outputs))
    check_needs(figures, at, [load_mixed(value)[0][0] for value in values["hw"]], values)
    keep = invalid == "keep" and where is None and selection.everything
    named = [((axis.name, label), value) for axis in axes if not axis.grid for label, value in axis.pairs]
    objects = {place: value for place, value in named if isinstance(value, Struct)}
    question = StudyQuestion(settled, varied, outputs, figures, at, where, selection, keep, _sources(values), objects)
    return Study(axes, question)


def _read_fixed(fixed: Mapping[str, Any], varied: Mapping[str, Type]) -> dict[str, Any]:
    """The values of the fixed options; raises RooflineError for an axis, or without a model or hardware."""
    objects = {name: value for name, value in fixed.items() if name in OBJECTS or isinstance(value, Struct)}
    by_name(fixed, OBJECTS)
    read = read_options({name: value for name, value in fixed.items() if name not in objects})
    read |= by_name(objects, OBJECTS)
    for name, value in read.items():
        if isinstance(value, np.ndarray):
            raise RooflineError(f"{name} has several values: make it an axis")
        if name in varied:
            raise RooflineError(f"{name} is an axis and cannot be fixed as well")
    for needed in NEEDED:
        if needed not in {**read, **varied}:
            raise RooflineError(f"{missing(needed)}, or make it an axis", options=["hw"] if needed == "hw" else [])
    return read


def _listed(what: str, names: str | Iterable[str]) -> list[str]:
    """The names of a list, or of a comma-separated text. Raises RooflineError."""
    found = names.split(",") if isinstance(names, str) else list(names) if isinstance(names, Iterable) else [names]
    if not all(isinstance(name, str) for name in found):
        raise RooflineError(f"{what} takes names, such as ttft,memory, got {quote(names)}")
    return [name.strip() for name in found]


TIMES = frozenset(name for name in NAMES if find_metric(name, "bound").unit == "s")
"""Metrics that are compared with a time, such as 500ms."""


def _types(varied: Mapping[str, Type], at: str) -> dict[str, Type]:
    return {**{name: find_metric(name, at).type for name in NAMES}, **varied}


def _better(name: str, varied: Mapping[str, Type], at: str) -> int:
    """The better direction of a metric (1 up, -1 down), or of an axis: more work, fewer devices."""
    if name in varied:
        better = {Kind.GRID: 1, Kind.INTEGER: -1}.get(OPTIONS[name].kind, 0)
    elif name in NAMES:
        better = find_metric(name, at).better
    else:
        raise UnknownNameError("metric", name, (*NAMES, *varied))
    if not better:
        raise RooflineError(f"{name} has no better direction: rows cannot be ranked by it")
    return better


def _selection(
    pareto: Sequence[str], top: int | None, by: str | None, varied: Mapping[str, Type], at: str
) -> Selection:
    front = tuple((name, _better(name, varied, at)) for name in pareto)
    if len(set(pareto)) < len(pareto) or len(pareto) == 1:
        raise RooflineError("a Pareto front needs at least two different metrics, like ttft,tokens_per_s_per_gpu")
    if top is not None and (isinstance(top, bool) or not isinstance(top, int) or top < 1):
        raise RooflineError(f"top takes a whole number above 0, got {quote(top)}")
    if top is not None and by is None and not pareto:
        raise RooflineError("top needs a metric to rank by, like tokens_per_s_per_gpu", options=["by"])
    if by is not None and top is None and not pareto:
        raise RooflineError(f"ranking by {by} needs the number of rows, like 10", options=["top"])
    return Selection(front, top, None if by is None else (by, _better(by, varied, at)))


def _sources(values: Mapping[str, Iterable[Any]]) -> dict[tuple[str, str], str]:
    """Digests of the specs of a study, whose options have these values."""
    named = {name: [value for value in values.get(name, ()) if isinstance(value, str)] for name in _LOADERS}
    if not values.get("engine"):
        deciding = {name: values[name] for name in ("model", "hw", "quant", "weights", "with") if name in values}
        asked = (Question().with_(dict(zip(deciding, each, strict=True))) for each in product(*deciding.values()))
        named["engine"] = sorted({each.default_engine for each in asked})
    return {(kind, name): source_digest(kind, name) for kind, names in named.items() for name in names if name}


def _hardware(name: str) -> object:
    return [(hardware, load_calibration(hardware)) for hardware, _ in load_mixed(name)]


_LOADERS = {"model": load_model, "hw": _hardware, "engine": load_engine, "host": load_host, "network": load_fabric}


def source_digest(kind: str, name: str) -> str:
    """A digest of a model, of hardware with its calibration, or of an engine; raises RooflineError."""
    return _digest(_LOADERS[kind](name))


def _digest(value: object) -> str:
    return hashlib.sha256(msgspec.json.encode(value, enc_hook=_plain)).hexdigest()[:16]


def _plain(value: object) -> object:
    """A value that JSON has no form for, as one that it has."""
    if isinstance(value, FileFits):
        return value.digest
    return dict(value) if isinstance(value, Mapping) else repr(value)


def assemble(name: str | None, over: Iterable[str], fixed: Mapping[str, Any], query: Mapping[str, Any]) -> Study:
    """The study of a command line: a model or study file, axes as text, fixed options, and arguments of `make_study`.

    None stands for a missing value. Arguments override the study file. Raises RooflineError.
    """
    given = by_name({key: value for key, value in fixed.items() if value is not None})
    file: dict[str, Any] = {}
    if name is not None and is_study(Path(name)):
        file = read_study(Path(name))
    elif name is not None:
        if Path(name).suffix.lower() in (".yaml", ".yml"):
            load_model(name)  # raises for a file that is missing or unreadable before its axes are missed
        given["model"] = name
    axes, own = assigned(over, given), by_name(file.pop("over", {}))
    varied = {key: values for key, values in own.items() if key not in given} | axes
    if own and not varied:
        raise RooflineError(f"{' and '.join(own)} is the study's axis and cannot be fixed: give another axis with it")
    kept = {key: value for key, value in file.items() if key not in axes}
    query = {key: value for key, value in query.items() if value is not None}
    return make_study(varied, **{**kept, **given, **query})


QUERY_KEYS = ("over", "metrics", "at", "where", "top", "by", "pareto", "invalid")


def is_study(path: Path) -> bool:
    """Whether a file is a study: a YAML mapping with axes."""
    try:
        return path.suffix.lower() in (".yaml", ".yml") and path.is_file() and "over" in read_mapping(path)
    except OSError:
        return False


def read_study(path: Path) -> dict[str, Any]:
    """The arguments of `make_study` in a YAML file; raises SpecError for an invalid file."""
    content, where = read_mapping(path), str(path)
    if not isinstance(content.get("over"), Mapping) or not content["over"]:
        raise SpecError(where, "'over' must map options to values, like batch: 1:256:log16")
    arguments: dict[str, Any] = {}
    for key, value in content.items():
        name = key.strip().replace("-", "_")
        name = name if name in OPTIONS else SPELLINGS.get(name, name)  # -ep is another option than ep
        if name == "figure":  # for `roofline plot`
            continue
        if name not in OPTIONS and name not in QUERY_KEYS:
            raise SpecError(where, f"unknown key {quote(key)}{suggest(key, (*QUERY_KEYS, *OPTIONS))}")
        if name in arguments:
            raise SpecError(where, f"{key} and another name of {name} are given: give one of them")
        if name in ("metrics", "pareto"):
            names = value.split(",") if isinstance(value, str) else value
            if not isinstance(names, list) or not all(isinstance(entry, str) for entry in names):
                raise SpecError(where, f"{quote(name)} must be a list of names")
        elif name in ("at", "where", "by", "invalid") and not isinstance(value, (str, bool)):
            raise SpecError(where, f"{quote(name)} must be text")
        arguments[name] = str(value).lower() if isinstance(value, bool) and name == "where" else value
    return arguments
