"""The groups of the options."""

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


def setting(help: str, kind: Kind, field: str, short: str, group: str = ENGINE, **more: Any) -> Option:
    """A setting of the engine, or another field of `Settings`."""
    return Option(help, kind, group, ("settings", field), short=short, **more)
