"""Axes: the options that a study varies, with values parsed from text.

    1,2,4            a list                            1:256         every whole number, both ends included
    0:4096:512       in steps                          1:256:log16   16 values in equal ratios, 0:1:lin5 in equal steps
    4k,32k,128K      counts (`units.parse_count`)      all           models, hardware, engines, formats, techniques

Workload counts are arrays that one analysis evaluates at once; every other axis is a loop over its values.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
from msgspec import Struct

from roofline.core.errors import RooflineError, quote
from roofline.core.options import FORMS, MAX_VALUES, NOTHING, Kind, Option, numbers
from roofline.scenario.options import NEEDED, find_option
from roofline.specs.engine import Engine
from roofline.specs.hardware import Hardware
from roofline.specs.model import Model

EVERYTHING = "all"
"""The text for all names of models, hardware, engines, formats, techniques and the like."""

OBJECTS = (Model, Hardware, Engine)
"""Values that are no text: their label is their name."""


class Axis(Struct, frozen=True, eq=False):
    """An option and its values, in the given order.

    `values` are option values: an integer array for a grid axis, else a tuple. `labels` are numbers, booleans or text
    for display.
    """

    option: Option
    values: Any
    labels: Any

    @property
    def name(self) -> str:
        return self.option.name

    @property
    def grid(self) -> bool:
        return self.option.kind is Kind.GRID

    @property
    def pairs(self) -> list[tuple[Any, Any]]:
        return list(zip(self.labels, self.values, strict=True))

    def __len__(self) -> int:
        return len(self.labels)


def parse_axis(name: str, given: object) -> Axis:
    """The axis over option `name` with values from text, a number or a sequence of them.

    Raises RooflineError for an unknown option, an invalid value or range, or a repeated value.
    """
    option = find_option(name)
    if isinstance(given, str) and given == EVERYTHING and option.names:
        given = option.names
    entries = _split(given, option) if isinstance(given, str) else _listed(given, option)
    if option.kind is Kind.GRID:
        return _grid_axis(option, entries)
    if option.kind.ranged:
        values = tuple(value for entry in entries for value in numbers(option, entry))
        _check_distinct(option, values)
        return Axis(option, values, values)
    entries = [os.fspath(entry) if isinstance(entry, os.PathLike) else entry for entry in entries]
    values = tuple(entry if isinstance(entry, OBJECTS) else option.read(entry) for entry in entries)
    if option.name in NEEDED and not all(values):
        raise RooflineError(f"the axis {option.name} has an empty value; {_forms(option)}")
    labels = values if option.kind is Kind.SWITCH else tuple(map(_label, entries))
    _check_distinct(option, labels)
    return Axis(option, values, labels)


def parse_axes(over: Mapping[str, object]) -> tuple[Axis, ...]:
    """The axes of a mapping of option names to values; raises RooflineError for a repeated option."""
    axes = tuple(parse_axis(name, given) for name, given in over.items())
    for name, count in Counter(axis.name for axis in axes).items():
        if count > 1:
            raise RooflineError(f"the axis {name} is given twice")
    return axes


def combinations(
    over: Iterable[str], without: Collection[str] = (), fixed: Collection[str] = ()
) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Every combination of axes written like `tp=1,2`, of options not in `without`: labels and values by option name.

    Raises RooflineError as `parse_axis` and `assigned` do.
    """
    given = assigned(over, fixed)
    for name in given:
        if name in without:
            raise RooflineError(f"{name} is no option of a load, and no axis of its deployments")
    axes = parse_axes(given)
    for chosen in product(*(axis.pairs for axis in axes)):
        labels = {axis.name: np.asarray(label).item() for axis, (label, _) in zip(axes, chosen, strict=True)}
        yield labels, {axis.name: value for axis, (_, value) in zip(axes, chosen, strict=True)}


def assigned(over: Iterable[str], fixed: Collection[str] = ()) -> dict[str, str]:
    """The values of axes written like `batch=1:256:log16`, by option name.

    Raises RooflineError for another form, an unknown option, one that is given twice, and one that is `fixed`.
    """
    found: dict[str, str] = {}
    for text in over:
        name, separator, values = text.partition("=")
        if not separator or not name.strip() or not values.strip():
            raise RooflineError(f"cannot read the axis {quote(text)}; write it like batch=1:256:log16")
        if (key := find_option(name).name) in found:
            raise RooflineError(f"the axis {key} is given twice")
        if key in fixed:
            raise RooflineError(f"{key} is an axis and cannot be fixed as well")
        found[key] = values.strip()
    return found


def _split(text: str, option: Option) -> list[Any]:
    """The parts of a list; semicolons separate parts that contain commas."""
    parts = [part.strip() for part in text.split(";" if ";" in text else ",")]
    if not all(parts):
        raise RooflineError(f"the axis {option.name} has an empty value in {quote(text)}; {_forms(option)}")
    return parts


def _forms(option: Option) -> str:
    return FORMS if option.kind.ranged else "separate values by commas"


def _listed(given: object, option: Option) -> list[Any]:
    if isinstance(given, np.ndarray):
        given = given.tolist() if given.ndim == 1 else None
    if isinstance(given, (int, float, *OBJECTS)):
        return [given]
    if not isinstance(given, Iterable) or isinstance(given, (Mapping, bytes)):
        raise RooflineError(f"the axis {option.name} takes a list of values; {_forms(option)}")
    entries = list(given)
    if not entries:
        raise RooflineError(f"the axis {option.name} has no values; {_forms(option)}")
    return entries


def _label(entry: object) -> str:
    if entry is None:
        return NOTHING
    if isinstance(entry, OBJECTS):
        return entry.name
    return entry if isinstance(entry, str) else "+".join(map(str, entry)) if isinstance(entry, list) else str(entry)


def _grid_axis(option: Option, entries: Sequence[Any]) -> Axis:
    parts = [np.asarray(numbers(option, entry), dtype=np.int64) for entry in entries]
    values = np.concatenate(parts)
    if values.size > MAX_VALUES:
        raise RooflineError(f"the axis {option.name} has {values.size} values; the maximum is {MAX_VALUES}")
    ordered = np.sort(values)
    twice = ordered[1:][ordered[1:] == ordered[:-1]]
    if twice.size:
        raise RooflineError(f"the axis {option.name} has the value {twice[0]} twice")
    values.flags.writeable = False
    return Axis(option, values, values)


def _check_distinct(option: Option, labels: Sequence[Any]) -> None:
    for label, count in Counter(labels).items():
        if count > 1:
            raise RooflineError(f"the axis {option.name} has the value {quote(label)} twice")
