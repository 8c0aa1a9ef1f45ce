"""A measured server beside its prediction: `roofline validate server`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from roofline.core.units import seconds
from roofline.reports.output.blocks import Block

TITLES = {"ttft": "TTFT", "tpot": "TPOT", "e2e": "E2E", "throughput": "tokens/s"}


SHORT = 0.9
"""Fraction of the requested tokens below which an answer counts as ended early."""


def server_blocks(document: Mapping[str, Any]) -> list[Block]:
    """Measured and predicted times of each load, how the run ended, and the fitted profile."""
    fit, fitted = document["fit"], document["fit"] is not None
    own = ("fitted", "error") if fitted else ()
    header = ("load", "metric", "measured", "predicted", "80% interval", "error", "inside", *own)
    rows = [row for point in document["points"] for row in _rows(point, fitted)]
    title = f"{document['model']} on {document['hardware']}, {document['engine']}: served as {document['served_model']}"
    lines = [f"Rows: {document['rows']}"]
    if document["ended"]:
        lines.append(f"Ended early, {document['left']} loads left: {document['ended']}")
    short = min((point["output"] for point in document["points"]), default=document["asked_output"])
    if short < SHORT * document["asked_output"]:
        lines.append(
            f"Answers ended early, after {short:.0f} of {document['asked_output']} tokens: decode is less certain"
        )
    blocks = [Block(title, header=header, rows=rows, left=2), Block(lines=lines)]
    if fitted:
        held_out = fit["error_held_out"]
        left = f", {held_out:.1%} for loads held out of it" if held_out is not None else ""
        errors = f"{fit['error_before']:.1%} by the shipped profile, {fit['error_after']:.1%} fitted{left}"
        told = [f"Median error of {fit['loads']} loads: {errors}"]
        for name, change in fit["changed"].items():
            told.append(f"  {name}: {_value(name, change['from'])} to {_value(name, change['to'])}")
        blocks.append(Block(lines=told, commands=[f"roofline serve ... --engine {document['profile']}"]))
    return blocks


def _rows(point: Mapping[str, Any], fitted: bool) -> Iterator[list[str]]:
    lengths = f"{point['prompt']:.0f} in, {point['output']:.0f} out"
    load = f"{point['concurrency']} in flight, {lengths}"
    for figure in point["figures"]:
        metric, measured = figure["metric"], figure["measured_s"]
        row = [load, TITLES[metric], _shown(metric, measured)]
        if (predicted := figure["predicted_s"]) is None:
            yield [*row, *[""] * (6 if fitted else 4)]
            continue
        ends = sorted((predicted["low"], predicted["high"]), reverse=metric == "throughput")
        inside = predicted["low"] <= measured <= predicted["high"]
        row += [_shown(metric, predicted["mid"]), " to ".join(_shown(metric, end) for end in ends)]
        row += [f"{predicted['mid'] / measured - 1:+.1%}", "yes" if inside else "no"]
        own = figure["fitted_s"]
        if fitted and own is not None:
            row += [_shown(metric, own["mid"]), f"{own['mid'] / measured - 1:+.1%}"]
        yield row
        load = ""


def _shown(metric: str, value: float) -> str:
    """A time, or the rate of which it is the reciprocal."""
    return f"{1 / value:,.4g}" if metric == "throughput" else seconds(value)


def _value(name: str, value: float) -> str:
    if name == "sequences":
        return f"{value:.0f}" if value else "no limit"
    return f"{value:.3g}" if name in ("prefill", "decode") else seconds(value)
