"""What does not fit: offload, quantise, or more devices, each simulated."""

from __future__ import annotations

from collections.abc import Iterator

from roofline.advisor.case import Case
from roofline.advisor.rules import Finding, Hint, Rule, Said, Vain
from roofline.advisor.search.moves import Kind
from roofline.core.units import si


def look(case: Case) -> Iterator[Said]:
    """Applies where memory does not hold the scenario; where it does, streaming is in vain."""
    memory = case.analysis.memory
    total, capacity = float(memory.total), float(memory.capacity)
    if total <= capacity:
        yield Vain(
            ("placement",), f"everything fits: {si(total, 'B')} of {si(capacity, 'B')}, nothing need be streamed"
        )
        return
    ways: dict[str, tuple[float, str]] = {}
    fitting: list[str] = []
    for move, trial in case.offered(Kind.TECHNIQUE, Kind.PARALLELISM):
        if trial.used["capacity"] <= 1 and case.goal.quality.allows(trial.price):
            fitting.append(move.name)
            entry = (case.gain(move.name), move.name)
            ways[move.slot] = max(ways.get(move.slot, entry), entry)
    yield Finding(
        f"it does not fit: {si(total, 'B')} on a device of {si(capacity, 'B')}",
        1 - capacity / total,
        {
            "weights": si(float(memory.weights), "B"),
            "cache": si(float(memory.kv_cache), "B"),
            **{f"with {name}": f"fits, {ratio:.3g} times as good" for ratio, name in ways.values()},
        },
        of="memory",
    )
    if fitting:
        told = ", ".join(
            f"{name} ({ratio:.3g} times as good)" for ratio, name in sorted(ways.values(), reverse=True)[:3]
        )
        yield Hint(
            tuple(fitting),
            f"makes {si(total, 'B')} fit on devices of {si(capacity, 'B')}; the best of each kind: {told}",
        )


RULE = Rule(
    "offloading",
    "What does not fit is offloaded, quantised or spread over more devices: simulate each.",
    ("zhou 23", "miao D6"),
    look,
)
