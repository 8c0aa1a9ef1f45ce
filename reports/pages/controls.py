"""The controls of an interactive report and their values, including the requested ones."""

from __future__ import annotations

from itertools import product, starmap
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from roofline.reports.pages.graph import MAX_OPS
from roofline.reports.pages.subjects import Subject
from roofline.whatif.request import Request

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

    request: Request
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

    def at(self, setting: Setting, **options: Any) -> Request:
        """The request at a setting."""
        _, scheme = self.quants[setting.quant]
        request = self.request if scheme is None else quantized(self.request, scheme)
        fusions = flash_fusions(request, self.flashes[setting.flash])
        return request.spread(tensor=self.degrees[setting.tp]).with_options(fusions=fusions, **options)

    def grid(self, setting: Setting) -> Request:
        """The request at a setting over all batches and prompts."""
        return self.at(setting, batch=np.array(self.batches)[:, None], prompt=np.array(self.prompts)[None, :])


def quantized(request: Request, scheme: str) -> Request:
    """The request in the formats of a scheme."""
    return replace(request, formats={"scheme": scheme})


def has_flash(request: Request) -> bool:
    """Whether attention is fused (FlashAttention)."""
    return "attention" in (request.options.get("fusions") or ())


def flash_fusions(request: Request, flash: bool) -> tuple[str, ...]:
    """The fusions of the request with FlashAttention on or off."""
    others = tuple(name for name in request.options.get("fusions") or () if name != "attention")
    return ("attention", *others) if flash else others


def schemes(request: Request) -> list[tuple[str, str | None]]:
    """(label, scheme) of the requested or released formats, then of common formats that the hardware supports."""
    given = {name: text for name, text in request.formats.items() if text is not None}
    precision = request.precision
    own, plain = precision.weights.name, precision.base.name
    label = str(given["scheme"]) if list(given) == ["scheme"] else ", ".join(f"{k} {v}" for k, v in given.items())
    eight = "fp8" if request.hardware.supports("fp8") else "W8A8"
    four = "q4_k_m" if request.engine.name == "llama.cpp" else "awq"
    last = "nvfp4" if request.hardware.supports("nvfp4") else "W4A16KV8"
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
    request, analysis = subject.request, subject.analysis
    flash = has_flash(request)
    attends = any("attention" in (entry.name, str(entry.kind)) for entry in analysis.prefill.ops)
    flashes = (flash, not flash) if attends else (flash,)
    longest = request.model.max_context or PROMPTS[-1]
    prompt = request.options.get("prompt")
    prompt = int(analysis.scenario.prompt if prompt is None else prompt)
    batch = int(request.options.get("batch", 1))
    degree = int(request.degrees.get("tensor", 1))
    operators = min(len(analysis.prefill.ops) + (len(analysis.decode.ops) if analysis.decode else 0), 2 * MAX_OPS)
    batches = _values(BATCHES, batch)
    prompts = _values([value for value in PROMPTS if value <= longest], prompt)
    quants, degrees = schemes(request), _values(DEGREES, degree)
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
    return Controls(request, batches, prompts, tuple(quants), flashes, degrees, *requested)


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
