"""Forward passes: each is a network on hardware, its step, and how often it runs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from roofline.bound.roof import Placement
from roofline.graph.extents import Step
from roofline.timing.passes import HostWork


class Pass(NamedTuple):
    """One forward pass of a phase: a network on hardware, its step, and how often it runs (`repeat`).

    `busy` is the fraction of these runs, over all pipeline stages, that have work; the others are pipeline bubbles.
    `host`: what the CPU does before it; drafts, and parts of a pass, follow each other within one step of the engine.
    `slowdown`: its expected time over that of its kernels and its step, where more was measured. `eager`: no CUDA graph
    replays it. `part`: which part of the model's own layers it is; None for other work, such as that of a draft.
    `ranks`: the devices that do its work together, where they are not those of the scenario's parallelism.
    """

    placement: Placement
    step: Step
    repeat: Any = 1.0
    label: str = ""
    busy: Any = 1.0
    host: HostWork = "step"
    slowdown: float = 1.0
    eager: bool = False
    part: int | None = None
    ranks: int = 1


def overlaps(passes: Iterable[Pass]) -> bool:
    """Whether any pass overlaps all-to-alls with computation."""
    return any(run.placement.all_to_alls.size for run in passes)
