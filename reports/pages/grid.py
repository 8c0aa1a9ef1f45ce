"""The grid: everything that a page shows at every place of the knobs, worked out beforehand and written compactly.

A page holds `numbers`, figures that the simulator gave over the batches and prompts, each once however many operators
and settings share it: a number where it is the same everywhere, else a list whose first entry says what it runs over
(0 batches, 1 prompts, 2 both). Everything else refers to them by their places.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from roofline import Analysis, analyze
from roofline.core.errors import RooflineError
from roofline.graph.size import Size
from roofline.reports.output.blocks import plain_text
from roofline.reports.output.export import BASES
from roofline.reports.pages.controls import MOST_OPS, Knobs, Setting, knobs
from roofline.reports.pages.graph import rows_of
from roofline.reports.pages.subjects import Subject
from roofline.scenario.phase import Phase
from roofline.whatif.command_line import command_line
from roofline.whatif.explain.lines import Line
from roofline.whatif.explain.operators import in_symbols, operator_at
from roofline.whatif.metrics import find_metric
from roofline.whatif.request import Request

DIGITS = 5
"""Significant digits of an embedded figure."""

BOUNDS = ("compute", "memory", "link")
READINGS = ("bound", "low", "mid", "high")
TIMED = ("ttft", "tpot", "total", "tokens_per_s", "sequences_per_s", "energy", "cost")
"""Metrics with readings that a page shows; those that are unknown are left out."""

SIZED = ("memory", "memory.weights", "memory.kv", "memory.state", "memory.activations", "headroom")

ANY_BATCH, ANY_PROMPT = 9_999_991, 999_999_937
"""What stands for the batch and the prompt of a command until a reader has chosen them."""


class Pool:
    """Texts of JSON, each once; what is added is referred to by its place."""

    def __init__(self) -> None:
        self._places: dict[Any, int] = {}
        self._texts: list[str] = []

    def add(self, text: str, key: Any = None) -> int:
        """The place of a text; `key` tells it apart where it is not the text itself."""
        name = text if key is None else key
        if name not in self._places:
            self._places[name] = len(self._texts)
            self._texts.append(text)
        return self._places[name]

    def find(self, key: Any) -> int | None:
        """The place of what was added under a key."""
        return self._places.get(key)

    @property
    def json(self) -> str:
        """All of them as an array."""
        return f"[{','.join(self._texts)}]"


class Book:
    """The pools of a page: numbers, texts, operators and graphs."""

    def __init__(self) -> None:
        self.numbers, self.texts, self.ops, self.graphs = Pool(), Pool(), Pool(), Pool()
        self._known: dict[Any, int] = {}

    def text(self, text: object) -> int:
        """The place of a text that is safe to show."""
        key = str(text)
        if key not in self._known:
            self._known[key] = self.texts.add(json.dumps(plain_text(key), ensure_ascii=False))
        return self._known[key]

    def number(self, value: Any, shape: tuple[int, int], digits: int | None = DIGITS) -> int:
        """The place of a figure over the grid; `digits` None writes it exactly."""
        array = np.asarray(value, dtype=float)
        seen = (array.shape, digits, array.tobytes())
        if seen not in self._known:
            self._known[seen] = self._number(array, shape, digits)
        return self._known[seen]

    def _number(self, array: NDArray[np.float64], shape: tuple[int, int], digits: int | None) -> int:
        tag, flat = _reduced(array, shape)
        key = (tag, digits, flat.tobytes())
        place = self.numbers.find(key)
        if place is None:
            texts = [_number(entry, digits) for entry in flat.tolist()]
            place = self.numbers.add(texts[0] if tag is None else f"[{tag},{','.join(texts)}]", key)
        return place

    @property
    def pools(self) -> dict[str, str]:
        """The pools as JSON by name."""
        return {
            "numbers": self.numbers.json,
            "texts": self.texts.json,
            "ops": self.ops.json,
            "graphs": self.graphs.json,
        }


def _reduced(array: NDArray[np.float64], shape: tuple[int, int]) -> tuple[int | None, NDArray[np.float64]]:
    """A figure without the axes that it does not change over, and which are left."""
    if array.ndim == 0:
        return None, array.reshape(1)
    full = np.broadcast_to(array, shape)
    over_batch, over_prompt = (not _same(full, axis) for axis in (0, 1))
    if over_batch and over_prompt:
        return 2, full.reshape(-1)
    if over_batch:
        return 0, np.ascontiguousarray(full[:, 0])
    if over_prompt:
        return 1, np.ascontiguousarray(full[0])
    return None, full[:1, 0]


def _same(array: NDArray[np.float64], axis: int) -> bool:
    first = array[:1] if axis == 0 else array[:, :1]
    return bool(((array == first) | ((array != array) & (first != first))).all())


def _number(value: float, digits: int | None) -> str:
    if not math.isfinite(value):
        return "null"
    if digits is None:
        return str(int(value)) if value == int(value) else repr(value)
    text = f"{value:.{digits}g}"
    if "e" not in text:
        return text
    mantissa, exponent = text.split("e")
    return f"{mantissa}e{int(exponent)}"


def embedded(subjects: Sequence[Subject]) -> str:
    """The JSON of a page about these scenarios. Raises RooflineError where one cannot be simulated."""
    book = Book()
    scenarios = [_scenario(book, subject, knobs(subject, len(subjects))) for subject in subjects]
    parts = {**book.pools, "scenarios": f"[{','.join(scenarios)}]"}
    text = "{" + ",".join(f"{json.dumps(name)}:{value}" for name, value in parts.items()) + "}"
    # Nothing in it ends the element that holds it, or begins a comment.
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _scenario(book: Book, subject: Subject, found: Knobs) -> str:
    asked = [found.asked_batch, found.asked_prompt, found.asked.quant, found.asked.flash, found.asked.tp]
    document = {
        "name": book.text(subject.name),
        "label": book.text(subject.label or subject.name),
        "engine": book.text(subject.analysis.scenario.profile.name),
        "expected": subject.analysis.times_are_expected,
        "decodes": subject.analysis.decode is not None,
        "values": [
            list(found.batches),
            list(found.prompts),
            [plain_text(label) for label, _ in found.quants],
            ["on" if flash else "off" for flash in found.flashes],
            list(found.degrees),
        ],
        "asked": asked,
        "steps": _steps(book, subject.analysis),
    }
    settings = ",".join(_setting(book, found, setting) for setting in found.settings)
    return f'{json.dumps(document, ensure_ascii=False)[:-1]},"settings":[{settings}]}}'


def _setting(book: Book, found: Knobs, setting: Setting) -> str:
    """Everything at one place of the knobs that need an analysis of their own, over batches and prompts."""
    try:
        answer = analyze(found.grid(setting).scenario())
        document = {
            "figures": _figures(book, answer, found.shape),
            "command": book.text(_command(found.at(setting, batch=ANY_BATCH, prompt=ANY_PROMPT))),
            "roofs": _peaks(book, answer),
        }
        phases = [
            f"{json.dumps(phase.name)}:{_phase(book, phase, answer.times_are_expected, found.shape)}"
            for phase in (answer.prefill, answer.decode)
            if phase is not None
        ]
    except RooflineError as error:
        return json.dumps({"error": book.text(error)})
    return f'{json.dumps(document)[:-1]},"phases":{{{",".join(phases)}}}}}'


def _command(request: Request) -> str:
    return command_line(request).replace(str(ANY_BATCH), "{batch}").replace(str(ANY_PROMPT), "{prompt}")


def _figures(book: Book, answer: Analysis, shape: tuple[int, int]) -> dict[str, int]:
    """Metrics, the bounds of the phases, and what memory holds."""
    figures: dict[str, Any] = {}
    for name in TIMED:
        if name == "sequences_per_s" and answer.decode is not None:
            continue  # the page shows tokens there
        for reading in READINGS if answer.times_are_expected else READINGS[:1]:
            values = np.asarray(find_metric(f"{name}.{reading}", "bound").figure(answer), dtype=float)
            if np.isfinite(values).any():
                figures[f"{name}.{reading}"] = values
    figures |= {name: find_metric(name, "bound").figure(answer) for name in (*SIZED, "fits", "gpus")}
    figures["capacity"] = answer.memory.capacity
    for phase in (answer.prefill, answer.decode):
        if phase is not None:
            figures[f"{phase.name}.bound"] = _codes(phase.bound)
            figures[f"{phase.name}.time.bound"] = phase.bound_time
            if answer.times_are_expected:
                figures |= {f"{phase.name}.time.{name}": getattr(phase.expected, name) for name in READINGS[1:]}
            figures[f"{phase.name}.flops"], figures[f"{phase.name}.bytes"] = phase.flops, phase.bytes
    return {name: book.number(value, shape) for name, value in figures.items()}


def _codes(bound: Any) -> Any:
    names = np.asarray(bound).astype(str)
    return np.select([names == name for name in BOUNDS], range(len(BOUNDS)), default=0)


def _peaks(book: Book, answer: Analysis) -> dict[str, Any]:
    """The roofs of the hardware in the formats that are in use: [name, FLOP/s], and B/s."""
    hardware = answer.scenario.hardware
    phases = [phase for phase in (answer.prefill, answer.decode) if phase is not None]
    used = dict.fromkeys(op.arithmetic for phase in phases for op in phase.ops if op.arithmetic is not None)
    peaks = {name: hardware.matrix_peak(name) for name in used}
    if hardware.vector_peak is not None:
        peaks["vector"] = hardware.vector_peak
    return {
        "bandwidth": hardware.memory_bandwidth,
        "peaks": [[book.text(name), peak] for name, peak in sorted(peaks.items(), key=lambda item: -item[1])],
    }


def kept(phase: Phase) -> list[int]:
    """The places of the operators that are shown: all, or of very many those that take longest."""
    if len(phase.ops) <= MOST_OPS:
        return list(range(len(phase.ops)))
    share = [float(np.max(op.share)) for op in phase.ops]
    return sorted(sorted(range(len(share)), key=lambda place: (-share[place], place))[:MOST_OPS])


def _phase(book: Book, phase: Phase, expected: bool, shape: tuple[int, int]) -> str:
    """The operators of a phase: each [operator, share], and the graph that they make."""
    places = kept(phase)
    ops, expectations = phase.ops, phase.expected_ops if expected else ()
    entries = []
    for place in places:
        op = ops[place]
        figures = {
            "count": op.count,
            "flops": op.flops,
            "bytes": op.bytes,
            "link_bytes": op.link_bytes,
            "intensity": op.intensity,
            "attainable": op.attainable,
            "bound": _codes(op.bound),
            "time.bound": op.bound_time,
        }
        texts = {
            "name": op.name,
            "kind": op.kind,
            "section": op.section,
            "arithmetic": op.arithmetic or "vector",
            "formula": " + ".join(filter(None, (in_symbols(op.op.matrix_flops), in_symbols(op.op.vector_flops))))
            or "0",
        }
        if expectations:
            found = expectations[place]
            figures |= {f"time.{name}": getattr(found.time, name) for name in READINGS[1:]}
            figures["inside"] = found.inside
            texts |= {"basis": BASES[found.basis], "source": found.source}
        document = {
            "n": {name: book.number(value, shape) for name, value in figures.items()},
            "t": {name: book.text(text) for name, text in texts.items()},
            "ridge": None if op.ridge is None else float(f"{op.ridge:.{DIGITS}g}"),
            "tensors": [_tensor(book, tensor, op.extents, shape) for tensor in op.op.tensors],
        }
        entries.append(f"[{book.ops.add(json.dumps(document))},{book.number(op.share, shape)}]")
    graph = book.graphs.add(json.dumps(rows_of(phase, places), ensure_ascii=False))
    return f'{{"ops":[{",".join(entries)}],"graph":{graph},"left_out":{len(ops) - len(places)}}}'


def _tensor(book: Book, tensor: Any, numbers: Mapping[str, Any], shape: tuple[int, int]) -> list[Any]:
    """Name, role, shape in symbols, shape in numbers, format, bytes."""
    symbols = " \N{MULTIPLICATION SIGN} ".join(in_symbols(dim) or "0" for dim in tensor.shape)
    sides = [book.number(_sized(dim, numbers), shape, None) for dim in tensor.shape]
    return [
        book.text(tensor.name),
        book.text(tensor.role),
        book.text(symbols),
        sides,
        book.text(tensor.format.name),
        book.number(_sized(tensor.bytes, numbers), shape),
    ]


def _sized(dim: int | Size, numbers: Mapping[str, Any]) -> Any:
    return dim if isinstance(dim, int) else dim.evaluate(numbers)


def _steps(book: Book, answer: Analysis) -> dict[str, list[list[Any]]]:
    """How each operator's times follow, step by step with numbers, in the scenario that was asked for."""
    return {
        phase.name: [
            [book.text(f"{phase.ops[place].section}/{phase.ops[place].name}"), _lines(book, answer, phase, place)]
            for place in kept(phase)
        ]
        for phase in (answer.prefill, answer.decode)
        if phase is not None
    }


def _lines(book: Book, answer: Analysis, phase: Phase, place: int) -> list[list[Any]]:
    _, lines, _, _ = operator_at(answer, phase, place)
    return [
        [book.text(line.name), book.text(line.formula), book.text(line.substituted), _value(line), book.text(line.unit)]
        for line in _timed(lines)
    ]


def _timed(lines: Iterable[Line]) -> list[Line]:
    """The steps that are no tensor: tensors are listed beside."""
    return [line for line in lines if not line.formula.startswith("[")]


def _value(line: Line) -> float | None:
    return float(f"{line.value:.{DIGITS}g}") if math.isfinite(line.value) else None
