"""Figures of sessions: hit rate and throughput over their number, and the time line of one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from roofline.reports.figures.style import BLUE, CATEGORIES, GREEN, ORANGE, VERMILION, new_figure, styled


@styled
def sessions_figure(document: Mapping[str, Any]) -> Figure:
    """The document of `serve --sessions`: curves of several numbers, or the time line of a session of one."""
    points, name = document["points"], document["workload"]["name"]
    title = f"{document['model']} on {document['devices']} {document['hardware']}, sessions ({name})"
    return _curves(points, title) if len(points) > 1 else _time_line(points[0]["example"], title)


def _curves(points: list[Mapping[str, Any]], title: str) -> Figure:
    figure, (hits, rate) = new_figure(title, 2, (11.0, 4.8))
    name = next(iter(points[0]))
    values = [point[name] for point in points]
    tiers = list(points[0]["hits"])
    parts = [[point["hits"][tier] for point in points] for tier in tiers]
    hits.stackplot(values, parts, labels=tiers, colors=CATEGORIES, alpha=0.6)
    low, high = ([point[f"hit_{end}"] for point in points] for end in ("low", "high"))
    hits.fill_between(values, low, high, color="black", alpha=0.12, linewidth=0, label="range")
    hits.plot(values, [point["endless"] for point in points], "k:", linewidth=1, label="endless cache")
    hits.set(xlabel=name.replace("_", " "), ylabel="hit rate of prompt tokens", ylim=(0, 1), xscale="log")
    tokens = [point["input_tokens_per_second"] + point["output_tokens_per_second"] for point in points]
    rate.plot(values, tokens, color=GREEN, marker="o", markersize=3)
    rate.set(xlabel=name.replace("_", " "), ylabel="tokens/s, prompts and outputs", xscale="log")
    rate.set_ylim(bottom=0)
    for panel in (hits, rate):
        panel.set_xticks(values, labels=[f"{value:g}" for value in values], fontsize=8)
        panel.minorticks_off()
    hits.legend(fontsize=8)
    return figure


def _time_line(turns: list[Mapping[str, float]], title: str) -> Figure:
    """Each turn: until its first token, and its output; below the tokens of its prompt, cached and computed."""
    figure, (line, tokens) = new_figure(title, 2, (11.0, 4.8))
    for place, turn in enumerate(turns):
        line.barh(place, turn["first"] - turn["arrival"], left=turn["arrival"], color=VERMILION)
        line.barh(place, turn["last"] - turn["first"], left=turn["first"], color=BLUE)
    line.barh(0, 0, color=VERMILION, label="to the first token")
    line.barh(0, 0, color=BLUE, label="output")
    line.set(xlabel="time (s)", ylabel="turn")
    line.invert_yaxis()
    line.legend(fontsize=8)
    places, hit = np.arange(len(turns)), np.array([turn["hit"] for turn in turns])
    tokens.bar(places, hit, color=GREEN, label="cached")
    tokens.bar(places, [turn["prompt"] for turn in turns] - hit, bottom=hit, color=ORANGE, label="computed")
    tokens.set(xlabel="turn", ylabel="tokens of the prompt")
    tokens.legend(fontsize=8)
    return figure
