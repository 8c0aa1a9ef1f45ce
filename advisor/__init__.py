"""What to change, what it gains and what it costs: every recommendation is simulated, none is a rule of thumb."""

from advisor.advice import Advice, Recommendation, advise
from advisor.goal import Goal, Limits, Objective, Price, Quality
from advisor.plan import Plan
from advisor.sizing import Sizing, size
from advisor.workload import Service

__all__ = [
    "Advice",
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
    "size",
]
