"""Inverse questions: the largest or smallest setting that meets targets, found and verified by simulation.

>>> from roofline import load_hardware, load_model
>>> from roofline.whatif.request import Request
>>> from roofline.whatif.solve import Targets, max_batch
>>> request = Request(load_model("llama-3.1-8b"), load_hardware("h100-sxm"), options={"prompt": 2048})
>>> answer = max_batch(request, Targets(tpot=20e-3))
>>> answer.verdict, answer.check.meets, answer.neighbour.meets
('found', True, False)
"""

from roofline.whatif.solve.breakeven import break_even
from roofline.whatif.solve.counts import max_batch, max_context, min_gpus
from roofline.whatif.solve.crossover import Change, Crossover, crossover
from roofline.whatif.solve.device import min_bandwidth, min_memory, min_peak
from roofline.whatif.solve.drafts import max_draft
from roofline.whatif.solve.formats import max_bits, min_bits
from roofline.whatif.solve.load import LoadAnswer, max_concurrency, max_rate
from roofline.whatif.solve.targets import Answer, Check, Figures, Targets, Verdict

__all__ = [
    "Answer",
    "Change",
    "Check",
    "Crossover",
    "Figures",
    "LoadAnswer",
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
    "min_bandwidth",
    "min_bits",
    "min_gpus",
    "min_memory",
    "min_peak",
]
