"""The short answer: whether a model runs on hardware, how fast, what limits it, what would help, and how to start it.

In: a model, hardware, a number of users or a rate, and any further options. Out: a `Verdict`, with the `Plan` that was
chosen where nothing was said: engine, formats and layout.
"""

from typing import TYPE_CHECKING

from roofline.core.lazy import lazy

if TYPE_CHECKING:
    from roofline.advisor.planned import Plan
    from roofline.verdict.asked import answer
    from roofline.verdict.verdict import Verdict

__all__ = ["Plan", "Verdict", "answer"]

__getattr__ = lazy(__name__)
