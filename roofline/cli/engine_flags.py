"""Engines' own names of options on the command line, and the groups in which the options are listed."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches
from typing import Any

from typer.core import TyperCommand

from roofline.cli.draft_flags import as_technique
from roofline.cli.options import say
from roofline.core.documents import bundled
from roofline.core.errors import RooflineError, alternatives
from roofline.core.options import SWITCHES, Kind, Option
from roofline.scenario.options import MEANT, OPTIONS, option_key
from roofline.serving.options import LOAD_OPTIONS
from roofline.serving.sessions.options import SESSION_OPTIONS

ALL: dict[str, Option] = {**OPTIONS, **LOAD_OPTIONS, **SESSION_OPTIONS}
SPELLED = {flag.replace("_", "-"): option.flag for option in ALL.values() for flag in option.flags}
SWITCHED = {option.flag for option in ALL.values() if option.kind is Kind.SWITCH}
FLAGS = tuple(option.flag for option in ALL.values())
SERVED = {option.flag for option in (*LOAD_OPTIONS.values(), *SESSION_OPTIONS.values())}

_TABLE = bundled("cli/engine_flags.yaml")

IRRELEVANT = {flag: key == "valued" for key, flags in _TABLE["irrelevant"].items() for flag in flags}
"""Options of engines that change neither speed nor memory, with whether they take a value."""

STAND_INS = {flag: instead for instead, flags in _TABLE["stand_ins"].items() for flag in flags}
"""Options of engines that no option is another name of, and what stands for them here."""

FIRST = (
    *("hw", "concurrency", "rate", "batch", "prompt", "generate", "ttft", "tpot"),
    *("quant", "tp", "engine", "kv", "with", "price"),
)
"""The options of the table that people use first, in the order in which help lists them."""

SHOWN = 10
"""How many of them help lists; --help-all lists every option."""

HELP_ALL, EVERY = "--help-all", "roofline.help-all"


SHOWN_COMMANDS = 3
"""Commands that an error names as having an option."""

LIKE = 0.75
"""Likeness from which an option is a misspelling of another."""

CONTEXT, PROMPT = (OPTIONS[name].flag for name in ("context", "prompt"))


class EngineFlags(TyperCommand):
    """A command that reads an option by each name that an engine has for it: `--tensor-parallel-size 2` as `--tp 2`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if HELP_ALL in args and "--" not in args[: args.index(HELP_ALL)]:
            ctx.meta[EVERY] = True
            say(ctx.get_help())
            ctx.exit()
        own = {text for parameter in self.params for text in (*parameter.opts, *parameter.secondary_opts)}
        deployed = any(parameter.name == "hw" for parameter in self.params)
        words = list(_own_names(as_technique(args) if "--with" in own else args, own))
        if deployed:
            words = self._after_model(ctx, words)
        try:
            return super().parse_args(ctx, list(_relevant(words, own)) if deployed else words)
        except Exception as error:
            name = getattr(error, "option_name", None)  # the class of an unknown option depends on Typer's version
            if deployed and name is not None and hasattr(error, "possibilities"):
                raise RooflineError(_unknown(name, own, ctx.info_name.removeprefix("roofline "))) from None
            raise

    def _after_model(self, ctx: Any, words: list[str]) -> list[str]:
        """The words with hardware that follows the model, as in `roofline MODEL HW`, as the option --hw."""
        if any(each.nargs != 1 for each in self.params if each.param_type_name == "argument"):
            return words
        given, free = self._parsed(ctx, words)
        if given.get("hw") or len(free) != 1:
            return words
        for place in range(len(words) - 1, -1, -1):
            without = words[:place] + words[place + 1 :]
            if words[place] == free[0] and self._parsed(ctx, without) == (given, []):
                return [*without[:place], "--hw", free[0], *without[place:]]
        return words

    def _parsed(self, ctx: Any, words: list[str]) -> tuple[dict[str, Any], list[str]]:
        """Options and arguments by name, and the words that are neither; none where the words cannot be read."""
        try:
            given, free, _ = self.make_parser(ctx).parse_args(list(words))
        except Exception:
            return {}, []
        return given, free

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """The command's own options, then those of the table: the ones that are used most, or all in their groups."""
        every, found = ctx.meta.get(EVERY, False), dict[str, tuple[str, str]]()
        own: list[tuple[str, str]] = []
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None and parameter.param_type_name == "option":
                name = (parameter.name or "").removesuffix("_")
                if name in ALL:
                    found[name] = record
                else:
                    own.append(record)
        groups: dict[str, list[tuple[str, str]]] = {}
        if every:
            for name, option in ALL.items():
                groups.setdefault(option.group, []).extend([found[name]] if name in found else [])
        else:
            first = [name for name in FIRST if name in found][:SHOWN]
            groups["Most used"] = [found[name] for name in first]
            own += [(HELP_ALL, f"List the {len(found) - len(first)} options more.")] if len(found) > len(first) else []
        groups["Options"] = own
        for title, records in groups.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


def _unknown(name: str, own: set[str], command: str) -> str:
    """What an option is that a command has not: of other commands, without effect here, or a mistyped one."""
    key = name.replace("_", "-")
    flag = SPELLED.get(key, key)
    if flag in FLAGS:
        also = f" ({flag})" if flag != name else ""
        own_words = _TABLE["of_commands"].get(command, {}).get(flag)
        instead = f": {own_words}" if own_words else ""
        if flag == "--concurrency" and "--batch" in own:
            instead = ": --batch says how many sequences run at once; 'roofline serve' has users"
        instead = instead or ("; 'roofline serve' does" if flag in SERVED and command != "serve" else "")
        return f"{command} does not take {name}{also}{instead}; 'roofline {command} --help' lists what it takes"
    if (meant := MEANT.get(option_key(name))) is not None:
        first, blank, rest = meant.partition(" ")
        return f"no such option: {name}; {ALL[first].flag if first in ALL else first}{blank}{rest}"
    if option_key(name) in OPTIONS["quant"].names and "--quant" in own:
        return f"no such option: {name}; say --quant {option_key(name)}"
    if (others := _of_commands(name)) and command not in others:
        instead = _TABLE["of_commands"].get(command, {}).get(name)
        told = instead or f"{alternatives([f'roofline {each}' for each in others[:SHOWN_COMMANDS]])} does"
        return f"{command} does not take {name}: {told}; 'roofline {command} --help' lists what it takes"
    spellings = (alias for alias, option in SPELLED.items() if option in own)
    near = get_close_matches(name, sorted({*own, *spellings}), cutoff=LIKE)
    did = f"; did you mean {alternatives(near)}?" if near else f"; 'roofline {command} --help' lists the options"
    return f"no such option: {name}{did}"


def _of_commands(name: str) -> list[str]:
    """The commands that have an option of their own of this name."""
    from roofline.cli.program import LazyCommands

    commands = LazyCommands().items()
    return [key for key, each in commands if any(name in (*own.opts, *own.secondary_opts) for own in each.params)]


def _own_names(args: list[str], own: set[str]) -> Iterator[str]:
    """The arguments, with the names of engines replaced by those of the table where the command has the option.

    Raises RooflineError for an option that is given by two names.
    """
    named: dict[str, str] = {}
    words = iter(zip(args, [*args[1:], ""], strict=False))
    for place, (text, following) in enumerate(words):
        if text == "--":
            yield from args[place:]
            return
        flag, equals, value = text.partition("=")
        of_load = PROMPT if flag == CONTEXT else None  # what each request of a load has before its output
        known = flag if flag in own else SPELLED.get(flag.replace("_", "-"), of_load)
        if known not in own:
            yield text
            continue
        if named.setdefault(known, flag) != flag:
            raise RooflineError(f"{flag} and {named[known]} name the same: give one of them")
        if flag != known and not equals and following.lower() in SWITCHES and known in SWITCHED:
            next(words)  # llama.cpp's -fa on
            yield known if SWITCHES[following.lower()] else known.replace("--", "--no-", 1)
            continue
        yield f"{known}{equals}{value}"


def _relevant(args: list[str], own: set[str]) -> Iterator[str]:
    """The arguments without options of engines that change neither speed nor memory, each of which is noted."""
    words = iter(args)
    for text in words:
        flag, equals, _ = text.partition("=")
        if flag not in own and (instead := STAND_INS.get(flag.replace("_", "-"))) is not None:
            raise RooflineError(f"no such option: {flag}; {instead}")
        takes_value = IRRELEVANT.get(flag.replace("_", "-"))
        if flag in own or takes_value is None:
            yield text
            continue
        if takes_value and not equals and next(words, "--").startswith("--"):
            raise RooflineError(f"{flag} takes a value")
        say(f"roofline: {flag} changes neither speed nor memory, and is left out", err=True)
