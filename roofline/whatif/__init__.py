"""Questions over many scenarios: sweeps, inverse questions, comparisons, sensitivities and explanations.

In: a `Request` (the parts of a scenario before techniques) and what to vary. Out: tables of metrics, solutions,
differences by operator, elasticities, and formulas with their numbers.
"""

from typing import TYPE_CHECKING

from roofline.core.lazy import lazy

if TYPE_CHECKING:
    from roofline.whatif.compare import Waterfall, waterfall
    from roofline.whatif.request import Request
    from roofline.whatif.study import Study, make_study
    from roofline.whatif.sweep import Sweep

__all__ = ["Request", "Study", "Sweep", "Waterfall", "make_study", "waterfall"]

__getattr__ = lazy(
    __name__,
    {
        "compare": "Waterfall waterfall",
        "request": "Request",
        "study": "Study make_study",
        "sweep": "Sweep",
    },
)
