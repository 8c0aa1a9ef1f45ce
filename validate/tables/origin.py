"""Where rows come from: the engine and version that ran a kernel."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from roofline.timing.chains import ENGINES

if TYPE_CHECKING:
    from roofline.validate.tables.rows import Measurements


class Origin(NamedTuple):
    """An engine and its version, empty where a row names none."""

    engine: str
    version: str

    def __str__(self) -> str:
        return " ".join(filter(None, self)) or "no engine"


NONE = Origin("", "")
"""The origin of rows without an engine that has calibrations."""

_SOFTWARE = re.compile(r"(\S+) v?(\d\S*)")


def origin(software: object) -> Origin:
    """The engine and version in the text of a column `software`, such as 'vLLM 0.24.0'."""
    match = _SOFTWARE.match(str(software))
    return Origin(match[1].lower(), match[2]) if match and match[1].lower() in ENGINES else NONE


def by_origin(part: Measurements) -> dict[Origin, Measurements]:
    """The measurements by engine and version."""
    if "software" not in part.frame:
        return {NONE: part}
    names = part.frame["software"].map({name: origin(name) for name in part.frame["software"].unique()})
    return {found: part.rows((names == found).to_numpy()) for found in dict.fromkeys(names)}
