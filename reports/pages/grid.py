"""The figures of a page at every setting of its controls, computed in advance and encoded compactly as JSON.

`numbers` holds each distinct figure over batches and prompts once: a number if it is constant, else a list whose first
entry is the axis (0 batches, 1 prompts, 2 both). Everything else refers to numbers and texts by index.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from roofline import Analysis, analyze
from roofline.core.errors import RooflineError
from roofline.graph.size import Size
from roofline.reports.output.blocks import picked
from roofline.reports.output.export import BASES, printable
from roofline.reports.pages.controls import Controls, Setting, controls
from roofline.reports.pages.graph import kept, roofs, rows_of
from roofline.reports.pages.subjects import Subject
from roofline.scenario.phase import Phase
from roofline.scenario.scenario import Scenario
from roofline.whatif.command_line import command_line
from roofline.whatif.explanation.lines import Line
from roofline.whatif.explanation.operators import in_symbols, operator_at
from roofline.whatif.metrics import find_metric

DIGITS = 5
"""Significant digits of embedded figures."""

BOUNDS = ("compute", "memory", "link")
READINGS = ("bound", "low", "mid", "high")
TIMED = ("ttft", "tpot", "total", "tokens_per_s", "sequences_per_s", "energy", "cost")
"""Metrics with a bound and an interval; unknown ones are omitted."""

SIZED = (
    *("memory", "memory.weights", "memory.kv", "memory.state", "memory.activations", "memory.runtime"),
    *("memory.usable", "headroom"),
)

ANY_BATCH, ANY_PROMPT = 9_999_991, 999_999_937
"""Placeholders of batch and prompt in a command."""


class Pool:
    """Distinct JSON texts by index."""

    def __init__(self) -> None:
        self._texts: dict[Any, tuple[int, str]] = {}

    def add(self, text: str, key: Any = None) -> int:
        """The index of a text, identified by `key` or by itself."""
        return self._texts.setdefault(text if key is None else key, (len(self._texts), text))[0]

    def find(self, key: Any) -> int | None:
        """The index of a key; None if it was not added."""
        return self._texts[key][0] if key in self._texts else None

    @property
    def json(self) -> str:
        """The texts as a JSON array."""
        return f"[{','.join(text for _, text in self._texts.values())}]"


class PagePools:
    """The pools of a page: numbers, texts, operators and graphs."""

    def __init__(self) -> None:
        self.numbers, self.texts, self.ops, self.graphs = Pool(), Pool(), Pool(), Pool()
        self._known: dict[Any, int] = {}

    def text(self, text: object) -> int:
        """The index of a text, with unprintable characters replaced."""
        key = str(text)
        if key not in self._known:
            self._known[key] = self.texts.add(json.dumps(printable(key), ensure_ascii=False))
        return self._known[key]

    def number(self, value: Any, shape: tuple[int, int], digits: int | None = DIGITS) -> int:
        """The index of a figure over the grid, rounded to `digits` unless None."""
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
        return {name: getattr(self, name).json for name in ("numbers", "texts", "ops", "graphs")}


def _reduced(array: NDArray[np.float64], shape: tuple[int, int]) -> tuple[int | None, NDArray[np.float64]]:
    """The axes over which a figure varies (0 batches, 1 prompts, 2 both, None), and its values over these."""
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
    """The JSON data of a page. Raises RooflineError if a scenario cannot be simulated."""
    pools = PagePools()
    scenarios = [_scenario(pools, subject, controls(subject, len(subjects))) for subject in subjects]
    parts = {**pools.pools, "scenarios": f"[{','.join(scenarios)}]"}
    text = "{" + ",".join(f"{json.dumps(name)}:{value}" for name, value in parts.items()) + "}"
    # Escaped so that nothing ends the script element or starts a comment.
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _scenario(pools: PagePools, subject: Subject, found: Controls) -> str:
    setting = found.requested
    requested = [found.requested_batch, found.requested_prompt, setting.quant, setting.flash, setting.tp]
    document = {
        "name": pools.text(subject.name),
        "label": pools.text(subject.label or subject.name),
        "engine": pools.text(subject.analysis.scenario.profile.label),
        "expected": subject.analysis.times_are_expected,
        "decodes": subject.analysis.decode is not None,
        "values": [
            list(found.batches),
            list(found.prompts),
            [printable(label) for label, _ in found.quants],
            ["on" if flash else "off" for flash in found.flashes],
            list(found.degrees),
        ],
        "requested": requested,
        "steps": _steps(pools, subject.analysis),
    }
    settings = ",".join(_setting(pools, found, setting) for setting in found.settings)
    return f'{json.dumps(document, ensure_ascii=False)[:-1]},"settings":[{settings}]}}'


def _setting(pools: PagePools, found: Controls, setting: Setting) -> str:
    """The figures, command, roofs and phases at one setting, over batches and prompts."""
    try:
        answer = analyze(found.grid(setting))
        document = {
            "figures": _figures(pools, answer, found.shape),
            "command": pools.text(_command(found.at(setting, batch=ANY_BATCH, prompt=ANY_PROMPT))),
            "roofs": _roofs(pools, answer),
        }
        phases = [
            f"{json.dumps(phase.name)}:{_phase(pools, phase, answer.times_are_expected, found.shape)}"
            for phase in (answer.prefill, answer.decode)
            if phase is not None
        ]
    except RooflineError as error:
        return json.dumps({"error": pools.text(error)})
    return f'{json.dumps(document)[:-1]},"phases":{{{",".join(phases)}}}}}'


def _command(scenario: Scenario) -> str:
    return command_line(scenario).replace(str(ANY_BATCH), "{batch}").replace(str(ANY_PROMPT), "{prompt}")


def _figures(pools: PagePools, answer: Analysis, shape: tuple[int, int]) -> dict[str, int]:
    """Indices of metrics, of memory by part, and of totals and bounds of the phases."""
    figures: dict[str, Any] = {}
    for name in TIMED:
        if name == "sequences_per_s" and answer.decode is not None:
            continue  # the page shows tokens/s
        for reading in READINGS if answer.times_are_expected else READINGS[:1]:
            values = np.asarray(find_metric(f"{name}.{reading}", "bound").figure(answer), dtype=float)
            if np.isfinite(values).any():
                figures[f"{name}.{reading}"] = values
    figures |= {name: find_metric(name, "bound").figure(answer) for name in (*SIZED, "fits", "gpus")}
    for phase in (answer.prefill, answer.decode):
        if phase is not None:
            figures[f"{phase.name}.bound"] = _codes(phase.bound)
            figures[f"{phase.name}.time.bound"] = phase.bound_time
            if answer.times_are_expected:
                figures |= {f"{phase.name}.time.{name}": getattr(phase.expected, name) for name in READINGS[1:]}
            figures[f"{phase.name}.flops"], figures[f"{phase.name}.bytes"] = phase.flops, phase.bytes
    return {name: pools.number(value, shape) for name, value in figures.items()}


def _codes(bound: Any) -> Any:
    names = np.asarray(bound).astype(str)
    return np.select([names == name for name in BOUNDS], range(len(BOUNDS)), default=0)


def _roofs(pools: PagePools, answer: Analysis) -> dict[str, Any]:
    found = roofs(answer)
    return {**found, "peaks": [[pools.text(name), peak] for name, peak in found["peaks"]]}


def _phase(pools: PagePools, phase: Phase, expected: bool, shape: tuple[int, int]) -> str:
    """JSON of a phase: [operator, share] of each operator, and the index of the graph."""
    places = kept(phase)
    ops, expectations = phase.ops, phase.expected_ops if expected else ()
    entries = []
    for place in places:
        op = ops[place]
        figures = picked(op, "count", "flops", "bytes", "link_bytes", "intensity", "attainable")
        figures |= {"bound": _codes(op.bound), "time.bound": op.bound_time}
        formula = " + ".join(filter(None, (in_symbols(op.op.matrix_flops), in_symbols(op.op.vector_flops))))
        texts = {**picked(op, "name", "kind", "section"), "arithmetic": op.arithmetic or "vector"}
        texts["formula"] = formula or "0"
        if expectations:
            found = expectations[place]
            figures |= {f"time.{name}": getattr(found.time, name) for name in READINGS[1:]}
            figures["inside"] = found.inside
            texts |= {"basis": BASES[found.basis], "source": found.source}
        document = {
            "n": {name: pools.number(value, shape) for name, value in figures.items()},
            "t": {name: pools.text(text) for name, text in texts.items()},
            "ridge": None if op.ridge is None else float(f"{op.ridge:.{DIGITS}g}"),
            "tensors": [_tensor(pools, tensor, op.extents, shape) for tensor in op.op.tensors],
        }
        entries.append(f"[{pools.ops.add(json.dumps(document))},{pools.number(op.share, shape)}]")
    graph = pools.graphs.add(json.dumps(rows_of(phase, places), ensure_ascii=False))
    return f'{{"ops":[{",".join(entries)}],"graph":{graph},"left_out":{len(ops) - len(places)}}}'


def _tensor(pools: PagePools, tensor: Any, numbers: Mapping[str, Any], shape: tuple[int, int]) -> list[Any]:
    """Name, role, shape in symbols, shape in numbers, format, bytes."""
    symbols = " \N{MULTIPLICATION SIGN} ".join(in_symbols(dim) or "0" for dim in tensor.shape)
    sides = [pools.number(_sized(dim, numbers), shape, None) for dim in tensor.shape]
    size = pools.number(_sized(tensor.bytes, numbers), shape)
    return [*map(pools.text, (tensor.name, tensor.role, symbols)), sides, pools.text(tensor.format.name), size]


def _sized(dim: int | Size, numbers: Mapping[str, Any]) -> Any:
    return dim if isinstance(dim, int) else dim.evaluate(numbers)


def _steps(pools: PagePools, answer: Analysis) -> dict[str, list[list[Any]]]:
    """The derivation of each operator's times with numbers, in the requested scenario."""
    return {
        phase.name: [
            [pools.text(f"{phase.ops[place].section}/{phase.ops[place].name}"), _lines(pools, answer, phase, place)]
            for place in kept(phase)
        ]
        for phase in (answer.prefill, answer.decode)
        if phase is not None
    }


def _lines(pools: PagePools, answer: Analysis, phase: Phase, place: int) -> list[list[Any]]:
    _, lines, _, _ = operator_at(answer, phase, place)
    return [
        [*map(pools.text, (line.name, line.formula, line.substituted)), _value(line), pools.text(line.unit)]
        for line in lines
        if not line.formula.startswith("[")  # tensors have a table of their own
    ]


def _value(line: Line) -> float | None:
    return float(f"{line.value:.{DIGITS}g}") if math.isfinite(line.value) else None
