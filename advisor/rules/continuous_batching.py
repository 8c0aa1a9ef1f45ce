"""A static batch runs until its longest answer ends."""

from __future__ import annotations

from collections.abc import Iterator

from roofline.advisor.case import Case
from roofline.advisor.rules import Caution, Finding, Hint, Rule, Said, Vain
from roofline.advisor.search.goal import Objective


def look(case: Case) -> Iterator[Said]:
    """Applies to a static batch, some of whose sequences end early; one sequence alone is never padded."""
    if not case.generates:
        return
    useful = float(case.scenario.settings.useful)
    if useful < 1:
        yield Finding(
            f"{1 - useful:.0%} of the tokens generated pad sequences that have ended, until the longest does",
            case.decode_share * (1 - useful),
            {"tokens wanted of those generated": f"{useful:.0%}"},
        )
        yield Hint(
            ("continuous-batching",),
            f"answers of uneven length leave {1 - useful:.0%} of a static batch's work without use",
        )
        if case.goal.objective in (Objective.TTFT, Objective.TPOT, Objective.TOTAL):
            yield Caution("steps are as fast in a static batch: it is throughput that its ended sequences cost")
    elif case.batch == 1:
        yield Vain(("continuous-batching",), "a single sequence is padded by no other")


RULE = Rule(
    "continuous-batching",
    "Answers of uneven length want continuous batching; a static batch is for few sequences and the smallest latency.",
    ("yuan R16", "miao D15", "zhou 24"),
    look,
)
