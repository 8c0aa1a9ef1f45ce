"""Splitting matrices over devices: within a node, over fast links, and while each is left with enough to do."""

from __future__ import annotations

from collections.abc import Iterator

from roofline.advisor.case import LITTLE, Case, link_text
from roofline.advisor.rules import Caution, Finding, Hint, Rule, Said, Vain
from roofline.advisor.search.trials import Trial
from roofline.core.errors import RooflineError
from roofline.core.units import seconds
from roofline.scenario.analysis import Analysis
from roofline.scenario.phase import OpFigures, Phase
from roofline.specs.hardware import Span


def look(case: Case) -> Iterator[Said]:
    """Applies where devices exchange results, as it is or after a move of parallelism."""
    analysis = case.analysis
    if analysis.parallel.tensor > 1:
        yield from _bound_by_link(case, analysis)
    for name, trial in case.trials_of("parallelism"):
        parallel = trial.analysis.parallel
        if parallel.tensor > max(analysis.parallel.tensor, 1):
            yield from _tensor(case, name, trial)
        if parallel.pipeline > 1:
            yield from _pipeline(case, name, trial)


def _exchanges(op: OpFigures) -> bool:
    """Whether devices put results together; what experts exchange is another matter (`expert_routing`)."""
    return float(op.link_bytes) > 0 and not op.op.exchange


def _bound_by_link(case: Case, analysis: Analysis) -> Iterator[Said]:
    first = case.parts_share(analysis.prefill, _exchanges)
    then = case.parts_share(case.decode, _exchanges) if case.generates else 0.0
    share = case.prefill_share * first + case.decode_share * then
    if share >= LITTLE:
        yield Finding(
            f"exchanges between {analysis.parallel.tensor} tensor-parallel devices over"
            f" {link_text(analysis, _span(analysis))} take {share:.0%} of the time",
            share,
            {"of prefill": f"{first:.0%}", "of a decode step": f"{then:.0%}"},
        )


def _tensor(case: Case, name: str, trial: Trial) -> Iterator[Said]:
    analysis = trial.analysis
    phase = _phase(case, analysis)
    share = case.parts_share(phase, _exchanges)
    whole = float(phase.expected.mid)
    text = (
        f"each of {analysis.parallel.tensor} devices is left with {seconds(whole * (1 - share))} of its own work in a"
        f" {phase.name} pass and exchanges for {seconds(whole * share)} over {link_text(analysis, _span(analysis))}"
    )
    if share < 0.5 and not _over_host(analysis):
        yield Hint((name,), text)
    yield Vain((name,), text)
    if _span(analysis).across_nodes:
        yield Caution(f"tensor parallelism reaches across nodes here: {text}", (name,))
    elif _over_host(analysis):
        yield Caution(f"no link of their own joins these {analysis.parallel.tensor} devices: {text}", (name,))


def _pipeline(case: Case, name: str, trial: Trial) -> Iterator[Said]:
    parallel = trial.analysis.parallel
    stages = parallel.pipeline
    link = link_text(trial.analysis, parallel.span(parallel.devices // stages + 1))
    if trial.analysis.memory.fits and not case.analysis.memory.fits:
        yield Hint((name,), f"in {stages} stages the model fits, and each token crosses {link} once a stage")
    text = f"a token runs through all {stages} stages one after the other: it comes no sooner for them"
    yield Vain((name,), text)
    if case.decode_stake + case.prefill_stake > LITTLE and not case.goal.batch_varies:
        yield Caution(text, (name,))


def _phase(case: Case, analysis: Analysis) -> Phase:
    """The phase that the objective hangs on more."""
    if case.decode_stake >= case.prefill_stake and analysis.decode is not None:
        return analysis.decode
    return analysis.prefill


def _span(analysis: Analysis) -> Span:
    """How far the tensor-parallel devices reach."""
    return analysis.parallel.span(analysis.parallel.tensor)


def _over_host(analysis: Analysis) -> bool:
    """Whether devices of a node talk over the host's link."""
    try:
        return analysis.scenario.hardware.link(_span(analysis)).scope == "host"
    except RooflineError:
        return False


RULE = Rule(
    "tensor-parallelism",
    "Split matrices within a node and over fast links, not over PCIe and not where each device is left with little to"
    " do; stages of a pipeline are for models beyond a node and make no single token faster.",
    ("yuan R23", "miao D4"),
    look,
)
