"""The controls of an interactive report and their values, including the requested ones."""

from __future__ import annotations

from itertools import product, starmap
from typing import Any

import numpy as np
from msgspec import Struct

from roofline.reports.pages.graph import MAX_OPS
from roofline.reports.pages.subjects import Subject
from roofline.scenario.options import FORMATS, of_group
from roofline.scenario.scenario import Scenario

BATCHES = (1, 4, 16, 64, 256)
PROMPTS = (128, 512, 2048, 8192, 32768)
DEGREES = (1, 2, 4, 8)

NUMBERS = 900_000
"""Maximum number of operator figures of a page, which keeps it below 3 MB and fast to build."""

SIZES = ((6, 6, 4, 4), (5, 5, 4, 3), (5, 5, 3, 3), (4, 4, 3, 2), (3, 3, 2, 2), (2, 2, 2, 1), (1, 1, 1, 1))
"""Numbers of values of batch, prompt, quantization and tensor parallelism, from most to fewest."""

_PER_POINT, _PER_OPERATOR = 9, 100
"""Figures of an operator per batch and prompt, and its fixed size per setting in the same unit."""


class Setting(Struct, frozen=True):
    """Indices into the values of the controls that need separate analyses."""

    quant: int
    flash: int
    tp: int


class Controls(Struct, frozen=True):
    """The values of each control of a scenario, and the requested ones.

    `quants` are (label, scheme), with scheme None for the requested formats.
    """

    scenario: Scenario
    batches: tuple[int, ...]
    prompts: tuple[int, ...]
    quants: tuple[tuple[str, str | None], ...]
    flashes: tuple[bool, ...]
    degrees: tuple[int, ...]
    requested: Setting
    requested_batch: int
    requested_prompt: int

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of batches and prompts, the grid of one analysis."""
        return len(self.batches), len(self.prompts)

    @property
    def settings(self) -> list[Setting]:
        """Every combination of the other controls."""
        return list(starmap(Setting, product(*(range(len(v)) for v in (self.quants, self.flashes, self.degrees)))))

    def at(self, setting: Setting, **options: Any) -> Scenario:
        """The scenario at a setting."""
        _, scheme = self.quants[setting.quant]
        scenario = self.scenario if scheme is None else quantized(self.scenario, scheme)
        return scenario.with_(flash=self.flashes[setting.flash], tp=self.degrees[setting.tp], **options)

    def grid(self, setting: Setting) -> Scenario:
        """The scenario at a setting over all batches and prompts."""
        return self.at(setting, batch=np.array(self.batches)[:, None], prompt=np.array(self.prompts)[None, :])


def quantized(scenario: Scenario, scheme: str) -> Scenario:
    """The scenario in the formats of a scheme."""
    return scenario.without(*of_group(FORMATS)).with_(quant=scheme)


def has_flash(scenario: Scenario) -> bool:
    """Whether attention is fused (FlashAttention)."""
    return "attention" in scenario.plain.fusions


def schemes(scenario: Scenario) -> list[tuple[str, str | None]]:
    """(label, scheme) of the requested or released formats, then of common formats that the hardware supports."""
    given = {name: text for name, text in scenario.formats.items() if text is not None}
    precision = scenario.plain.precision
    own, plain = precision.weights.name, precision.base.name
    label = str(given["scheme"]) if list(given) == ["scheme"] else ", ".join(f"{k} {v}" for k, v in given.items())
    eight = "fp8" if scenario.hardware.supports("fp8") else "W8A8"
    four = "q4_k_m" if scenario.profile.name == "llama.cpp" else "awq"
    last = "nvfp4" if scenario.hardware.supports("nvfp4") else "W4A16KV8"
    others = [("W16", plain), *((scheme, scheme) for scheme in (eight, four, last))]
    found: list[tuple[str, str | None]] = [(label or own, None)]
    known = {(label or own).lower()}
    for scheme, name in others:
        if name.lower() not in known:
            found.append((name, scheme))
            known.add(name.lower())
    return found


def controls(subject: Subject, reports: int = 1) -> Controls:
    """The controls of a scenario, with as many values as fit on a page with `reports` scenarios."""
    scenario, analysis = subject.scenario, subject.analysis
    flash = has_flash(scenario)
    attends = any("attention" in (entry.name, str(entry.kind)) for entry in analysis.prefill.ops)
    flashes = (flash, not flash) if attends else (flash,)
    longest = scenario.model.max_context or PROMPTS[-1]
    prompt, batch = int(scenario.plain.prompt), int(scenario.plain.batch)
    degree = int(scenario.degrees.get("tensor", 1))
    operators = min(len(analysis.prefill.ops) + (len(analysis.decode.ops) if analysis.decode else 0), 2 * MAX_OPS)
    batches = _values(BATCHES, batch)
    prompts = _values([value for value in PROMPTS if value <= longest], prompt)
    quants, degrees = schemes(scenario), _values(DEGREES, degree)
    for sizes in SIZES:
        counts = [
            min(size, len(values)) for size, values in zip(sizes, (batches, prompts, quants, degrees), strict=True)
        ]
        settings, points = counts[2] * counts[3] * len(flashes), counts[0] * counts[1]
        if settings * operators * (points * _PER_POINT + _PER_OPERATOR) * reports <= NUMBERS:
            break
    batches, prompts = _thinned(batches, batch, counts[0]), _thinned(prompts, prompt, counts[1])
    degrees, quants = _thinned(degrees, degree, counts[3]), quants[: counts[2]]
    requested = Setting(0, 0, degrees.index(degree)), batches.index(batch), prompts.index(prompt)
    return Controls(scenario, batches, prompts, tuple(quants), flashes, degrees, *requested)


def _values(usual: Any, requested: int) -> tuple[int, ...]:
    return tuple(sorted({*usual, requested}))


def _thinned(values: tuple[int, ...], requested: int, count: int) -> tuple[int, ...]:
    """`count` of the values, spread evenly, including the requested one."""
    if len(values) <= count:
        return values
    picked = {round(place) for place in np.linspace(0, len(values) - 1, count).tolist()}
    place = values.index(requested)
    if place not in picked:
        picked.remove(min(picked, key=lambda other: abs(other - place)))
        picked.add(place)
    return tuple(values[index] for index in sorted(picked))
