"""Inverse questions: the largest or smallest setting that meets targets, found and verified by simulation.

>>> from roofline import Scenario, solve
>>> answer = solve.max_batch(Scenario("llama-3.1-8b", "h100-sxm", prompt=2048), tpot="20ms")
>>> answer.verdict, answer.check.meets, answer.neighbour.meets
('found', True, False)
"""

from typing import TYPE_CHECKING

from roofline.core.lazy import lazy

if TYPE_CHECKING:
    from roofline.whatif.solve.counts import max_batch, max_context, max_draft, min_gpus
    from roofline.whatif.solve.crossovers import Change, Crossover, Crossovers, break_even, crossover
    from roofline.whatif.solve.device import max_bits, min_bandwidth, min_bits, min_memory, min_peak
    from roofline.whatif.solve.load import LoadAnswer, max_concurrency, max_rate
    from roofline.whatif.solve.sessions import SessionsAnswer, max_sessions
    from roofline.whatif.solve.targets import Answer, Check, Figures, TargetOptions, Targets, Verdict

__all__ = [
    "Answer",
    "Change",
    "Check",
    "Crossover",
    "Crossovers",
    "Figures",
    "LoadAnswer",
    "SessionsAnswer",
    "TargetOptions",
    "Targets",
    "Verdict",
    "break_even",
    "crossover",
    "max_batch",
    "max_bits",
    "max_concurrency",
    "max_context",
    "max_draft",
    "max_rate",
    "max_sessions",
    "min_bandwidth",
    "min_bits",
    "min_gpus",
    "min_memory",
    "min_peak",
]

__getattr__ = lazy(__name__)
