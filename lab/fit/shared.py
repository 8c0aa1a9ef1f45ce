"""One calibration for several accelerators: a family, or all of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from roofline.specs.hardware import Hardware
from roofline.timing.calibration import Calibration, Fit, Source
from roofline.validate.fit.calibrate import MIN_ROWS, SAMPLE, describe, fit_rows, sample, start_of
from roofline.validate.observation import MEASURED, Harness
from roofline.validate.tables.rows import Measurements, by_op


def drawn(part: Measurements, count: int, seed: int) -> Measurements:
    """At most `count` rows, drawn uniformly."""
    return part.rows(np.sort(np.random.default_rng(seed).permutation(len(part))[:count]))


def fit_shared(
    name: str,
    members: Sequence[tuple[Hardware, Sequence[Measurements]]],
    prior: Calibration | None = None,
    seed: int = 0,
    source: Source | None = None,
    min_rows: int = MIN_ROWS,
    free: bool | None = None,
    harness: Harness = MEASURED,
) -> Calibration:
    """One calibration for several accelerators: a family, or all of them (pooled).

    Its residuals are those of each accelerator predicted from the others, so that the intervals hold for hardware
    without measurements. A family of one has its own residuals, too narrow for others; see `widen`. Formats with fewer
    than `min_rows` rows are left to the `prior`; `free` is as in `fit_rows`.
    """
    gathered: dict[tuple[str, str], list[tuple[Measurements, Hardware]]] = {}
    for hardware, parts in members:
        for op, part in by_op(parts).items():
            for format, rows in part.formats().items():
                chosen = sample(rows, max(600, SAMPLE * 2 // len(members)), seed)
                gathered.setdefault((op, format), []).append((chosen, hardware))
    fits: dict[tuple[str, str], Fit] = {}
    for (op, format), together in sorted(gathered.items(), key=lambda item: item[0]):
        start = start_of(op, format, prior, fits, harness)
        if prior is not None and sum(len(part) for part, _ in together) < min_rows:
            continue
        fits[op, format] = replace(fit_rows(op, format, together, start, seed, free, harness), held_out=True)
    software = [part for _, parts in members for part in parts]
    return Calibration(name, "pooled" if name == "pooled" else "family", fits, source or describe(software))


def widen(calibration: Calibration, wider: Calibration) -> Calibration:
    """`calibration` with the residuals of `wider` where it has them, for a family with a single measured member."""
    fits = {}
    for key, own in calibration.fits.items():
        other = wider.fits.get(key)
        fits[key] = own if other is None else replace(own, residuals={**own.residuals, **other.residuals})
    return replace(calibration, fits=fits)
