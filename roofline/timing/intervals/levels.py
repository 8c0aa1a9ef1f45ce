"""Levels between the measurements that constants come from and the kernel that is asked for, and what each adds.

The logarithm of measured over predicted time has one component a level, in the manner of a nested random-effects model
(Searle, Casella and McCulloch, "Variance Components", 1992): rows within one version of an engine on one device (the
residuals of a fit), tables of a kernel that engines share, versions of an engine, near ones and those several releases
apart, devices of a family, engines on a device, families, number formats. Crossing a level adds its variance.
`lab.fit.variance` estimates the components: each version, device and engine is predicted from the others,
and the component is what makes 80% of its rows fall into the interval.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import lru_cache
from math import sqrt
from pathlib import Path
from typing import Literal, get_args

from roofline.core.documents import bundled_path, finite_number, read_mapping
from roofline.core.errors import SpecError, quote
from roofline.specs.library import SEARCH_PATH, File, as_mapping, check_keys, find_file, modified

Level = Literal["table", "version", "release", "family", "engine", "pooled", "format"]
"""`table`: another engine's or version's table of a kernel that engines share; `version`: a near version of the engine;
`release`: one that is several minor releases apart (`Version.is_far`); `family`: another device of the family;
`engine`: another engine; `pooled`: devices of other families; `format`: a related number format, once for each step
down its list."""

LEVELS: tuple[Level, ...] = get_args(Level)

FILE = "levels.yaml"
"""The file of `hwspecs/calibration` with the components by kind of kernel and format."""


def crossing_spread(op: str, format: str, crossed: tuple[Level, ...]) -> float:
    """The standard deviation of the logarithm of measured over predicted time that the levels `crossed` add.

    It is that of the format where it is known, and of the kind of kernel for "".
    """
    return _spread(op, format, crossed, _file())


@lru_cache(maxsize=1024)
def _spread(op: str, format: str, crossed: tuple[Level, ...], file: File) -> float:
    components = _components(file)
    own = components.get(f"{op} {format}") or components.get(op, components["other"])
    return sqrt(sum(own[level] ** 2 for level in crossed))


def _file() -> File:
    """The file with the components, as it is now; one in `ROOFLINE_SPECS` comes before the bundled one."""
    if not os.environ.get(SEARCH_PATH):
        return _bundled()
    path = find_file(f"calibration/{FILE}", "hwspecs")
    return File(path, modified(path)) if path is not None else _bundled()


@lru_cache(maxsize=1)
def _bundled() -> File:
    path = bundled_path("hwspecs") / "calibration" / FILE
    return File(path, modified(path))


@lru_cache(maxsize=4)
def _components(file: File) -> Mapping[str, Mapping[Level, float]]:
    return parse_levels(file.path)


def parse_levels(path: Path) -> Mapping[str, Mapping[Level, float]]:
    """The components in a file; raises SpecError for an unknown level or a value that is no positive number."""
    where, found = str(path), {}
    content = read_mapping(path)
    for op, given in as_mapping(content.get("components"), where, "components").items():
        values = as_mapping(given, where, f"components.{op}")
        check_keys(values, LEVELS, where, f"components.{op}")
        found[op] = {level: _component(values.get(level), where, f"components.{op}.{level}") for level in LEVELS}
    if "other" not in found:
        raise SpecError(where, "the key 'components.other' is missing")
    return found


def _component(value: object, where: str, key: str) -> float:
    number = finite_number(value)
    if number is None or not 0 < number <= MAX_COMPONENT:
        raise SpecError(where, f"{quote(key)} must be a number above 0, at most {MAX_COMPONENT:g}, got {quote(value)}")
    return number


MAX_COMPONENT = 5.0
"""Largest standard deviation of a level: a factor of 150."""
