"""The groups of the options, and what tests turn beside an option of them."""

from typing import Any

from roofline.core.options import Kind, Option

WORKLOAD, FORMATS, KERNELS, PARALLELISM, ENGINE, COUNTING = (
    "Workload",
    "Formats",
    "Kernels and techniques",
    "Parallelism",
    "Engine, memory and price",
    "Counting",
)

EXPERTS = {"model": "mixtral-8x7b", "tp": "2"}
IMAGES = {"model": "qwen2.5-vl-7b", "images": "1"}


def setting(help: str, kind: Kind, field: str, short: str, group: str = ENGINE, **more: Any) -> Option:
    """A setting of the engine, or another field of `Settings`."""
    return Option(help, kind, group, ("settings", field), short=short, **more)
