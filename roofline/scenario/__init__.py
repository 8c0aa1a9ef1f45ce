"""A scenario (a model on hardware with a workload) and its analysis.

In: a `Scenario`. Out: an `Analysis` with prefill and decode operator by operator, the whole generation, memory, KV
cache capacity, energy and cost.
"""

from typing import TYPE_CHECKING

from roofline.core.lazy import lazy

if TYPE_CHECKING:
    from roofline.scenario.analysis import Analysis, analyze
    from roofline.scenario.scenario import Scenario
    from roofline.scenario.settings import Settings

__all__ = ["Analysis", "Scenario", "Settings", "analyze"]

__getattr__ = lazy(__name__)
