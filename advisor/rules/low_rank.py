"""Low-rank factors: fewer weights to load in decode, as few as rank can be cut."""

from __future__ import annotations

from collections.abc import Iterator

from roofline.advisor.case import Case
from roofline.advisor.rules import Caution, Hint, Rule, Said, Vain
from roofline.advisor.search.breakeven import HELPS
from roofline.bound.roof import Bound


def look(case: Case) -> Iterator[Said]:
    """Applies where decode waits for weights; where it reads mostly cache, factors are in vain."""
    if not case.generates:
        return
    weights = case.bytes_share(case.decode, "weight")
    waiting = case.bound_share(case.decode, Bound.MEMORY)
    if weights < 0.5 or waiting < 0.5:
        what = (
            f"only {weights:.0%} of the bytes of a decode step are weights"
            if weights < 0.5
            else "decode waits for compute"
        )
        yield Vain(("rank",), f"{what}: fewer of them hardly matter")
        return
    yield Hint(
        ("rank",), f"decode waits for memory and {weights:.0%} of its bytes are weights, which low rank leaves out"
    )
    gains = {move.slot: case.gain(move.name) for move in case.best}
    if HELPS < gains.get("rank", 0.0) < gains.get("weight format", 0.0):
        yield Caution(
            f"rank can be cut little before answers suffer: at best {gains['rank']:.3g} times here, where fewer bits"
            f" give {gains['weight format']:.3g} times",
            ("rank",),
        )


RULE = Rule(
    "low-rank",
    "Low-rank factors help decode, which loads fewer weights, and modestly: rank can be cut by little.",
    ("zhou 13",),
    look,
)
