"""Scores of kernel predictions: errors by op, format, regime and hardware, with those of the bound alone.

Public benchmarks replay their buffers, so their caches are warm; rows with a column `cache`
(`roofline.validate.tables.rows`) are predicted accordingly.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import asdict, replace
from numpy.typing import NDArray

from roofline.core.errors import RooflineError, UnknownNameError, UnsupportedError
from roofline.specs.hardware import Hardware, load_hardware
from roofline.timing.calibration import Calibration
from roofline.timing.chains import load_calibration
from roofline.timing.kernels import Array, kernel, kernel_regimes
from roofline.timing.kernels.elementwise import PASSES
from roofline.validate.observation import MEASURED, Harness
from roofline.validate.score.errors import Group, check_keys, group_of, grouped
from roofline.validate.tables.implausible import as_computed, believable
from roofline.validate.tables.rows import NONE, Measurements, Origin, by_origin, read_measurements

KEYS = ("op", "format", "regime", "hardware", "engine", "version")
"""The keys to group by."""


class Scored(Struct, frozen=True):
    """Measurements of one op, format and hardware with their predictions in seconds."""

    part: Measurements
    format: str
    hardware: str
    regimes: NDArray[np.int64]
    low: Array
    mid: Array
    high: Array
    bound: Array
    origin: Origin = NONE
    basis: str = ""

    def rows(self, chosen: NDArray[np.bool_]) -> Scored:
        arrays: dict[str, Any] = {
            name: value[chosen] for name, value in asdict(self).items() if isinstance(value, np.ndarray)
        }
        return replace(self, part=self.part.rows(chosen), **arrays)

    @property
    def op(self) -> str:
        return self.part.op

    @property
    def kernel(self) -> str:
        """The source of the kernels, of rows of one; empty where the rows do not state it."""
        return str(self.part.texts("kernel")[0])

    @property
    def cache(self) -> str:
        """`cold` or `warm`, of rows of one of both."""
        return str(self.part.texts("cache")[0]) or "warm"

    @property
    def errors(self) -> Group:
        """The errors of all rows."""
        return group_of({}, self.measured, self.low, self.mid, self.high, self.bound)

    @property
    def by_regime(self) -> Iterator[Scored]:
        """The rows of each regime that has some."""
        for index in range(len(kernel(self.op).regimes.labels)):
            if (chosen := self.regimes == index).any():
                yield self.rows(chosen)

    @property
    def labels(self) -> dict[str, str]:
        """The value of each grouping key, of rows of one regime."""
        names = (self.op, self.format, kernel(self.op).regimes.labels[int(self.regimes[0])], self.hardware)
        return dict(zip(KEYS, (*names, self.origin.engine or "none", self.origin.version or "none"), strict=True))

    @property
    def measured(self) -> Array:
        return self.part.seconds


def predict(
    part: Measurements, hardware: Hardware, calibration: Calibration, origin: Origin = NONE, harness: Harness = MEASURED
) -> Iterator[Scored]:
    """Predictions for measurements of one op on `hardware`, by format, without those the hardware does not support.

    `origin` is the engine and version of the rows, `harness` how they were timed.
    """
    for _, rows in part.formats().items():
        computed = as_computed(rows, hardware)
        columns = computed.columns
        try:
            timed = harness.rows(computed)
            expected = harness.expected(timed, hardware, calibration)
            bound = harness.bound(timed, hardware, cold=True)
        except UnsupportedError:
            continue
        label = "/".join(
            dict.fromkeys(str(rows.frame[name].iloc[0]) for name in ("dtype", "kv_dtype") if name in rows.frame)
        )
        mixed = part.op == "collective" or part.op in PASSES  # one set of constants for all data types
        formats = rows.frame["dtype"].astype(str).to_numpy() if mixed else np.array([label])
        for format in np.unique(formats):
            chosen = np.broadcast_to(formats == format, (len(rows),))
            scored = Scored(
                rows,
                str(format),
                hardware.name,
                kernel_regimes(part.op, columns),
                expected.low,
                expected.mid,
                expected.high,
                bound,
                origin,
                expected.basis,
            )
            yield scored.rows(chosen)


def score(
    parts: Sequence[Measurements],
    hardware: Hardware | None = None,
    calibration: Calibration | None = None,
    by: Sequence[str] = ("op", "format", "regime"),
) -> list[Group]:
    """The errors by the keys in `by`; other keys read `all`.

    Without `hardware`, each row is scored on the accelerator that it names; without `calibration` with the constants of
    the engine and version in its column `software`. Raises RooflineError for an unknown accelerator, or where no row
    has a model.
    """
    check_keys(by, KEYS)
    scored = [
        found
        for part in parts
        for whole, chosen in _by_hardware(part, hardware)
        for origin, rows in by_origin(whole).items()
        for known in [calibration or load_calibration(chosen, engine=origin.engine, version=origin.version)]
        for found in predict(rows, chosen, known, origin)
    ]
    if not scored:
        raise RooflineError("nothing to score: no row has an op and format that the hardware supports")
    return summarise(scored, by)


def _by_hardware(part: Measurements, hardware: Hardware | None) -> Iterator[tuple[Measurements, Hardware]]:
    if hardware is not None:
        yield part, hardware
        return
    for name, rows in part.by_hardware().items():
        try:
            known = load_hardware(name)
        except UnknownNameError as error:
            raise RooflineError(f"{part.where}: {error}; name the hardware to score it as", options=["hw"]) from None
        yield rows, known


def summarise(scored: Sequence[Scored], by: Sequence[str]) -> list[Group]:
    """The errors of scored measurements by group, in order of first appearance."""

    def times(parts: Sequence[Scored]) -> list[Array]:
        names = ("measured", "low", "mid", "high", "bound")
        return [np.concatenate([getattr(part, name) for part in parts]) for name in names]

    return grouped(((part.labels, part) for found in scored for part in found.by_regime), by, KEYS, times)


def score_file(path: Path, hardware: str | None, by: Sequence[str]) -> Mapping[str, Any]:
    """The errors of predictions for the measurements in a file or folder, grouped, for JSON.

    `left_out` says which rows were left out, in words: those that cannot be true.
    """
    device = None if hardware is None else load_hardware(hardware)
    believed = believable(read_measurements(path), device)
    groups = [group.document for group in score(believed.parts, device, by=by)]
    return {"groups": groups, "left_out": believed.left_out}
