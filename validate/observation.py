"""From the kernel that an engine runs to what a measurement timed: kernels with operands in a cache, or without.

A kernel model describes a step of a served model, whose weights and keys come from memory. A measurement that repeats a
kernel on the same buffers (`warm`) finds part of them in the L2. The fraction that it holds falls with their footprint,

    held  = 1 / (1 + (footprint / (l2_share L2 bytes))^e)

with e of 8 for weights, 4 for the operands of prefill and 16 for a KV cache; what is held costs no traffic, or that of
a faster memory (`l2_speedup`). Warm GEMMs have any number of rows m, while those of engines are padded to multiples
of 8 (`Gemm.padded`).

`Harness` is how `roofline validate measure` times kernels; those of public tables are outside the package.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from roofline.core.parameters import Parameter, Unit
from roofline.specs.hardware import Hardware
from roofline.timing.calibration import Calibration, Expected, Match, unknown
from roofline.timing.kernels import Array, Kernel, Parameters, Row, at_clock, kernel, mla
from roofline.timing.kernels.attention_decode import cache_bytes
from roofline.timing.kernels.common import l2_bytes
from roofline.timing.kernels.ggml import PREFIX
from roofline.timing.kernels.model import Terms
from roofline.validate.tables.rows import Measurements

L2_SHARE = Parameter("l2_share", Unit.RATIO, 0.05, 2.0, 0.8, "fraction of the L2 that holds a benchmark's operands")
L2_SPEEDUP = Parameter("l2_speedup", Unit.RATIO, 1.0, 10.0, 2.0, "bandwidth of the L2 relative to the memory's")

_OF_CACHE = dict.fromkeys(
    ("attention_prefill", "attention_decode", "mla_prefill", "mla_decode"), (L2_SHARE, L2_SPEEDUP)
)
CONSTANTS: dict[str, tuple[Parameter, ...]] = {"gemm": (L2_SHARE,), "moe": (L2_SHARE,), **_OF_CACHE}
"""The constants of warm operands, by kind of kernel."""

WEIGHTS_HELD, PROMPTS_HELD, CACHE_HELD = 8.0, 4.0, 16.0
"""Exponents e: of those tried, the loss of ten refits to public tables is within 0.03% of the least with each.

It is 0.2% larger for BF16 weights with 3, 0.1% for the operands of prompts with 2, and 0.4% for a KV cache with 8, and
changes by less with larger exponents: such tables tell that little is held beyond the L2, hardly how suddenly.
"""

COPIES = {"nvfp4": 1.0}
"""Copies of the weights that a benchmark cycles through, by format; 6 for others."""

Mask = NDArray[np.bool_]


class Timed(NamedTuple):
    """What a measurement would show: the bound and the expected seconds of each row."""

    bound: Array
    seconds: Array


class Observation(Struct, frozen=True):
    """Rows of one kind and format as they were timed: the row of the schema, its kernels, and which had warm operands.

    The kernels' `shape` is read once: a fit evaluates the same rows thousands of times.
    """

    op: str
    row: Row
    warm: Mask
    shape: Any

    @property
    def kernel(self) -> Kernel:
        return kernel(self.op)


class Harness:
    """How `roofline validate measure` times kernels: on buffers that no cache holds, or on the same ones again.

    A collector with further ways of its own is a subclass, whose `rows` may hold more than an `Observation`.
    """

    def parameters(self, op: str, format: str) -> tuple[Parameter, ...]:
        """The constants of the harness for one kind of kernel, beside those of the kernel."""
        return () if format.startswith(PREFIX) else CONSTANTS.get(op, ())

    def fixed(self, parts: Sequence[tuple[Measurements, Hardware]]) -> tuple[str, ...]:
        """The constants that stay as they start in a fit to some rows."""
        del parts
        return ()

    def rows(self, part: Measurements) -> Any:
        """The rows as they were timed."""
        return observed(part.op, part.columns, part.warm)

    def constants(self, match: Match, calibration: Calibration, rows: Any) -> Parameters:
        """The constants of the kernels and of the harness that predict some rows."""
        del calibration, rows
        return {**match.fit.parameters, **self.known(match.fit.op, match.fit.format, match.fit.observed)}

    def known(self, op: str, format: str, observed: Parameters) -> dict[str, float]:
        """The constants of the harness: those `observed`, others as they are before any data."""
        return {one.name: one.default for one in self.parameters(op, format)} | dict(observed)

    def bound(self, rows: Any, hardware: Hardware, cold: bool = False) -> Array:
        """The bound of each row in seconds; warm operands may come from a cache, unless all are taken for `cold`."""
        return allowed(rows, rows.shape, hardware, cold)

    def seconds(self, terms: Terms, rows: Any, hardware: Hardware, constants: Parameters) -> Array:
        """What the timing of the kernels shows."""
        del rows, hardware, constants
        return terms.seconds

    def observe(self, rows: Any, hardware: Hardware, constants: Parameters) -> Timed:
        """The bound and the expected time of each row, with constants of the kernel and of the harness together."""
        bound, own = self.bound(rows, hardware), at_clock(constants, hardware)
        terms = rows.kernel.terms(replayed(rows, rows.shape, hardware, own), hardware, own)
        return Timed(bound, np.maximum(self.seconds(terms, rows, hardware, own), bound))

    def expected(self, rows: Any, hardware: Hardware, calibration: Calibration) -> Expected:
        """What a measurement of the rows should show, with its interval; the bound where no constants are known."""
        match = calibration.find_for(rows.op, rows.kernel.format(rows.row), hardware)
        if match is None:
            return unknown(self.bound(rows, hardware))
        return match.interval(rows.shape, *self.observe(rows, hardware, self.constants(match, calibration, rows)))


MEASURED = Harness()
"""That of `roofline validate measure`."""


def observed(op: str, row: Row, warm: Mask) -> Observation:
    """The kernels of a row of the schema, of which some had warm operands."""
    return Observation(op, row, warm, kernel(op).shape(row))


def allowed(rows: Observation, shape: Any, hardware: Hardware, cold: bool = False) -> Array:
    """The bound of kernels of which the `warm` ones may find all operands in a cache, unless all are `cold`."""
    found = rows.kernel.bound(shape, hardware)
    return found.seconds if cold else np.where(rows.warm, found.compute, found.seconds)


def held(footprint: Array, cache: float, exponent: float) -> Array:
    """The fraction of `footprint` bytes that stays in a cache of `cache` bytes: 1 far below its size, 0 far above."""
    if cache <= 0:
        return np.zeros_like(footprint)
    return np.asarray(1.0 / (1.0 + np.minimum(footprint / cache, 1e6) ** exponent))


def replayed(rows: Observation, shape: Any, hardware: Hardware, constants: Parameters) -> Any:
    """Kernels of which the `warm` ones find operands in the L2."""
    if not rows.warm.any() or rows.op not in CONSTANTS or "l2_share" not in constants:
        return shape
    cache, warm = constants["l2_share"] * l2_bytes(hardware), rows.warm
    match rows.op:
        case "gemm":
            footprint = COPIES.get(shape.dtype, 6.0) * shape.weight_bytes + shape.activation_bytes
            return replace(shape, cold=1.0 - warm * held(footprint, cache, WEIGHTS_HELD), padded=~warm)
        case "moe":
            return replace(shape, cold=1.0 - warm * held(shape.weight_bytes, cache, WEIGHTS_HELD))
        case "attention_prefill" | "mla_prefill":
            seen = mla.attended(shape, constants) if rows.op == "mla_prefill" else shape
            inside = warm * held(seen.kv_traffic + seen.activation_traffic, cache, PROMPTS_HELD)
        case "attention_decode":
            shape = replace(shape, all_keys=warm)
            inside = warm * held(cache_bytes(shape, hardware, constants), cache, CACHE_HELD)
        case _:
            inside = warm * held(shape.latent_bytes, cache, CACHE_HELD)
    return replace(shape, cold=1.0 - inside + inside / constants["l2_speedup"])
