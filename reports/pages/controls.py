"""Knobs: what a reader can turn, and the values that each has, the one that was asked for among them."""

from __future__ import annotations

from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from roofline.reports.pages.subjects import Subject
from roofline.whatif.request import Request

BATCHES = (1, 4, 16, 64, 256)
PROMPTS = (128, 512, 2048, 8192, 32768)
DEGREES = (1, 2, 4, 8)

NUMBERS = 900_000
"""Figures of operators that are worked out at most: pages stay below 3 MB, and take seconds."""

SIZES = ((6, 6, 4, 4), (5, 5, 4, 3), (5, 5, 3, 3), (4, 4, 3, 2), (3, 3, 2, 2), (2, 2, 2, 1), (1, 1, 1, 1))
"""Values of batch, prompt, quantisation and tensor parallelism, from many to few."""

_PER_POINT, _PER_OPERATOR = 9, 100
"""Figures of an operator at each batch and prompt, and what it takes beside in each setting."""


class Setting(Struct, frozen=True):
    """A place of the knobs that need an analysis of their own: an index into the values of each."""

    quant: int
    flash: int
    tp: int


class Knobs(Struct, frozen=True):
    """The values of each knob of a scenario, and which of them was asked for.

    `quants` are (label, scheme), the scheme None for the formats that were asked for.
    """

    request: Request
    batches: tuple[int, ...]
    prompts: tuple[int, ...]
    quants: tuple[tuple[str, str | None], ...]
    flashes: tuple[bool, ...]
    degrees: tuple[int, ...]
    asked: Setting
    asked_batch: int
    asked_prompt: int

    @property
    def shape(self) -> tuple[int, int]:
        """Batches and prompts: what one analysis spans."""
        return len(self.batches), len(self.prompts)

    @property
    def settings(self) -> list[Setting]:
        """Every place of the other knobs."""
        return [
            Setting(quant, flash, degree)
            for quant in range(len(self.quants))
            for flash in range(len(self.flashes))
            for degree in range(len(self.degrees))
        ]

    def at(self, setting: Setting, **options: Any) -> Request:
        """The request with the knobs turned there."""
        _, scheme = self.quants[setting.quant]
        request = self.request if scheme is None else quantised(self.request, scheme)
        fusions = _with_flash(request, self.flashes[setting.flash])
        return request.spread(tensor=self.degrees[setting.tp]).with_options(fusions=fusions, **options)

    def grid(self, setting: Setting) -> Request:
        """The same over all batches and prompts at once."""
        return self.at(setting, batch=np.array(self.batches)[:, None], prompt=np.array(self.prompts)[None, :])


def quantised(request: Request, scheme: str) -> Request:
    """The request in the formats of a scheme alone."""
    return replace(request, formats={"scheme": scheme})


def has_flash(request: Request) -> bool:
    """Whether the attention products are fused."""
    return "attention" in (request.options.get("fusions") or ())


def _with_flash(request: Request, flash: bool) -> tuple[str, ...]:
    others = tuple(name for name in request.options.get("fusions") or () if name != "attention")
    return ("attention", *others) if flash else others


def schemes(request: Request) -> list[tuple[str, str | None]]:
    """The formats that were asked for, or released, then those worth a look on the hardware: (label, scheme)."""
    given = {name: text for name, text in request.formats.items() if text is not None}
    precision = request.precision
    own, plain = precision.weights.name, precision.base.name
    label = str(given["scheme"]) if list(given) == ["scheme"] else ", ".join(f"{k} {v}" for k, v in given.items())
    eight = "fp8" if request.hardware.supports("fp8") else "W8A8"
    four = "q4_k_m" if request.engine_name == "llama.cpp" else "awq"
    last = "nvfp4" if request.hardware.supports("nvfp4") else "W4A16KV8"
    others = [("W16", plain), *((scheme, scheme) for scheme in (eight, four, last))]
    found: list[tuple[str, str | None]] = [(label or own, None)]
    known = {(label or own).lower()}
    for scheme, name in others:
        if name.lower() not in known:
            found.append((name, scheme))
            known.add(name.lower())
    return found


def knobs(subject: Subject, reports: int = 1) -> Knobs:
    """The knobs of a scenario, with as many values as a page of so many `reports` has room for."""
    request, analysis = subject.request, subject.analysis
    flash = has_flash(request)
    attends = any("attention" in (entry.name, str(entry.kind)) for entry in analysis.prefill.ops)
    flashes = (flash, not flash) if attends else (flash,)
    longest = request.model.max_context or PROMPTS[-1]
    batch, prompt = int(request.options.get("batch", 1)), int(_asked_prompt(subject))
    degree = int(request.degrees.get("tensor", 1))
    operators = min(len(analysis.prefill.ops) + (len(analysis.decode.ops) if analysis.decode else 0), 2 * MOST_OPS)
    batches = _values(BATCHES, batch)
    prompts = _values([value for value in PROMPTS if value <= longest], prompt)
    quants, degrees = schemes(request), _values(DEGREES, degree)
    for sizes in SIZES:
        room = [
            min(size, have) for size, have in zip(sizes, map(len, (batches, prompts, quants, degrees)), strict=True)
        ]
        settings, points = room[2] * room[3] * len(flashes), room[0] * room[1]
        if settings * operators * (points * _PER_POINT + _PER_OPERATOR) * reports <= NUMBERS:
            break
    batches, prompts = _near(batches, batch, room[0]), _near(prompts, prompt, room[1])
    degrees, kept = _near(degrees, degree, room[3]), quants[: room[2]]
    return Knobs(
        request,
        batches,
        prompts,
        tuple(kept),
        flashes,
        degrees,
        Setting(0, 0, degrees.index(degree)),
        batches.index(batch),
        prompts.index(prompt),
    )


MOST_OPS = 160
"""Operators of a phase that are embedded: of more, those that take longest."""


def _asked_prompt(subject: Subject) -> int:
    prompt = subject.request.options.get("prompt")
    return int(subject.analysis.scenario.prompt if prompt is None else prompt)


def _values(usual: Any, asked: int) -> tuple[int, ...]:
    return tuple(sorted({*usual, asked}))


def _near(values: tuple[int, ...], asked: int, count: int) -> tuple[int, ...]:
    """So many of the values, spread evenly, the one asked for among them."""
    if len(values) <= count:
        return values
    picked = {round(place) for place in np.linspace(0, len(values) - 1, count).tolist()}
    place = values.index(asked)
    if place not in picked:
        picked.remove(min(picked, key=lambda other: abs(other - place)))
        picked.add(place)
    return tuple(values[index] for index in sorted(picked))
