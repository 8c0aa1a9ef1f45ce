"""The command that is called without a name: `roofline MODEL HW`."""

from __future__ import annotations

import shlex
from contextlib import closing, suppress
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from roofline.cli.options import (
    AnswerFormat,
    FormatOption,
    ModelArgument,
    OutputOption,
    RateOption,
    print_document,
    say,
)
from roofline.cli.scenario_options import (
    SCENARIO_OPTIONS,
    DisaggregationOption,
    PrefixHitsOption,
    ProfileOption,
    TiersOption,
    TpotOption,
    TtftOption,
    names_hardware,
    with_scenario_options,
)
from roofline.core.errors import RooflineError, quote
from roofline.scenario.options import STATIC

if TYPE_CHECKING:
    from collections.abc import Sequence


HardwareArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="HW", help="Hardware, also with a count: 2x4090, 8xH200.", show_default=False),
]

UsersOption = Annotated[
    str | None,
    typer.Option("--users", "--concurrency", metavar="N", help="Users with a request in flight each. [default: one]"),
]

NAMES = {name.removesuffix("_") for name in SCENARIO_OPTIONS} - {*STATIC} | {"context"}


@partial(with_scenario_options, names=NAMES)
def answer(
    model: ModelArgument,
    hardware: HardwareArgument = None,
    concurrency: UsersOption = None,
    rate: RateOption = None,
    ttft: TtftOption = None,
    tpot: TpotOption = None,
    prefix_hits: PrefixHitsOption = None,
    disaggregation: DisaggregationOption = None,
    sessions: Annotated[
        int | None, typer.Option(metavar="N", help="Sessions of many turns at once, with their --profile and --tiers.")
    ] = None,
    profile: ProfileOption = None,
    tiers: TiersOption = None,
    format: FormatOption = AnswerFormat.TABLE,
    output: OutputOption = None,
    **options: Any,
) -> None:
    """Answer in a few lines: does it run, how fast, what limits it.

    Whether a model runs on hardware, in which format, on which engine and with what context; its speed for one user, or
    under load with --users, --rate or --sessions; what limits it, the next best change, the cost, and what starts it.
    What is not said is chosen. `roofline MODEL HW` is the same.
    """
    from roofline.core.errors import UnknownNameError
    from roofline.reports.documents.answer import answer_document, verdict_blocks
    from roofline.reports.documents.sentences import WIDTH
    from roofline.reports.output.terminal import terminal
    from roofline.scenario.options import read_options
    from roofline.specs.names import taken
    from roofline.verdict.asked import answer as find

    words = [word for word in (model, *(hardware or ())) if word is not None]
    if hardware and options.get("hw") is not None:
        raise RooflineError("the hardware is given twice", options=["hw"])
    _check_one(words)
    load = {"concurrency": concurrency, "rate": rate, "ttft": ttft, "tpot": tpot, "prefix_hits": prefix_hits}
    load["disaggregation"] = disaggregation

    of_sessions = {"sessions": sessions, "profile": profile, "tiers": tiers}

    def found(name: str | None, device: str | None) -> dict[str, Any]:
        asked = read_options({**options, "model": name, "hw": device or options.get("hw")})
        if any(value is not None for value in of_sessions.values()):
            return _of_sessions(asked, {**load, **of_sessions})
        return answer_document(find(**asked, **load), width=WIDTH if shown is None else shown.width)

    shown = terminal() if format is AnswerFormat.TABLE and output is None else None
    try:
        document = found(model, " ".join(hardware or ()) or None)
    except UnknownNameError:
        meant = _meant(words)
        if meant is None or meant == (model, " ".join(hardware or ())):
            raise
        document = found(*meant)
        say(f"roofline: read as {' on '.join(meant)}", err=True)
    print_document(document, list(verdict_blocks(document)), format, output)
    for sentence in (*document["without_effect"], *taken(ambiguous=True)):  # of others the answer says what was read
        say(f"roofline: {sentence}", err=True)


def _of_sessions(options: dict[str, Any], load: dict[str, Any]) -> dict[str, Any]:
    """The document of an answer to sessions: that of the page, with the next best change. Raises RooflineError."""
    from roofline.advisor.chosen import WEIGHT_OPTIONS
    from roofline.reports.view.documents import verdict
    from roofline.reports.view.questions import Question
    from roofline.reports.view.setups import Specs, opening
    from roofline.serving.load import LENGTHS

    if given := [name for name in ("context", *LENGTHS) if options.get(name) is not None]:
        others = "'roofline serve --sessions' takes others"
        raise RooflineError(f"an answer to sessions has the lengths of their profile: {others}", options=given)
    said = any(options.get(name) for name in WEIGHT_OPTIONS)  # a set-up has what was chosen as if it were asked for
    with closing(Specs()) as specs:
        found = verdict(Question(setups=[opening(options, load)]), specs, better=True, said=said)
    if "unanswered" in found:
        raise RooflineError(found["unanswered"])
    return found


def _check_one(words: Sequence[str]) -> None:
    """Raise RooflineError for hardware without a model, and for hardware of several kinds."""
    from roofline.specs.modelspec import load_model

    devices = [word for word in words if names_hardware(word)]
    if len(words) == len(devices) == 1:
        raise RooflineError(f"{quote(words[0])} is hardware: name a model before it, or see 'roofline specs show'")
    if len(devices) > 1 and len(devices) < len(words):
        model = " ".join(words[: words.index(devices[0])])
        with suppress(RooflineError):
            model = load_model(model).name
        model = shlex.quote(model)
        raise RooflineError(
            f"an answer is of one kind of hardware: 'roofline compare {model} {' '.join(devices)}' compares one user,"
            f" 'roofline choose hardware {model} --hw {','.join(devices)} --users N' many"
        )


def _meant(words: Sequence[str]) -> tuple[str, str] | None:
    """The model and the hardware of words with blanks in either, or the hardware first.

    Where no words name a model, those beside the hardware stand for it, and where none name hardware those after it.
    """
    from roofline.specs.hardware import load_devices
    from roofline.specs.modelspec import load_model

    apart = len(words) == 2  # a model and hardware, as the shell has them, of which one is unknown
    words = [word for word in " ".join(words).split() if word != "on"]
    unknown = None
    for cut in range(len(words) - 1, 0, -1):
        one, other = " ".join(words[:cut]), " ".join(words[cut:])
        for model, hardware in ((one, other), (other, one)):
            with suppress(RooflineError):
                load_devices(hardware)
                unknown = model, hardware
                load_model(model)
                return model, hardware
    if apart or unknown is not None:
        return None if apart else unknown
    for cut in range(len(words) - 1, 0, -1):  # the hardware is not known, and its error names it alone
        with suppress(RooflineError):
            load_model(" ".join(words[:cut]))
            return " ".join(words[:cut]), " ".join(words[cut:])
    return None
