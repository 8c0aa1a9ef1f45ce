"""Scores of simulated memory footprints: weights, and the KV cache capacity of serving engines.

`python -m lab.score.footprints FILE` prints measured and simulated values of every row, and the errors. A
file has the columns model, hardware, num_gpus, engine, precision_weights, precision_kv, metric, value, unit, source.
Rows that cannot be simulated are listed.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from lab.command import run_command
from roofline.core.errors import RooflineError, quote
from roofline.core.units import GIB
from roofline.graph.parallel import Parallelism
from roofline.scenario.kv_capacity import Capacity, kv_capacity
from roofline.specs.engine import load_engine
from roofline.specs.hardware import load_hardware
from roofline.specs.reserve import Reserve
from roofline.validate.tables.names import ResolvedHardware, Unmapped, find_hardware, find_model, find_precision
from roofline.validate.tables.text import Line, check_filled, check_known, numbers_above_zero, parse_count, read_lines

COLUMNS = (
    *("model", "hardware", "num_gpus", "engine", "precision_weights", "precision_kv", "metric", "value", "unit"),
    "source",
)

UNITS: Mapping[str, float] = MappingProxyType(
    {"GiB": GIB, "MiB": 2.0**20, "GB": 1e9, "MB": 1e6, "GiB (logged as GB)": GIB, "blocks": 16.0, "tokens": 1.0}
)
"""Bytes, or tokens, of a unit."""


class Quantity(StrEnum):
    """The measured quantity."""

    WEIGHTS = "weights"
    CAPACITY = "KV capacity"
    ACTIVATIONS = "activations"
    CONTEXT = "runtime context"


METRICS: Mapping[str, Quantity | str] = MappingProxyType(
    {
        "weight_file_size": Quantity.WEIGHTS,
        "weights_per_gpu": Quantity.WEIGHTS,
        "weights_loaded": Quantity.WEIGHTS,
        "kv_gpu_blocks_16tok": Quantity.CAPACITY,
        "kv_cache_tokens": Quantity.CAPACITY,
        "kv_cache_available": Quantity.CAPACITY,
        "kv_cache_available_per_gpu": Quantity.CAPACITY,
        "activation_peak_per_gpu": Quantity.ACTIVATIONS,
        "non_torch_memory_per_gpu": Quantity.CONTEXT,
        "gpu_used_after_weight_load": "memory in use, with the runtime's part not separated",
        "non_kv_peak_increase": "memory in use, of which the lengths are not stated",
        "kv_pool": "memory reserved by the user, not the capacity",
        "vram_used_at_2048": "memory in use, with the runtime's part not separated",
        "peak_memory": "memory in use, of which the lengths are not stated",
        "gpu_memory_used": "memory in use, of which the lengths are not stated",
    }
)
"""Known metrics: their quantity, or the reason why they are not scored."""

STATED: Mapping[str, float] = MappingProxyType({"https://github.com/vllm-project/vllm/issues/21348 sglang": 0.93})
"""Memory utilization settings stated in a source (its command line) but not in the file, by source and engine."""

KEPT_ALL_REDUCES = frozenset({"https://github.com/vllm-project/vllm/pull/2031"})
"""Sources whose vLLM kept the inputs of all-reduces of the profiled pass (vLLM issue 2150; fixed five days later)."""

PROFILES = (((2026, 5), "vllm"), ((2025, 3), "vllm-sync"), ((0, 0), "vllm-v0"))
"""vLLM's profile since a year and month: 0.21 counts CUDA graphs, in 0.8 the V1 engine is the default."""

MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")


class Footprint(Struct, frozen=True):
    """A measured and a simulated value: bytes, or tokens of KV cache."""

    line: Line
    quantity: Quantity
    measured: float
    simulated: float

    @property
    def error(self) -> float:
        """Simulated over measured, less one."""
        return self.simulated / self.measured - 1


class Footprints(Struct, frozen=True):
    """The scored rows of a file, and the other rows with the reason."""

    scored: tuple[Footprint, ...]
    unmapped: tuple[tuple[Line, str], ...]


def read_footprints(path: Path) -> list[tuple[Line, float]]:
    """The rows of a file with their values in bytes or tokens; raises SpecError for the first error."""
    where = str(path)
    lines = read_lines(path, COLUMNS)
    check_filled(lines, ("model", "engine", "metric", "value", "unit"), where)
    check_known(lines, "metric", METRICS, where)
    check_known(lines, "unit", UNITS, where)
    values = numbers_above_zero(lines, "value", where)
    return [(line, value * UNITS[line.cells["unit"].strip()]) for line, value in zip(lines, values, strict=True)]


def score_footprints(path: Path) -> Footprints:
    """All rows of a file, simulated or listed with the reason why not."""
    scored: list[Footprint] = []
    unmapped: list[tuple[Line, str]] = []
    for line, measured in read_footprints(path):
        try:
            scored.append(simulate(line, measured))
        except RooflineError as reason:
            unmapped.append((line, str(reason)))
    return Footprints(tuple(scored), tuple(unmapped))


def simulate(line: Line, measured: float) -> Footprint:
    """The simulated value of a row; raises Unmapped."""
    cells = line.cells
    quantity = METRICS[cells["metric"].strip()]
    if not isinstance(quantity, Quantity):
        raise Unmapped(quantity)
    model = find_model(cells["model"])
    named = _device(cells["hardware"], quantity)
    gpus = parse_count(cells["num_gpus"] or "1")
    if not gpus:
        raise Unmapped(f"{quote(cells['num_gpus'])} is no number of GPUs")
    hardware = named.hardware
    precision = find_precision(cells["precision_weights"], cells["precision_kv"], model, hardware, cells["engine"])
    parallel = Parallelism(tensor=gpus)
    if quantity is Quantity.WEIGHTS:
        weights = kv_capacity(model, hardware, precision, parallel, Reserve()).weights
        return Footprint(line, quantity, measured, weights)
    reserve, stated = _reserve(cells)
    if gpus > 1 and cells["source"].strip() in KEPT_ALL_REDUCES:
        tokens = reserve.on(hardware).pass_tokens(model.max_context) or 0
        kept = 2.0 * model.layers * tokens * model.hidden * precision.base.bytes
        reserve = replace(reserve, group_context=reserve.group_context + kept)
    found = kv_capacity(model, hardware, precision, parallel, reserve)
    if quantity is Quantity.CAPACITY:
        in_tokens = cells["unit"].strip() in ("blocks", "tokens")
        _check_share(found, measured * (found.bytes_per_token if in_tokens else 1.0), stated)
        return Footprint(line, quantity, measured, float(found.tokens or 0) if in_tokens else found.cache)
    simulated = found.activations if quantity is Quantity.ACTIVATIONS else found.context
    return Footprint(line, quantity, measured, simulated)


def _device(text: str, quantity: Quantity) -> ResolvedHardware:
    """The accelerator of a row; an H100 for an empty cell, or for "80GB class" (any accelerator of that memory)."""
    if not text.strip() or re.match(r"(1 gpu \()?80 ?gb[- ]class", text.strip().lower()):
        return ResolvedHardware(load_hardware("h100-sxm"), "any accelerator of 80 GB")
    plain = re.sub(r" (?:24|48|64|80)\s?GB$", "", text.strip())
    for name in (text, plain):
        try:
            return find_hardware(name)
        except Unmapped as unknown:
            reason = unknown
    if quantity is Quantity.WEIGHTS:
        return ResolvedHardware(load_hardware("h100-sxm"), "weights do not depend on it")
    raise reason


def _reserve(cells: Mapping[str, str]) -> tuple[Reserve, bool]:
    """The memory reserve of a row's engine, and whether its utilization setting is stated and not the default."""
    engine = cells["engine"].strip().lower()
    stated = STATED.get(f"{cells['source'].strip()} {engine.split()[0]}")
    if engine.startswith("vllm"):
        profile = next(name for since, name in PROFILES if _date(engine) >= since)
        profile = "vllm-sync" if profile == "vllm-v0" and "v1" in engine.split() else profile
    elif engine.startswith("sglang"):
        profile = "sglang"
    else:
        raise Unmapped(f"the memory reserve of {quote(cells['engine'])} is unknown")
    reserve = load_engine(profile).memory
    return (reserve, False) if stated is None else (replace(reserve, utilization=stated), True)


def _date(engine: str) -> tuple[int, int]:
    """Year and month in an engine string like 'vllm apr 2024', zeros where it has none."""
    year = re.search(r"20\d\d", engine)
    month = next((index for index, name in enumerate(MONTHS, 1) if f" {name} " in engine), 0)
    return (int(year[0]) if year else 0), month


def _check_share(found: Capacity, cache: float, stated: bool) -> None:
    """Raise where the measured KV cache and the weights exceed the default utilization, so that another one was set."""
    if not stated and found.weights + cache > found.budget:
        share = (found.weights + cache) / found.visible
        raise Unmapped(f"weights and KV cache take {share:.0%} of the memory: more than the default utilization")


def report(found: Footprints) -> str:
    """Errors by quantity, the scored rows, and the reasons of the others."""
    lines = [f"{'':16} {'rows':>5} {'MAPE':>7} {'median':>7} {'worst':>7} {'bias':>7}"]
    for quantity in Quantity:
        errors = np.array([one.error for one in found.scored if one.quantity is quantity])
        if errors.size:
            sizes = np.abs(errors)
            figures = f"{np.mean(sizes):7.2%} {np.median(sizes):7.2%} {np.max(sizes):7.2%} {np.mean(errors):+7.2%}"
            lines.append(f"{quantity:16} {errors.size:5d} {figures}")
    lines += ["", f"{'row':>4}  {'quantity':16} {'model and formats':40} {'measured':>12} {'simulated':>12}   error"]
    for one in found.scored:
        name = f"{one.line.cells['model']} {one.line.cells['precision_weights']}"
        figures = f"{one.measured:12.5g} {one.simulated:12.5g} {one.error:+7.1%}"
        lines.append(f"{one.line.number:4d}  {one.quantity:16} {name:40.40} {figures}")
    lines += ["", f"Not scored: {len(found.unmapped)} rows"]
    reasons = Counter(reason for _, reason in found.unmapped)
    lines += [f"  {times:3d}  {reason}" for reason, times in reasons.most_common()]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the report of a file; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m lab.score.footprints", description="Memory footprints, simulated.")
    parser.add_argument("footprints", type=Path, help="CSV file of memory footprints")
    return run_command(parser, lambda options: report(score_footprints(options.footprints)) + "\n", arguments)


if __name__ == "__main__":
    sys.exit(main())
