"""A low-precision roof needs all operands in that precision, and a device that has it."""

from __future__ import annotations

from collections.abc import Iterator

from roofline.advisor.case import LITTLE, Case
from roofline.advisor.formats import Formats
from roofline.advisor.rules import Caution, Finding, Hint, Rule, Said, Vain
from roofline.bound.roof import Bound
from roofline.core.units import si


def look(case: Case) -> Iterator[Said]:
    """Applies to operands narrower than the arithmetic they are multiplied in, as they are and as moves make them."""
    formats = case.formats
    if formats is None:
        return
    share = case.prefill_share * case.bound_share(case.analysis.prefill, Bound.COMPUTE)
    if case.generates:
        share += case.decode_share * case.bound_share(case.decode, Bound.COMPUTE)
    if formats.mixed and share >= LITTLE:
        why = "no narrower arithmetic is on this device" if formats.unsupported else "one narrow operand is not enough"
        yield Finding(
            f"weights of {formats.weights.bits:.3g} bits meet inputs of {formats.inputs.bits:.3g} bits and are"
            f" multiplied in {formats.arithmetic}, under a roof of {si(formats.peak, 'FLOP/s')}: {why}",
            share,
            {"arithmetic of the device": ", ".join(case.hardware.formats)},
        )
        yield Hint(tuple(case.faster_arithmetic), "all operands in fewer bits run under a higher roof")
    for name, after in case.formats_after.items():
        yield from _of_move(case, name, formats, after)


def _of_move(case: Case, name: str, before: Formats, after: Formats) -> Iterator[Said]:
    if "code" in (after.weights.arithmetic, after.kv.arithmetic):
        yield Caution("its format is a table of codes, which takes a kernel that looks them up", (name,))
    if after.weights == before.weights and after.inputs == before.inputs:
        return
    if after.unsupported:
        text = (
            f"{case.hardware.title} has no arithmetic as narrow: they are multiplied in {after.arithmetic}, so that"
            " the bits beyond that save bytes and no arithmetic"
        )
        yield Caution(text, (name,))
        yield Vain((name,), text)
    if (gain := case.gain(name)) < 1:
        yield Vain(
            (name,),
            f"fewer bits are not faster of themselves: weights or activations are converted in every pass, and"
            f" simulated this is {gain:.3g} times as good",
        )


RULE = Rule(
    "low-precision-roof",
    "A low-precision peak needs all operands in that precision and hardware that has it; uniform formats are the"
    " simpler ones, and fewer bits may also be slower.",
    ("yuan R6", "yuan R27", "zhou 9", "miao D10"),
    look,
)
