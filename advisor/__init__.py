"""What to change, what it gains and what it costs: every recommendation is simulated, none is a rule of thumb.

In: a `Scenario`, or a `Service` with its rate and targets, and a `Goal`. Out: an `Advice` (recommendations and a plan),
a `Sizing` (hardware, number of devices and configuration), or a `Decision` (the alternatives of one choice). `search/`
tries combinations, `rules/` explains them, `sizing/` chooses hardware, `choosing/` one thing of a deployment.
"""

from typing import TYPE_CHECKING

from roofline.advisor.search.goal import Goal, Limits, Objective, Quality
from roofline.core.lazy import lazy
from roofline.techniques.base import Price

if TYPE_CHECKING:
    from roofline.advisor.advice import Advice, Recommendation, advise
    from roofline.advisor.choosing.decision import Decision, choose
    from roofline.advisor.search.plan import Plan
    from roofline.advisor.sizing.sizing import Sizing, size
    from roofline.advisor.sizing.workload import Service

__all__ = [
    "Advice",
    "Decision",
    "Goal",
    "Limits",
    "Objective",
    "Plan",
    "Price",
    "Quality",
    "Recommendation",
    "Service",
    "Sizing",
    "advise",
    "choose",
    "size",
]

__getattr__ = lazy(__name__)
