"""Measurements that cannot be true: found, counted and left out of fits and scores.

Kernels that failed return early, and a table may time them all the same: some public rows beat the datasheet a hundred
times. A row is left out if it took less than its bound, with a margin for clocks, if many others of its kernel did, if
an extent is zero, or if no kernel model knows its format.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from roofline.core.errors import RooflineError, UnknownNameError, UnsupportedError, quote
from roofline.specs.hardware import Hardware, load_hardware
from roofline.timing.kernels.common import l2_bytes
from roofline.timing.kernels.formats import FORMATS
from roofline.validate.observation import MEASURED, Harness
from roofline.validate.tables.rows import Measurements

MARGIN = 0.85
"""Least measured time over the bound: clocks and bandwidths exceed the datasheet's by a few percent."""

TOO_FAST = "faster than the datasheet allows"

FAILING, LEAST_ROWS = 0.1, 50
"""Share of rows that are too fast from which a kernel failed as a whole, and the rows that tell.

SGLang 0.5.10 on B200 beats the datasheet in 10 to 22% of its rows of one kernel, and in the others the same engine on
GB200 by a factor of three; no other table of a kernel but one has more than 5%.
"""

SPILLED = 8.0
"""Operands of so many times the L2 cannot stay in it."""

WEIGHT_ONLY = {1: "int8_wo", 0: "int4_wo"}
"""The weight-only format by the whole bytes of a weight."""


class Believed(NamedTuple):
    """The rows that can be true, and in words which others were left out."""

    parts: list[Measurements]
    left_out: list[str]


def believable(
    parts: Sequence[Measurements], hardware: Hardware | None = None, harness: Harness = MEASURED
) -> Believed:
    """The rows of `parts` that can be true on `hardware`, or on the hardware that each names.

    Rows of formats that have no kernel model, or that the hardware does not compute in, are left out, too. Rows of
    unknown hardware are kept. Raises RooflineError where no row is left.
    """
    kept, left_out = [], []
    for part in parts:
        reasons = np.full(len(part), "", dtype=object)
        for name, rows in part.by_hardware().items():
            own = (part.frame["hardware"].astype(str) == name).to_numpy()
            reasons[own] = _reasons(rows, hardware, name, harness)
        if part.empty:
            left_out.append(f"{part.where}: {part.empty:,} rows of {part.op} with an extent of zero")
        left_out += [_counted(part, reasons == reason, reason) for reason in dict.fromkeys(filter(None, reasons))]
        if (reasons == "").any():
            kept.append(part.rows(reasons == ""))
    if not kept:
        raise RooflineError(f"nothing to use: {left_out[0] if left_out else 'there are no rows'}")
    return Believed(kept, left_out)


def _reasons(part: Measurements, hardware: Hardware | None, name: str, harness: Harness) -> NDArray[np.object_]:
    """Why each row is left out; "" for those that took as long as their bound demands.

    Operands that the L2 may hold need no memory traffic.
    """
    found = np.full(len(part), "", dtype=object)
    try:
        device = hardware or load_hardware(name)
    except UnknownNameError:
        return found
    position = {row: index for index, row in enumerate(part.frame.index)}
    for format, rows in part.formats().items():
        where = [position[row] for row in rows.frame.index]
        rows = as_computed(rows, device)
        try:
            timed = harness.rows(rows)
            cold, warm = harness.bound(timed, device, cold=True), harness.bound(timed, device)
        except (UnknownNameError, UnsupportedError) as error:
            found[where] = f"in {quote(format)}: {error}"
            continue
        spills = cold * device.memory_bandwidth > SPILLED * l2_bytes(device)
        fast = rows.seconds < MARGIN * np.where(spills, cold, warm)
        found[where] = np.where(fast, TOO_FAST, np.where(_failing(rows, fast), "of kernels that failed for others", ""))
    return found


def _failing(part: Measurements, fast: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """The rows of kernels that cannot have run in FAILING of all their rows: the others are no more believable."""
    names = [name for name in ("software", "kernel", "window") if name in part.frame]
    if not names or not fast.any():
        return np.zeros(len(part), dtype=bool)
    groups = part.frame.groupby(names, observed=True, dropna=False).ngroup().to_numpy()
    counts = np.bincount(groups)
    failing: NDArray[np.bool_] = (np.bincount(groups, weights=fast) >= FAILING * counts) & (counts >= LEAST_ROWS)
    return failing[groups]


def _counted(part: Measurements, chosen: NDArray[np.bool_], reason: str) -> str:
    """Some rows of a file, in words, with the first three."""
    rows = [int(index) + 1 for index in part.frame.index[chosen]]
    shown = ", ".join(map(str, rows[:3])) + (", ..." if len(rows) > 3 else "")
    return f"{part.where}: {len(rows):,} rows of {part.op} {reason} (row {shown})"


def as_computed(part: Measurements, hardware: Hardware) -> Measurements:
    """Rows of GEMMs and experts of one op and format with the format that `hardware` runs them in.

    FP8 GEMMs on GPUs without FP8 read weights of a byte and multiply in BF16; activations stay in 16 bits.
    """
    if part.op not in ("gemm", "moe"):
        return part
    dtype = str(part.frame["dtype"].iloc[0])
    form = FORMATS.get(dtype)
    if form is None or not form.quantizes or hardware.supports(form.arithmetic) or not hardware.supports("bf16"):
        return part
    return Measurements(part.op, part.frame.assign(dtype=WEIGHT_ONLY[int(form.bytes)]), part.where, part.empty)
