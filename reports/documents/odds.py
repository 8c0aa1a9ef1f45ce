"""Verdicts as documents and sentences: how much better, how sure, and what the interval does not know."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from roofline.reports.documents.analysis import interval
from roofline.reports.output.blocks import finite
from roofline.whatif.odds import SURE, Odds

RATIOS: Mapping[str, str] = {
    "throughput": "{ratio} times the tokens/s a device of {second}",
    "latency": "{second} takes {ratio} times as long for a request",
    "total": "{second} takes {ratio} times as long",
    "ttft": "{second} takes {ratio} times as long to the first token",
    "tpot": "{second} takes {ratio} times as long for a token",
    "cost": "{second} costs {ratio} times as much",
}
"""What it means that the first is better, by objective or metric."""


def odds_document(found: Odds) -> dict[str, Any]:
    """The JSON document of a verdict: the gain with its 80% interval, and the probability that it is one."""
    return {
        "gain": finite(interval(found.gain)),
        "probability": finite(found.probability),
        "confidence": found.confidence,
        "doubts": list(found.doubts),
    }


def sure(document: Mapping[str, Any]) -> str:
    """How sure a verdict is, in words with its probability; a probability near 1 is not rounded to it."""
    share = document["probability"]
    told = "over 99%" if share > 0.99 else f"{share:.0%}"
    likely = "likely" if share >= SURE else f"likely, {told}"  # and not sure, as too little is measured for the share
    words = {"sure": f"{told} sure", "likely": likely, "open": f"too close to call, {told}"}
    doubts = document["doubts"]
    unknown = f"; little is measured of {' and '.join(doubts)}" if doubts else ""
    return words[document["confidence"]] + unknown


def sentence(document: Mapping[str, Any], objective: str, first: str, second: str) -> str:
    """One sentence: how many times better the first is than the second, with the interval and how sure."""
    gain = document["gain"]
    ratio = f"{gain['mid']:.3g}" if gain["mid"] >= 1.1 else f"{gain['mid']:.3f}"
    text = RATIOS[objective].format(second=second, ratio=ratio)
    return f"{first}: {text} (80%: {gain['low']:.3g} to {gain['high']:.3g}): {sure(document)}"
