"""Where rows come from: the engine and version that ran a kernel, and what its benchmark timed beside the kernel."""

from __future__ import annotations

import re
from typing import NamedTuple

from roofline.timing.chains import ENGINES
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

UNGRAPHED: tuple[tuple[str, str, str], ...] = (
    ("vllm", "gemm", "fp8_block"),
    ("vllm", "mla_prefill", ""),
    ("vllm", "mla_decode", ""),
)
"""Engine, op and format (all where empty) of public rows without CUDA graphs: host time hides that of short kernels.

Block-scaled GEMMs of one shape take 10 us in the tables of SGLang and TensorRT-LLM and 160 in vLLM's, whatever m.
"""


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


def is_ungraphed(part: Measurements, found: Origin, format: str) -> bool:
    """Whether the rows of one origin and format were timed without CUDA graphs."""
    if not part.alone.all():
        return False
    return any(part.op == op and found.engine == engine and other in ("", format) for engine, op, other in UNGRAPHED)
