"""What the drawings of a scenario need beside its document: the roofs, and the layout of the network diagram.

The diagram has sections, the operators of each in rows, and the tensors between them.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import numpy as np

from roofline import Analysis
from roofline.graph.op import Op
from roofline.reports.output.export import printable
from roofline.scenario.phase import Phase

MAX_OPS = 160
"""Maximum number of operators of a phase in a diagram; those that take longest are kept."""


def roofs(answer: Analysis) -> dict[str, Any]:
    """The bandwidth (B/s), and [name, peak in FLOP/s] of each format in use, the highest first."""
    phases = [phase for phase in (answer.prefill, answer.decode) if phase is not None]
    hardware = answer.scenario.hardware
    ordered = hardware.roofs((op.arithmetic, float(np.max(op.attainable))) for phase in phases for op in phase.ops)
    return {"bandwidth": hardware.memory_bandwidth, "peaks": [list(entry) for entry in ordered]}


def kept(phase: Phase) -> list[int]:
    """Indices of the operators shown: the `MAX_OPS` with the largest share."""
    if len(phase.ops) <= MAX_OPS:
        return list(range(len(phase.ops)))
    share = [float(np.max(op.share)) for op in phase.ops]
    return sorted(sorted(range(len(share)), key=lambda place: (-share[place], place))[:MAX_OPS])


def rows_of(phase: Phase, places: Sequence[int]) -> list[dict[str, Any]]:
    """The sections of a phase with the operators at `places`, referred to by index into `places`.

    An operator is in a row below all operators that it reads from; an edge is a tensor written by one operator and read
    by another.
    """
    ops = phase.ops
    indices = {place: index for index, place in enumerate(places)}
    sections = []
    for (section, count), group in groupby(
        places, key=lambda place: (ops[place].section, float(np.ravel(ops[place].count)[0]))
    ):
        members = list(group)
        edges = _edges([ops[place].op for place in members])
        depth = [0] * len(members)
        for start, end in sorted(edges, key=lambda edge: edge[1]):
            depth[end] = max(depth[end], depth[start] + 1)
        rows: list[list[int]] = [[] for _ in range(max(depth) + 1)]
        for member, row in zip(members, depth, strict=True):
            rows[row].append(indices[member])
        sections.append(
            {
                "name": printable(section),
                "count": int(count) if count == int(count) else count,
                "rows": rows,
                "edges": [[indices[members[start]], indices[members[end]]] for start, end in edges],
            }
        )
    return sections


def _edges(ops: Sequence[Op]) -> list[tuple[int, int]]:
    """(writer, reader) of every tensor between operators of a section."""
    writer: dict[str, int] = {}
    found: dict[tuple[int, int], None] = {}
    for index, op in enumerate(ops):
        for tensor in op.reads:
            name = tensor.name.removesuffix("_cache")  # operators read appended cache entries from the cache
            if name in writer:
                found[writer[name], index] = None
        for tensor in op.writes:
            writer[tensor.name] = index
    return list(found)
