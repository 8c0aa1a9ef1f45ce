"""Rules about smaller models and shorter passes: pruning, low rank, distillation, early exit, compressed prompts."""

from __future__ import annotations

from collections.abc import Iterator

from roofline.advisor.case import Case
from roofline.advisor.rules import Caution, Finding, Hint, NoBenefit, rule
from roofline.advisor.search.breakeven import HELPS
from roofline.advisor.search.goal import Price, Quality
from roofline.advisor.search.moves import Kind
from roofline.bound.roof import Bound

HALF_THE_LAYERS = "layer-pruning:share=0.5"

SHARED_EXIT = ("skipdecode",)
"""Early-exit techniques in which all sequences of a batch exit at the same layer."""

PARALLEL_OUTPUT = ("skeleton-of-thought", "sgd", "apar")
"""Moves that generate parts of an answer in parallel."""

LONG_PHASE = 0.25
"""Share of the total time from which a phase is worth shortening."""

QUALITY_PRESERVING = (Price.LOSSLESS, Price.ENGINEERING)


@rule("Low-rank factors help decode, which reads fewer weights, but modestly: rank can be reduced little.", "zhou 13")
def low_rank(case: Case) -> Iterator[Finding]:
    """Applies where decode is memory-bound and reads mostly weights."""
    if not case.generates:
        return
    weights = case.bytes_share(case.decode, "weight")
    if weights < 0.5:
        yield NoBenefit(("rank",), f"only {weights:.0%} of the bytes of a decode step are weights")
        return
    if case.bound_share(case.decode, Bound.MEMORY) < 0.5:
        yield NoBenefit(("rank",), "decode is compute-bound: fewer bytes of weights hardly matter")
        return
    yield Hint(("rank",), f"decode is memory-bound and {weights:.0%} of its bytes are weights, which low rank reduces")
    gains = {move.slot: case.gain(move.name) for move in case.best if case.fits}
    if HELPS < gains.get("rank", 0.0) < gains.get("weight format", 0.0):
        yield Caution(
            f"rank can be reduced little before quality degrades: at best {gains['rank']:.3g} times here, where fewer"
            f" bits give {gains['weight format']:.3g} times",
            ("rank",),
        )


@rule(
    "Unstructured sparsity gains nothing on stock hardware; N:M and structured pruning do, at a cost in quality.",
    "yuan R10, zhou 11, miao D11",
)
def sparsity(case: Case) -> Iterator[Finding]:
    """Compares what a pruned model still reads and multiplies."""
    before = case.analysis.prefill
    for name, trial in case.placed_of("weight sparsity", "model size"):
        after = trial.analysis.prefill
        fewer_bytes = float(after.bytes) < float(before.bytes)
        fewer_flops = float(after.flops) < float(before.flops) or after.bound_time < before.bound_time
        if not fewer_bytes and not fewer_flops:
            yield NoBenefit(
                (name,), "unstructured zeros are stored, read and multiplied: dense kernels do not skip them"
            )
            continue
        reason = {
            "n-m-sparsity": "sparse tensor cores skip the N:M zeros",
            "flash-llm": "a special kernel stores only the nonzeros",
        }.get(name, "the matrices become smaller for any kernel")
        yield Hint((name,), reason)
        yield Caution("pruned models lose quality even at low sparsity: evaluate it on your own tasks", (name,))


@rule("A distilled model may have any shape but needs much training: it is another model, not a setting.", "yuan R28")
def distillation(case: Case) -> Iterator[Finding]:
    """Applies where retraining is allowed and a model of half the layers gains when simulated."""
    if case.goal.quality is not Quality.RETRAIN or case.model.layers < 2 or not case.fits:
        return
    student = case.technique(HALF_THE_LAYERS)
    if student is None or (ratio := float(case.goal.gain(case.base.value, student.value))) <= HELPS:
        return
    layers = student.analysis.scenario.model.layers
    yield Hint(
        ("model size", "student"),
        f"a smaller model may have any shape: with {layers} of {case.model.layers} layers it gains {ratio:.3g} times",
    )
    yield Caution(
        f"a distilled model, which gains {ratio:.3g} times here with {layers} instead of {case.model.layers} layers, is"
        " another model: it needs a large training run and an evaluation of its own"
    )


@rule(
    "Early exit gains little where confidence is checked at every layer or sequences of a batch exit at different"
    " layers: prefer few exits shared by the batch, and recompute the KV cache of skipped layers.",
    "yuan R13, zhou 28",
)
def early_exit(case: Case) -> Iterator[Finding]:
    """Applies to techniques that skip layers in decode."""
    if not case.generates:
        return
    for name, trial in case.placed_of("depth"):
        depth = trial.analysis.scenario.settings.depth
        if name.partition(":")[0] in SHARED_EXIT:
            yield Hint((name,), "all sequences of the batch exit at one layer, and no KV cache is missing")
        elif case.batch == 1:
            yield Caution(
                "the gain excludes the exit classifier after each layer and the later computation of the skipped"
                " layers' KV cache: prefer few exits",
                (name,),
            )
        else:
            yield Caution(
                f"a layer is skipped only after all {case.batch} sequences have exited: if tokens exit independently,"
                f" at {depth:.0%} of the layers on average, nearly all steps run deeper, which the gain excludes;"
                " prefer an exit shared by the batch",
                (name,),
            )


@rule(
    "Prompt compression helps prefill; parallel generation of an answer's parts helps decode by sharing its reads.",
    "zhou 17",
)
def input_compression(case: Case) -> Iterator[Finding]:
    """Prompt compression applies where prefill takes time, parallel output where decode does and is memory-bound."""
    prompt = int(case.scenario.prompt)
    if case.prefill_share >= LONG_PHASE:
        yield Hint(
            ("prompt",), f"prefill of {prompt} tokens takes {case.prefill_share:.0%} of the time and scales with them"
        )
    else:
        yield NoBenefit(("prompt",), f"prefill of {prompt} tokens takes {case.prefill_share:.1%} of the time")
    if not case.generates:
        return
    memory_bound = case.bound_share(case.decode, Bound.MEMORY)
    if case.decode_share < LONG_PHASE:
        yield NoBenefit(PARALLEL_OUTPUT, f"decode takes {case.decode_share:.1%} of the time")
    elif memory_bound >= 0.5:
        yield Hint(
            PARALLEL_OUTPUT,
            f"decode takes {case.decode_share:.0%} of the time and is memory-bound: parts of an answer generated in"
            " parallel share its reads",
        )
    else:
        yield NoBenefit(
            PARALLEL_OUTPUT, f"only {memory_bound:.0%} of a decode step is memory-bound: parallel parts share little"
        )


@rule(
    "System and decoding changes preserve the output; compression trades some quality and comes after them.",
    "yuan R11, zhou 26, miao D13",
)
def lossless_first(case: Case) -> Iterator[Finding]:
    """Applies where some move that helps preserves the output."""
    tried = [(move.name, trial) for move, trial in case.offered(Kind.TECHNIQUE)]
    gains = {name: case.gain(name) for name, _ in tried}
    preserving = [
        name for name, trial in tried if trial.price in QUALITY_PRESERVING and gains[name] > HELPS and not trial.missed
    ]
    if not preserving:
        return
    best = max(preserving, key=lambda name: (gains[name], name))
    yield Hint(tuple(preserving), "the output is unchanged and the model is not trained again")
    for name, trial in tried:
        if case.fits and trial.price not in QUALITY_PRESERVING and HELPS < gains[name] <= gains[best]:
            yield Caution(
                f"{best} gains at least as much, {gains[best]:.3g} against {gains[name]:.3g} times, and preserves the"
                " output",
                (name,),
            )
