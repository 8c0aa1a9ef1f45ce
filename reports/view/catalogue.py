"""What the fields of the live page offer: models, hardware, engines, formats, techniques, and every option."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from roofline.core.units import si
from roofline.graph.convention import Convention
from roofline.graph.fusion import FUSIONS
from roofline.reports.documents.catalogue import techniques
from roofline.reports.documents.listing import hardware, models
from roofline.specs.engine import list_engines, load_engine
from roofline.specs.formats import FORMATS
from roofline.specs.host import list_hosts
from roofline.specs.precision import SCHEMES
from roofline.specs.reserve import MEMORY_READINGS
from roofline.whatif.options import OPTIONS
from roofline.whatif.vllm_options import DTYPES, METHODS

NOTATIONS = ("W8A8", "W4A16", "W8A16", "W4A8", "W4A16KV8", "W16A16")
"""Schemes by bits, beside the named ones."""

ACTIVATIONS = ("bf16", "fp16", "fp32", "fp8", "int8", "nvfp4", "mxfp4")
CACHES = ("bf16", "fp16", "fp8", "int8", "int4", "nvfp4")


@cache
def catalogue() -> dict[str, Any]:
    """The choices of each option as [value, description], and the kind of every option."""
    found = techniques(None, None)
    return {
        "choices": {
            "model": [[entry["name"], _model(entry)] for entry in models()],
            "hw": [[entry["name"], _hardware(entry)] for entry in hardware()],
            "engine": [[name, load_engine(name.partition("@")[0]).title] for name in _engines()],
            "quant": [[name, ""] for name in (*SCHEMES, *NOTATIONS)],
            "weights": [[name, f"{entry.bits:.4g} bits"] for name, entry in FORMATS.items()],
            "activations": [[name, ""] for name in ACTIVATIONS],
            "kv": [[name, ""] for name in CACHES],
            "with": [[entry["name"], entry["title"]] for entry in found if entry["simulated"]],
            "host": [[name, ""] for name in list_hosts()],
            "quantization": [[name, scheme or ""] for name, scheme in METHODS.items()],
            "dtype": [[name, format or ""] for name, format in DTYPES.items()],
            "fuse": [[name, fusion.effect] for name, fusion in FUSIONS.items() if name != "attention"],
            "memory_reading": [[name, ""] for name in MEMORY_READINGS],
            "convention": [[name, ""] for name in Convention],
        },
        "kinds": {name: option.kind.name.lower() for name, option in OPTIONS.items()},
    }


def _engines() -> list[str]:
    """Every engine, and from which versions on its profiles differ."""
    found = []
    for name in list_engines():
        found += [name, *(f"{name}@{start}" for start in reversed(load_engine(name).starts))]
    return found


def _model(entry: Mapping[str, Any]) -> str:
    released = f", {entry['quantization']}" if entry["quantization"] else ""
    return f"{entry['title']}, {si(entry['parameters'])} parameters{released}"


def _hardware(entry: Mapping[str, Any]) -> str:
    return f"{entry['title']}, {si(entry['memory_capacity'], 'B')}, {si(entry['memory_bandwidth'], 'B/s')}"
