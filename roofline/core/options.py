"""Options: what a person can vary, with the kind, range and unit of its values, and how they are read from text.

The table of options is `roofline.scenario.options`. Commands, studies, axes, the page and the JSON schema are made from
it. Numbers are also lists (1,2,4) and ranges: of whole numbers (1:256, both ends included), in steps (0:4096:512), in
equal ratios (1:256:log16) or in equal steps (0:1:lin5).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from functools import partial
from importlib import import_module
from numbers import Real
from types import MappingProxyType
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from roofline.core import limits
from roofline.core.documents import bundled
from roofline.core.errors import RooflineError, UnknownNameError, quote
from roofline.core.units import Dimension, parse_count, parse_quantity

NOTHING = "none"
"""Text for an option that is not set."""

SWITCHES = {**dict.fromkeys(("true", "yes", "on", "1"), True), **dict.fromkeys(("false", "no", "off"), False)}
"""The texts of a switch."""


class Kind(Enum):
    """The type of an option's value."""

    GRID = "whole numbers"  # a count, or an array of them: all values are evaluated at once
    INTEGER = "whole number"
    NUMBER = "number"
    TEXT = "text"
    LIST = "names"  # joined by +
    SWITCH = "switch"
    TIME = "time"  # seconds, or a text with a unit

    @property
    def counts(self) -> bool:
        return self in (Kind.GRID, Kind.INTEGER)

    @property
    def ranged(self) -> bool:
        return self.counts or self is Kind.NUMBER


class Option(Struct, frozen=True):
    """An option: its help, the kind, range and check of its values, its default, and what it sets.

    `keyword` is its name in Python, which is another one where Python reserves `name`. `read_table` completes names,
    and `group` and `metavar` (what the value is called) where an option has none. `target` is the part of a scenario
    that the value sets: a field, or a group of fields and one of it. `default` is a text, "" where nothing is set by
    default; `otherwise` says what then holds, in words. `check` raises RooflineError
    for text that is invalid in every scenario. `readings` are further texts for values, None for a value that is not
    set, and `spelling` reads every other text. `other` reads a value that is no number, for a GRID option that may be a
    distribution. `flags` are the option's names on the command lines of engines.

    `choices` are all values, `known` the names of values among others. `static` options describe one batch, which a
    load has not. On a page an option that is `often` turned stands before the others, with the title `short` and, as a
    slider, with `stops`. `example` is a value that has an effect. A number of a TIME is seconds up to `bare`; a
    larger one may as well be milliseconds, and needs its unit.
    """

    help: str
    kind: Kind = Kind.TEXT
    group: str = ""
    target: tuple[str, ...] = ()
    name: str = ""
    short: str = ""
    unit: str = ""
    metavar: str = ""
    low: float = 0
    high: float = math.inf
    default: str = ""
    otherwise: str = ""
    needed: str = ""
    choices: tuple[str, ...] = ()
    known: Callable[[], Iterable[str]] | None = None
    check: Callable[[str], object] | None = None
    readings: Mapping[str, str | None] = MappingProxyType({})
    spelling: Callable[[str], str] = str
    other: Callable[[Any], object] | None = None
    flags: tuple[str, ...] = ()
    static: bool = False
    often: bool = False
    stops: tuple[int, ...] = ()
    example: str = ""
    keyword: str = ""
    bare: float = math.inf

    @property
    def names(self) -> tuple[str, ...]:
        """The texts of values that can be listed: all `choices`, or names among others."""
        return self.choices if self.known is None else tuple(self.known())

    @property
    def described(self) -> str:
        """The help, with what holds where nothing is set by default."""
        return f"{self.help} [default: {self.otherwise}]" if self.otherwise else self.help

    @property
    def flag(self) -> str:
        return f"--{self.name.replace('_', '-')}"

    @property
    def usual(self) -> Any:
        """The value of the default; None where nothing is set."""
        return self.read(self.default) if self.default else None

    def differs(self, value: object) -> bool:
        """Whether a value says something else than the default; an axis of values does."""
        return value is not None and (isinstance(value, np.ndarray) or value != self.usual)

    def read(self, value: object) -> Any:
        """The option's value from text or from a YAML value; raises RooflineError."""
        if value is None or (_is_nothing(value) and not self.needed):
            return [] if self.kind is Kind.LIST else None
        match self.kind:
            case Kind.SWITCH:
                return self._switch(value)
            case Kind.LIST:
                return self._list(value)
            case Kind.TEXT:
                return self._text(value)
            case Kind.TIME:
                return self._time(value)
        if self.kind is Kind.GRID and hasattr(value, "dtype") and hasattr(value, "shape"):
            return value  # an array, which the scenario checks
        if self.other is not None and not isinstance(value, (int, float)):
            if not isinstance(value, str):
                return self.other(value)
            if value.partition(":")[0].isidentifier() or value.endswith(".csv"):
                return self.other(value)
        return self.number(value)

    def written(self, value: Any) -> list[str]:
        """The texts of a value, each of which `read` takes: one, or one of each name of a list."""
        if self.kind is Kind.LIST:
            return [str(entry) for entry in value]
        if self.kind is Kind.SWITCH:
            return [str(value).lower()]
        if self.kind.counts:
            if getattr(value, "size", 1) != 1 or isinstance(value, list):
                raise RooflineError(f"a grid of {self.name} is not one value")
            return [str(value) if isinstance(value, str) else str(int(value))]
        if self.kind is Kind.TIME:
            return [f"{value!r}s"]
        return [str(value).removesuffix(".0")]

    def number(self, value: object) -> int | float:
        what = "a whole number" if self.kind.counts else "a number"
        what += " such as 512, 32k or 128K" if self.kind is Kind.GRID else ""
        try:
            number = self._parsed(value)
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        if isinstance(value, bool) or not math.isfinite(number) or (self.kind.counts and number != int(number)):
            raise RooflineError(f"{self.name} takes {what}, got {quote(value)}")
        if not self.low <= number <= self.high:
            raise RooflineError(
                f"{self.name} must be between {_bound(self.low)} and {_bound(self.high)}, got {quote(value)}"
            )
        return int(number) if self.kind.counts else number

    def _parsed(self, value: Any) -> float:
        """The number in a value; raises ValueError, TypeError or OverflowError."""
        if not isinstance(value, str):
            return float(value)
        return parse_count(value) if self.kind.counts else float(value.replace("_", ""))

    def _time(self, value: object) -> float:
        """Seconds above 0."""
        if isinstance(value, str):
            try:
                return parse_quantity(value, Dimension.TIME).value
            except RooflineError:
                raise RooflineError(untimed(self.name, value)) from None
        if isinstance(value, bool) or not isinstance(value, Real) or not 0 < float(value) < math.inf:
            raise RooflineError(f"{self.name} must be seconds above 0, or a text such as 500ms, got {quote(value)}")
        if float(value) > self.bare:
            raise RooflineError(untimed(self.name, f"{value:g}"))
        return float(value)

    def _text(self, value: object) -> str | None:
        if isinstance(value, (list, dict, tuple, set)):
            raise RooflineError(f"{self.name} takes one value, got {quote(value)[1:-1]}; several are an axis")
        text = value if isinstance(value, str) else repr(value)
        key = text.strip().lower().replace("-", "_")
        read = self.readings[key] if key in self.readings else self.spelling(text)
        if self.check is not None and read is not None:
            self.check(read)
        elif self.choices and read not in self.choices:
            raise UnknownNameError(self.name, read, self.choices)
        return read

    def _switch(self, value: object) -> bool:
        if isinstance(value, bool):
            return value
        key = str(value).lower()
        if key not in SWITCHES:
            raise RooflineError(f"{self.name} must be true or false, got {quote(value)}")
        return SWITCHES[key]

    def _list(self, value: object) -> list[str]:
        several = isinstance(value, Iterable) and not isinstance(value, (str, bytes, Mapping))
        entries: list[object] = list(value) if several else [value]  # type: ignore[call-overload]
        names: list[str] = []
        for entry in entries:
            found = [name.strip() for name in entry.split("+")] if isinstance(entry, str) else []
            if not found or any("," in name.partition(":")[0] for name in found):
                raise RooflineError(f"{self.keyword} takes names joined by '+', got {quote(entry)}")
            names += found
        if any(map(_is_nothing, names)):
            if len(names) > 1:
                raise RooflineError(f"{self.keyword} takes names or {NOTHING}, got {quote(' + '.join(names))}")
            return []
        for name in names if self.check is not None else ():
            assert self.check is not None
            self.check(name)
        return names


def untimed(name: str, value: str) -> str:
    """The error of a text that is no time with its unit; of a bare number, with the two that it may be."""
    try:
        float(value)
    except ValueError:
        return f"{name} takes a time such as 30ms or 2s, got {quote(value)}"
    return f"{name} takes a time with its unit, got {quote(value)}: write {value}ms or {value}s"


def read_table(relative: str, group: str = "", **names: Any) -> Mapping[str, Option]:
    """The options in the rows of a file of the program, by name, in order; `group` is theirs unless they have another.

    A row has the fields of `Option`, by keyword; limits and choices may be `names`, or those of `roofline.core.limits`.
    """
    known, found = {**vars(limits), **names}, dict[str, Option]()
    for keyword, row in bundled(relative).items():
        named = {key: known[value] for key, value in row.items() if key in _NAMED and isinstance(value, str)}
        option = _option({**row, **named})
        name, target = option.name or keyword, option.target or (keyword,)
        metavar, group_of = option.metavar or _metavar(option), option.group or group
        found[name] = replace(option, name=name, keyword=keyword, target=target, metavar=metavar, group=group_of)
    return found


_NAMED = ("low", "high", "choices")


def _option(row: Mapping[str, Any]) -> Option:
    """The option of a row, whose functions are imported when a value is read."""
    given: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in row.items()}
    given["kind"] = Kind[given.get("kind", "text").upper()]
    given |= {key: partial(_call, given[key]) for key in ("check", "spelling", "other") if key in given}
    if isinstance(known := given.get("known"), str):
        given["known"] = partial(_call, known)
    elif known is not None:
        given["known"] = lambda: known
    elif readings := given.get("readings"):
        given["known"] = lambda: readings
    return Option(**given)


def _call(reference: str, *given: Any) -> Any:
    """The value of what MODULE:NAME names: of a function that of its call."""
    module, _, name = reference.partition(":")
    found = getattr(import_module(module), name)
    return found(*given) if callable(found) else found


def _metavar(option: Option) -> str:
    if option.kind.counts:
        return "TOKENS" if option.unit == "tokens" else "N"
    return "TIME" if option.kind is Kind.TIME else ""


def _bound(bound: float) -> str:
    return f"{bound:g}" if bound % 1 else f"{bound:.0f}"


def _is_nothing(value: object) -> bool:
    return isinstance(value, str) and value.strip().lower() == NOTHING


def names_in(text: str | None) -> tuple[str, ...]:
    """The names in a comma-separated list, none for None; raises RooflineError if the list has no name."""
    names = tuple(filter(None, (name.strip() for name in (text or "").split(","))))
    if text is not None and not names:
        raise RooflineError(f"expected names separated by commas, got {quote(text)}")
    return names


MAX_VALUES = 10_000_000
"""Maximum values of one list."""

_NUMBER = r"[+-]?\d[\d_]*(?:\.\d+)?(?:[eE][+-]?\d+|[kmgKMG])?"
_RANGE = re.compile(
    rf"(?P<first>{_NUMBER})\s*:\s*(?P<last>{_NUMBER})(?:\s*:\s*(?P<how>log|lin)?(?P<step>{_NUMBER}))?", re.ASCII
)
FORMS = "write it like 1,2,4 or 1:8 or 0:4096:512 or 1:256:log16 or 0:1:lin5"


def numbers(option: Option, entry: object) -> Sequence[Any]:
    """The numbers of one part of a list: a number or a range. Raises RooflineError."""
    if not isinstance(entry, str) or ":" not in entry:
        return (option.number(entry),)
    match = _RANGE.fullmatch(entry)
    if match is None:
        raise RooflineError(f"cannot read the range {quote(entry)} of {option.name}; {FORMS}")
    first, last = option.number(match["first"]), option.number(match["last"])
    if first > last:
        raise RooflineError(f"the range {quote(entry)} of {option.name} runs backwards")
    spaced = _spaced(entry, match, first, last, option)
    if option.kind.counts:
        return tuple(np.unique(np.round(spaced).astype(np.int64)).tolist())
    return [float(value) for value in spaced]


def _spaced(entry: str, match: re.Match[str], first: float, last: float, option: Option) -> Any:
    """The values of a range; the last is included if a step reaches it."""
    where = f"the range {quote(entry)} of {option.name}"
    try:
        step = parse_count(match["step"] or "1")
    except ValueError:
        raise RooflineError(f"cannot read the step of {where}; {FORMS}") from None
    if match["how"] is None:
        if step <= 0 or (option.kind.counts and step != int(step)):
            whole = "a whole number " if option.kind.counts else ""
            raise RooflineError(f"the step of {where} must be {whole}above 0")
        _check_size(math.floor((last - first) / step) + 1, where)
        return first + step * np.arange(math.floor((last - first) / step + 1e-9) + 1)
    if step < 1 or step != int(step):
        raise RooflineError(f"{where} needs a number of values, like 1:256:{match['how']}16")
    _check_size(step, where)
    if match["how"] == "lin":
        return np.linspace(first, last, int(step))
    if first <= 0:
        raise RooflineError(f"{where} starts at {first:g}; a log range must start above 0")
    return np.geomspace(first, last, int(step))


def _check_size(values: float, where: str) -> None:
    if values > MAX_VALUES:
        raise RooflineError(f"{where} has {values:.3g} values; the maximum is {MAX_VALUES}")
