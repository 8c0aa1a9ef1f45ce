"""What to change, what it gains and what it costs: every recommendation is simulated, none is a rule of thumb."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from advisor.goal import Goal, Limits, Objective, Price, Quality

if TYPE_CHECKING:
    from advisor.advice import Advice, Recommendation, advise
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

_LATER = {
    "Advice": "advice",
    "Recommendation": "advice",
    "advise": "advice",
    "Plan": "plan",
    "Sizing": "sizing",
    "size": "sizing",
    "Service": "workload",
}
"""An advice needs nothing of a sizing, nor the other way round: each is imported when it is asked for."""


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"advisor.{_LATER[name]}"), name)
