"""Zeros help where a kernel skips them."""

from __future__ import annotations

from collections.abc import Iterator

from roofline.advisor.case import Case
from roofline.advisor.rules import Caution, Hint, Rule, Said, Vain

SLOTS = ("weight sparsity", "model size")


def look(case: Case) -> Iterator[Said]:
    """Applies where pruning may be advised: it is told by what the pruned model still reads and multiplies."""
    before = case.analysis.prefill
    for name, trial in case.trials_of(*SLOTS):
        after = trial.analysis.prefill
        fewer_bytes = float(after.bytes) < float(before.bytes)
        fewer_flops = float(after.flops) < float(before.flops) or after.bound_time < before.bound_time
        if not fewer_bytes and not fewer_flops:
            yield Vain(
                (name,),
                "zeros anywhere are stored, read and multiplied as other weights are: dense kernels do not skip them",
            )
            continue
        how = "a pattern that sparse tensor cores skip" if name == "n-m-sparsity" else "smaller matrices for any kernel"
        if name == "flash-llm":
            how = "a kernel of its own that stores only what is not zero"
        yield Hint((name,), f"it leaves {how}")
        yield Caution("pruned models lose quality at low sparsity already: check it on your own tasks", (name,))


RULE = Rule(
    "sparsity",
    "Unstructured zeros gain nothing on stock hardware; N:M patterns and whole structures do, at a cost in quality.",
    ("yuan R10", "zhou 11", "miao D11"),
    look,
)
