"""The options of a scenario on the command line, made from the table, and commands that take a scenario of them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import cache, wraps
from typing import TYPE_CHECKING, Annotated, Any

import typer

from roofline.cli.engine_flags import EngineFlags
from roofline.cli.options import ModelArgument
from roofline.core.options import Kind, Option
from roofline.scenario.options import FORMATS, KERNELS, NEEDED, OPTIONS, of_group

if TYPE_CHECKING:
    from roofline.scenario.scenario import Scenario


def _parameter(option: Option) -> inspect.Parameter:
    """An option as a parameter of a command; a switch has `--no-` as well."""
    if option.name == "model":
        return inspect.Parameter("model", inspect.Parameter.KEYWORD_ONLY, annotation=ModelArgument)
    switch = option.kind is Kind.SWITCH
    flag = f"{option.flag}/--no-{option.flag.removeprefix('--')}" if switch else option.flag
    type_: Any = bool if switch else list[str] if option.kind is Kind.LIST else str
    declared = typer.Option(flag, help=option.described, metavar=option.metavar or None, rich_help_panel=option.group)
    needed = option.name in NEEDED
    return inspect.Parameter(
        _identifier(option.name),
        inspect.Parameter.KEYWORD_ONLY,
        default=inspect.Parameter.empty if needed else option.default or None,
        annotation=Annotated[type_ if needed else type_ | None, declared],
    )


def _identifier(name: str) -> str:
    """The name of a parameter: Python reserves `with`."""
    return f"{name}_" if name == "with" else name


SCENARIO_OPTIONS: Mapping[str, inspect.Parameter] = {entry.name: entry for entry in map(_parameter, OPTIONS.values())}
"""The options of a scenario as parameters of a command, by name."""

PromptOption: Any = SCENARIO_OPTIONS["prompt"].annotation
GenerateOption: Any = SCENARIO_OPTIONS["generate"].annotation


def scenario_command(command: Callable[..., None], without: Collection[str] = ()) -> Callable[..., None]:
    """`command(..., scenario, ...)` as a command with the options of a scenario in the place of `scenario`.

    Options `without` are not offered and have their defaults; the command may have its own of these names. A command
    with axes (`over`) takes the mapping of option values as `scenario`, of which none is required.
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
        from roofline.scenario.options import read_options

        read = read_options({entry.name: given.pop(entry.name) for entry in kept})
        command(scenario=read if varied else Scenario(**read), **given)

    spread = [inner for entry in own for inner in (kept if entry.name == "scenario" else [entry])]
    command_line: Callable[..., None] = with_parameters(run, spread)
    return command_line


def with_scenario_options(command: Callable[..., None], names: Collection[str] = ()) -> Callable[..., None]:
    """`command` with the options of a scenario (or those of some `names`) as further keywords, None by default."""
    own = inspect.signature(command, eval_str=True).parameters
    kept = [entry for entry in own.values() if entry.kind is not inspect.Parameter.VAR_KEYWORD]
    added = [
        entry.replace(default=None)
        for name, entry in SCENARIO_OPTIONS.items()
        if name not in own and name != "model" and (not names or name.removesuffix("_") in names)
    ]
    command_line: Callable[..., None] = with_parameters(command, [*kept, *added])
    return command_line


def with_parameters(function: Any, parameters: Iterable[inspect.Parameter]) -> Any:
    """`function`, which takes any keywords, with the signature that Typer reads its options from."""
    entries = [entry.replace(kind=inspect.Parameter.KEYWORD_ONLY) for entry in parameters]
    function.__signature__ = inspect.Signature(entries)
    function.__annotations__ = {entry.name: entry.annotation for entry in entries}
    function.__dict__.pop("__wrapped__", None)
    return function


@cache
def _parser() -> Any:
    """The parser of `MODEL --hw HW [OPTIONS]`; its result is a mapping of options."""
    reader = typer.Typer(rich_markup_mode=None, add_completion=False)
    reader.command(cls=EngineFlags, add_help_option=False)(
        with_parameters(lambda **options: options, SCENARIO_OPTIONS.values())
    )
    return typer.main.get_command(reader)


CHANGES = frozenset(map(_identifier, of_group(FORMATS, KERNELS)))
"""Options that change how a model runs. The plain scenario has none of them."""


def is_plain(words: list[str]) -> bool:
    """Whether the words of a scenario are those of the plain one."""
    return [word.lower() for word in words] in ([], ["none"])


def parse_scenarios(texts: list[str], defaults: Mapping[str, Any] | None = None) -> list[Scenario]:
    """The scenarios of texts `MODEL --hw HW [OPTIONS]`; `defaults`, else the first text, fill in missing options.

    An empty text or `none` is the plain scenario: the same model, hardware, workload, parallelism and engine without
    `CHANGES`.
    """
    import shlex

    from roofline import Scenario
    from roofline.core.errors import RooflineError, quote
    from roofline.scenario.options import read_options

    parser = _parser()
    if defaults is not None:
        defaults = {name: value for name, value in defaults.items() if name in SCENARIO_OPTIONS}
    found = []
    for text in texts:
        try:
            words = shlex.split(text)
        except ValueError:
            raise RooflineError(f"{quote(text)} has an unclosed quotation mark") from None
        inherited = defaults
        if is_plain(words):
            words, inherited = [], {name: value for name, value in (defaults or {}).items() if name not in CHANGES}
        options = parser.main(words, prog_name="roofline analyze", standalone_mode=False, default_map=inherited)
        defaults = options if defaults is None else defaults
        found.append(Scenario(**read_options(options)))
    return found
