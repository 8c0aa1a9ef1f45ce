"""Questions over many scenarios: sweeps, inverse questions, comparisons, sensitivities and explanations.

In: a `Scenario` and what to vary. Out: tables of metrics, solutions, differences by operator, elasticities, and
formulas with their numbers.
"""

from typing import TYPE_CHECKING

from roofline.core.lazy import lazy

if TYPE_CHECKING:
    from roofline.whatif import solve
    from roofline.whatif.comparison import Comparison, Waterfall, compare, waterfall
    from roofline.whatif.explanation import Explanation, explain
    from roofline.whatif.frontiers import Frontier, frontier
    from roofline.whatif.sensitivities import Sensitivities, Sensitivity, sensitivity
    from roofline.whatif.study import Study, make_study
    from roofline.whatif.sweeps import Sweep, sweep

__all__ = [
    "Comparison",
    "Explanation",
    "Frontier",
    "Sensitivities",
    "Sensitivity",
    "Study",
    "Sweep",
    "Waterfall",
    "compare",
    "explain",
    "frontier",
    "make_study",
    "sensitivity",
    "solve",
    "sweep",
    "waterfall",
]

__getattr__ = lazy(__name__)
