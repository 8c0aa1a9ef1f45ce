"""The command that is called without a name: `roofline MODEL HW`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from roofline.cli.options import AnswerFormat, FormatOption, ModelArgument, OutputOption, print_answer, say
from roofline.cli.scenario_options import LOAD_PARAMETERS, SCENARIO_OPTIONS, with_scenario_options
from roofline.core.errors import RooflineError
from roofline.scenario.options import STATIC

if TYPE_CHECKING:
    from collections.abc import Iterable

HardwareArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="HW", help="Hardware, also with a count: 2x4090, 8xH200.", show_default=False),
]

UsersOption = Annotated[
    str | None,
    typer.Option("--users", "--concurrency", metavar="N", help="Users with a request in flight each. [default: one]"),
]
RateOption = Annotated[
    str | None, typer.Option("--rate", metavar="N", help="Requests/s that arrive, such as 4 or 4/s.")
]
TtftOption: Any = LOAD_PARAMETERS["ttft"].annotation
TpotOption: Any = LOAD_PARAMETERS["tpot"].annotation
PrefixHitsOption: Any = LOAD_PARAMETERS["prefix_hits"].annotation


def _offered() -> Iterable[str]:
    return (name.removesuffix("_") for name in SCENARIO_OPTIONS if name.removesuffix("_") not in STATIC)


@partial(with_scenario_options, names=tuple(_offered()))
def answer(
    model: ModelArgument,
    hardware: HardwareArgument = None,
    concurrency: UsersOption = None,
    rate: RateOption = None,
    ttft: TtftOption = None,
    tpot: TpotOption = None,
    prefix_hits: PrefixHitsOption = None,
    format: FormatOption = AnswerFormat.TABLE,
    output: OutputOption = None,
    **options: Any,
) -> None:
    """Answer in a few lines: does it run, how fast, what limits it.

    Whether a model runs on hardware, in which format, on which engine and with what context; its speed for one user, or
    under load with --users or --rate; what limits it, the next best change, the cost, and the command that starts it.
    What is not said is chosen. `roofline MODEL HW` is the same.
    """
    from roofline.scenario.options import read_options
    from roofline.specs.names import taken
    from roofline.verdict.verdict import answer as find

    named = " ".join(hardware or ()) or None
    if named is not None and options.get("hw") is not None:
        raise RooflineError("the hardware is given twice", options=["hw"])
    options["hw"] = named or options.get("hw")
    load = {"concurrency": concurrency, "rate": rate, "ttft": ttft, "tpot": tpot, "prefix_hits": prefix_hits}
    given: dict[str, Any] = read_options({"model": model, **options})
    print_answer(find(**given, **load), format, output)
    for sentence in taken(ambiguous=True):  # of others the answer says what was read
        say(f"roofline: {sentence}", err=True)
