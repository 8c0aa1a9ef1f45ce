"""The options of a scenario and of a load on the command line, made from the tables, and commands that take them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from functools import cache, wraps
from typing import TYPE_CHECKING, Annotated, Any

import typer

from roofline.cli.engine_flags import EngineFlags
from roofline.cli.options import ModelArgument
from roofline.core.errors import RooflineError, quote
from roofline.core.options import Kind, Option
from roofline.scenario.options import FORMATS, KERNELS, NEEDED, OPTIONS, find_option, of_group, read_options
from roofline.serving.options import LOAD_OPTIONS
from roofline.serving.sessions.options import SESSION_OPTIONS

if TYPE_CHECKING:
    from roofline.scenario.scenario import Scenario


def _parameter(option: Option) -> inspect.Parameter:
    """An option as a parameter of a command, None where it is not given; a switch has `--no-` as well."""
    if option.name == "model":
        return inspect.Parameter("model", inspect.Parameter.KEYWORD_ONLY, annotation=ModelArgument)
    switch = option.kind is Kind.SWITCH
    flag = f"{option.flag}/--no-{option.flag.removeprefix('--')}" if switch else option.flag
    type_: Any = bool if switch else list[str] if option.kind is Kind.LIST else str
    told = f"{option.help} [default: {option.default}]" if option.default else option.described
    shown: dict[str, Any] = {"metavar": option.metavar or None, "rich_help_panel": option.group, "show_default": False}
    declared = typer.Option(flag, help=told, **shown)
    needed = option.name in NEEDED
    return inspect.Parameter(
        f"{option.name}_" if option.name == "with" else option.name,  # Python reserves `with`
        inspect.Parameter.KEYWORD_ONLY,
        default=inspect.Parameter.empty if needed else None,
        annotation=Annotated[type_ if needed else type_ | None, declared],
    )


SCENARIO_OPTIONS: Mapping[str, inspect.Parameter] = {entry.name: entry for entry in map(_parameter, OPTIONS.values())}
"""The options of a scenario as parameters of a command, by name."""

LOAD_PARAMETERS: Mapping[str, inspect.Parameter] = {
    entry.name: entry for entry in map(_parameter, LOAD_OPTIONS.values())
}
"""The options of a load likewise."""

SESSION_PARAMETERS: Mapping[str, inspect.Parameter] = {
    entry.name: entry for entry in map(_parameter, SESSION_OPTIONS.values())
}
"""The options of sessions likewise."""

PromptOption: Any = SCENARIO_OPTIONS["prompt"].annotation
GenerateOption: Any = SCENARIO_OPTIONS["generate"].annotation
TtftOption: Any = LOAD_PARAMETERS["ttft"].annotation
TpotOption: Any = LOAD_PARAMETERS["tpot"].annotation
PrefixHitsOption: Any = LOAD_PARAMETERS["prefix_hits"].annotation
DisaggregationOption: Any = LOAD_PARAMETERS["disaggregation"].annotation
TiersOption: Any = SESSION_PARAMETERS["tiers"].annotation
ProfileOption: Any = SESSION_PARAMETERS["profile"].annotation


def scenario_command(
    command: Callable[..., None],
    without: Collection[str] = (),
    keywords: Mapping[str, inspect.Parameter] = LOAD_PARAMETERS,
) -> Callable[..., None]:
    """`command(..., scenario, ...)` as a command with the options of a scenario in the place of `scenario`.

    Those of a load, or other `keywords`, follow where it has further keywords. Options `without` are not offered and
    have their defaults; the command may have its own of these names. A command with axes (`over`) takes the mapping of
    option values as `scenario`, of which none is required.
    """
    own = inspect.signature(command, eval_str=True, locals={"Scenario": Any}).parameters.values()
    varied = any(entry.name == "over" for entry in own)
    kept = [
        entry.replace(default=None) if varied and name == "hw" else entry
        for name, entry in SCENARIO_OPTIONS.items()
        if name not in without
    ]

    @wraps(command)
    def run(**given: Any) -> None:
        from roofline import Scenario

        read = read_options({entry.name: given.pop(entry.name) for entry in kept})
        command(scenario=read if varied else Scenario(**read), **given)

    load = keywords.values() if any(entry.kind is inspect.Parameter.VAR_KEYWORD for entry in own) else ()
    plain = (entry for entry in own if entry.kind is not inspect.Parameter.VAR_KEYWORD)
    spread = [inner for entry in plain for inner in ((*kept, *load) if entry.name == "scenario" else (entry,))]
    return with_parameters(run, spread)


def with_scenario_options(command: Callable[..., None], names: Collection[str] = ()) -> Callable[..., None]:
    """`command` with the options of a scenario (or those of some `names`) as further keywords, None by default."""
    own = inspect.signature(command, eval_str=True).parameters
    kept = [entry for entry in own.values() if entry.kind is not inspect.Parameter.VAR_KEYWORD]
    added = [
        entry.replace(default=None)
        for name, entry in SCENARIO_OPTIONS.items()
        if name not in own and name != "model" and (not names or name.removesuffix("_") in names)
    ]
    return with_parameters(command, [*kept, *added])


def with_parameters(function: Any, parameters: Iterable[inspect.Parameter]) -> Callable[..., Any]:
    """`function`, which takes any keywords, with the signature that Typer reads its options from."""
    entries = [entry.replace(kind=inspect.Parameter.KEYWORD_ONLY) for entry in parameters]
    function.__signature__ = inspect.Signature(entries)
    function.__annotations__ = {entry.name: entry.annotation for entry in entries}
    function.__dict__.pop("__wrapped__", None)
    signed: Callable[..., Any] = function
    return signed


def _given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


@cache
def _parser() -> Any:
    """The parser of `MODEL --hw HW [OPTIONS]`; its result is a mapping of options."""
    reader = typer.Typer(rich_markup_mode=None, add_completion=False)
    reader.command(cls=EngineFlags, add_help_option=False)(
        with_parameters(_given, [entry.replace(default=None) for entry in SCENARIO_OPTIONS.values()])
    )
    return typer.main.get_command(reader)


CHANGES = of_group(FORMATS, KERNELS)
"""Options that change how a model runs. The plain scenario has none of them."""


def is_plain(words: list[str]) -> bool:
    """Whether the words of a scenario are those of the plain one."""
    return [word.lower() for word in words] in ([], ["none"])


def lacks_value(text: str) -> bool:
    """Whether a word is an option without the value that it takes, as of one that stands outside of quotation marks."""
    if not text.startswith("-") or set(text) & {" ", "="}:
        return False
    with suppress(RooflineError):
        return find_option(text).kind is not Kind.SWITCH
    return False


def names_hardware(word: str) -> bool:
    """Whether a word names hardware, and is no option."""
    from roofline.specs.hardware import load_mixed

    with suppress(RooflineError):
        return not word.startswith("-") and bool(load_mixed(word))
    return False


def parse_scenarios(texts: list[str], first: Scenario | None = None) -> list[Scenario]:
    """The scenarios of texts `MODEL --hw HW [OPTIONS]`; later ones change the `first`, by default that of texts[0].

    They change it as `Scenario.with_` does, and may begin with hardware: "h200-sxm --quant fp8". An empty text or
    `none` is the plain scenario: the same model, hardware, workload, parallelism and engine without `CHANGES`.
    """
    import shlex

    from roofline import Scenario

    found = []
    for text in texts:
        try:
            words = shlex.split(text)
        except ValueError:
            raise RooflineError(f"{quote(text)} has an unclosed quotation mark") from None
        if first is not None and is_plain(words):
            found.append(first.without(*CHANGES))
            continue
        if first is not None and words and names_hardware(words[0]):
            words.insert(0, "--hw")
        given = _parser().main(words, prog_name="roofline analyze", standalone_mode=False)
        found.append(Scenario(**given) if first is None else first.with_(**given))
        first = first or found[0]
    return found
