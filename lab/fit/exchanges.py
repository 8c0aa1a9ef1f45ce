"""Fit the exchanges of expert parallelism to public timings of DeepEP and of TensorRT-LLM's all-to-all on NVLink.

python -m lab.fit.exchanges FOLDER --output hwspecs/calibration

FOLDER has the tables `wideep_deepep_ll`, `wideep_deepep_normal`, `trtllm_alltoall` with the source's columns. The fits
are added to the calibrations of the families and of all hardware. Without --output the errors on GPUs and numbers of
nodes that a fit did not see are printed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from msgspec.structs import replace

from lab.command import run_command
from roofline.core.documents import read_mapping
from roofline.core.files import save_text
from roofline.specs.hardware import load_hardware
from roofline.timing.calibration import Fit
from roofline.timing.calibration_files import parse_document, render
from roofline.timing.kernels import Row, kernel, kernel_regimes, kernel_time
from roofline.validate.fit.calibrate import percentiles, summarise
from roofline.validate.fit.posterior import mode

SOURCE = (
    "ai-dynamo/aiconfigurator at 095f58a, {software}: python -m lab.fit.exchanges FOLDER --output hwspecs/calibration"
)

NODE = 8
"""GPUs of a node in the tables of DeepEP."""

FP8_SCALES = 1 + 4 / 128
"""Bytes of an element in FP8 with a scale in 32 bits for 128."""

ROW_BYTES = {"nvfp4": 0.5625, "fp8": 1.0, "bfloat16": 2.0}
"""Bytes of an element that TensorRT-LLM dispatches; combine returns 16 bits."""

Frame = pd.DataFrame


class Table(NamedTuple):
    """Rows of one kernel and direction: columns of its shape, `hardware`, `nodes` and `seconds`."""

    op: str
    direction: str
    rows: Frame
    software: str


def tables(folder: Path) -> Iterator[Table]:
    """The tables of a folder. Two files that repeat another device's timings to the digit are left out."""
    for name, op in (("wideep_deepep_ll", "deepep_low_latency"), ("wideep_deepep_normal", "deepep_normal")):
        frames = [pd.read_parquet(path) for path in sorted(folder.glob(f"*.{name}.*.parquet"))]
        frame = pd.concat(frames).drop_duplicates([column for column in frames[0] if column != "hardware"])
        for direction in ("dispatch", "combine"):
            yield Table(op, direction, _deepep(frame, direction), "SGLang 0.5.6 to 0.5.12 (DeepEP)")
    found = pd.concat(pd.read_parquet(path) for path in sorted(folder.glob("*.trtllm_alltoall.*.parquet")))
    for source, op in (("NVLinkOneSided", "nvlink_one_sided"), ("NVLinkTwoSided", "nvlink_two_sided")):
        for direction in ("dispatch", "combine"):
            yield Table(
                op, direction, _nvlink(found[found.kernel_source == source], direction), "TensorRT-LLM 1.3.0rc10"
            )


def _deepep(frame: Frame, direction: str) -> Frame:
    low = f"{direction}_avg_t_us" in frame
    spent = frame[f"{direction}_avg_t_us" if low else f"{direction}_transmit_us"]
    if not low:  # counts are exchanged first; over eight nodes the wait for the last rank is in that time
        spent = spent + np.where(frame.node_num < 8, frame[f"{direction}_notify_us"], 0.0)
    row = frame.hidden_size * FP8_SCALES + 16 if direction == "dispatch" else frame.hidden_size * 2.0
    rows = Frame(
        {
            "hardware": frame.hardware,
            "nodes": frame.node_num.astype(float),
            "tokens": frame.num_token.astype(float),
            "row_bytes": row,
            "top_k": frame.num_topk.astype(float),
            "experts": frame.num_experts.astype(float),
            "ranks": NODE * frame.node_num.astype(float),
            "members": float(NODE),
            "sms": 20.0 if low else frame[f"{direction}_sms"].astype(float),
            "seconds": 1e-6 * spent,
        }
    )
    return rows[rows.seconds > 0].reset_index(drop=True)


def _nvlink(frame: Frame, direction: str) -> Frame:
    steps = [f"alltoall_{direction}"] + (["alltoall_prepare"] if direction == "dispatch" else [])
    key = ["hardware", "moe_dtype", "num_tokens", "moe_ep_size", "topk", "num_experts", "hidden_size"]
    summed = frame[frame.op_name.isin(steps)].groupby(key, as_index=False).latency_us.sum()
    width = summed.moe_dtype.map(ROW_BYTES) if direction == "dispatch" else 2.0
    ranks = summed.moe_ep_size.astype(float)
    return Frame(
        {
            "hardware": summed.hardware,
            "nodes": 1.0,
            "tokens": summed.num_tokens.astype(float),
            "row_bytes": summed.hidden_size * width,
            "top_k": summed.topk.astype(float),
            "experts": summed.num_experts.astype(float),
            "ranks": ranks,
            "members": ranks,
            "sms": 20.0,
            "seconds": 1e-6 * summed.latency_us,
        }
    )


COLUMNS = ("tokens", "row_bytes", "top_k", "experts", "ranks", "members", "sms")


def predicted(op: str, direction: str, rows: Frame, parameters: dict[str, float]) -> np.ndarray[Any, Any]:
    """Seconds of every row."""
    found = np.zeros(len(rows))
    for (name, _), part in rows.groupby(["hardware", "nodes"]):
        columns = {column: part[column].to_numpy() for column in COLUMNS}
        row: Row = {"direction": direction, **columns}
        found[part.index] = kernel_time(op, row, load_hardware(str(name)), parameters)
    return found


def fit(op: str, direction: str, rows: Frame) -> dict[str, float]:
    """The constants of least robust error of the logarithm; those that no row tells apart keep their default."""
    rows = rows.reset_index(drop=True)
    parameters = kernel(op).parameters(direction)
    least = np.array([max(one.low, 1e-4 * one.default, 1e-12) for one in parameters])
    most = np.array([one.high for one in parameters])
    start = np.clip([one.default or least[index] * 10 for index, one in enumerate(parameters)], least, most)
    measured = np.log(rows.seconds.to_numpy())

    def errors(point: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        values = dict(zip((one.name for one in parameters), np.exp(point).tolist(), strict=True))
        return np.asarray(np.log(predicted(op, direction, rows, values)) - measured)

    bounds = np.log(least), np.log(most)
    found = mode(errors, lambda point: point[:0], np.log(start), scale=0.1, knee=1.0, bounds=bounds)
    return dict(zip((one.name for one in parameters), np.exp(found).tolist(), strict=True))


def fitted(table: Table, rows: Frame) -> Fit:
    """A fit with the residuals of its rows."""
    rows = rows.reset_index(drop=True)
    parameters = fit(table.op, table.direction, rows)
    errors = np.log(rows.seconds.to_numpy() / predicted(table.op, table.direction, rows, parameters))
    row: Row = {"direction": table.direction, **{name: rows[name].to_numpy() for name in COLUMNS}}
    ranges = {name: (float(rows[name].min()), float(rows[name].max())) for name in kernel(table.op).ranged}
    residuals = {"all": percentiles(errors), **summarise(table.op, errors, kernel_regimes(table.op, row))}
    return Fit(
        table.op,
        table.direction,
        parameters,
        residuals,
        ranges,
        len(rows),
        SOURCE.format(software=table.software),
    )


def _congested(table: Table) -> pd.Series[bool]:
    """Rows of DeepEP's normal kernels over eight nodes: half of the bandwidth that its authors publish there."""
    return (table.rows.nodes >= 8) & (table.op == "deepep_normal")


def families_of(rows: Frame) -> dict[str, Frame]:
    """The rows by family, and all."""
    family = rows.hardware.map(lambda name: load_hardware(name).family)
    return {**{str(name): part for name, part in rows.groupby(family)}, "pooled": rows}


def held_out(table: Table) -> Iterator[str]:
    """The errors on each GPU and each number of nodes or ranks that a fit did not see."""
    rows, own = table.rows, load_hardware
    by = "nodes" if rows.nodes.nunique() > 1 else "ranks"
    for name, keys in (("GPU", rows.hardware), (by, rows[by])):
        for value in sorted(keys.unique()):
            seen = rows[keys != value]
            if name == "GPU":
                seen = seen[seen.hardware.map(lambda one: own(one).family) == own(value).family]
            if len(seen) < 20:
                continue
            part = rows[keys == value].reset_index(drop=True)
            found = predicted(table.op, table.direction, part, fit(table.op, table.direction, seen))
            error = found / part.seconds.to_numpy() - 1
            yield (
                f"{table.op} {table.direction}: {name} {value} held out, {len(part)} rows: median error"
                f" {np.median(np.abs(error)):.1%}, bias {np.median(error):+.1%}"
            )


def main(arguments: Sequence[str] | None = None) -> int:
    """Print held-out errors, or write the calibrations; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m lab.fit.exchanges", description="Fit exchanges of experts.")
    parser.add_argument("folder", type=Path, help="folder of the tables")
    parser.add_argument("--output", type=Path, help="folder of the calibration files")

    def work(options: argparse.Namespace) -> str:
        every = list(tables(options.folder))
        if options.output is None:
            return "\n".join(line for table in every for line in held_out(table))
        fits: dict[str, dict[tuple[str, str], Fit]] = {}
        for table in every:
            for place, rows in families_of(table.rows[~_congested(table)]).items():
                fits.setdefault(place, {})[table.op, table.direction] = fitted(table, rows)
        for place, own in fits.items():
            path = options.output / f"{place}.yaml"
            document = parse_document(read_mapping(path), str(path))
            there = document.calibration
            versions = {name: found for name, found in document.versions.items() if name}
            fits_there = {**document.versions.get("", {}), **own}
            save_text(path, render(replace(there, fits=fits_there), versions, document.members))
        return ""

    return run_command(parser, work, arguments)


if __name__ == "__main__":
    sys.exit(main())
