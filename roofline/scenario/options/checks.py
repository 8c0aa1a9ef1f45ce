"""Checks and names of option values that are made of several parts; imported when a value is read."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from roofline.graph.fusion import FUSIONS, check_fusions
from roofline.scenario.catalogue import catalogue
from roofline.scenario.lengths import parse_lengths
from roofline.specs.precision import SCHEMES, parse_precision

NOTATIONS = ("W8A8", "W4A16", "W8A16", "W4A8", "W4A16KV8", "W16A16")
"""Schemes by bits, beside the named ones."""


def _format(text: str, part: str) -> None:
    """Raise RooflineError for what is no format of a part of the precision."""
    parse_precision("bf16", **{part: text})


scheme, weights, activations, kv = (partial(_format, part=part) for part in ("scheme", "weights", "activations", "kv"))
prompt, generate = (partial(parse_lengths, what=name) for name in ("prompt", "generate"))


def fusion(name: str) -> None:
    """Raise UnknownNameError for what is no fusion."""
    check_fusions([name])


def fusions() -> Iterable[str]:
    """The fusions but FlashAttention, which is the option `flash`."""
    return (name for name in FUSIONS if name != "attention")


def technique(written: str) -> str:
    """The slot of a technique; raises RooflineError."""
    return catalogue().slot(written)


def techniques() -> Iterable[str]:
    """The names of all techniques."""
    return catalogue().names()


def schemes() -> Iterable[str]:
    """The quantization schemes."""
    return (*SCHEMES, *NOTATIONS)
