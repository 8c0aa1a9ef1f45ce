"""Safe parsing of YAML and JSON mappings.

Input is untrusted: only safe YAML and JSON are read, of bounded size and depth, without duplicate keys, and every
problem is a SpecError that names the file. YAML is composed from the parser's events, without recursion and in half
the time of PyYAML's node composer; scalars are converted by PyYAML's safe constructor.
"""

from __future__ import annotations

import datetime
import json
import math
import re
from collections import Counter
from collections.abc import Mapping
from functools import cache, lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from roofline.core.errors import SpecError, quote
from roofline.core.inputs import read_text

MAX_BYTES = 4 << 20
"""Larger than any legitimate spec or config.json, also with its aliases written out."""

MAX_DEPTH = 100
"""Deeper than any legitimate spec."""

_TOO_DEEP = "nested too deeply"


def read_mapping(path: Path, limit: int = MAX_BYTES) -> dict[str, Any]:
    """The mapping in a JSON (`.json`) or YAML file of at most `limit` bytes; raises SpecError for anything else."""
    return parse_mapping(read_text(path, limit), path)


@cache
def bundled_path(relative: str) -> Path:
    """A file or folder of the program, by its path in the package."""
    return Path(str(files("roofline") / relative))


@cache
def bundled(relative: str) -> Mapping[str, Any]:
    """The mapping in a file of the program, by its path in the package."""
    return read_mapping(bundled_path(relative))


def parse_mapping(text: str, path: Path) -> dict[str, Any]:
    """The mapping in the text of a JSON (`.json`) or YAML file; raises SpecError for anything else."""
    where = str(path)
    content = parse_json(text, where) if path.suffix.lower() == ".json" else parse_yaml(text, where)
    if not isinstance(content, dict):
        raise SpecError(where, f"must be a mapping of keys to values, not {_type_name(content)}")
    return content


def finite_number(value: object) -> float | None:
    """A number of a document as a double; None for anything else, and for one that no double holds."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def scalar_text(value: object) -> str | None:
    """A text of a document, or a number or date that was meant as one; None for containers and anything else.

    Containers have no text: aliases nest them endlessly.
    """
    if isinstance(value, str):
        return value
    if isinstance(value, datetime.date) or finite_number(value) is not None:
        return str(value)
    return None


def _type_name(value: object) -> str:
    names = {dict: "a mapping", list: "a list", str: "text", bool: "true or false", type(None): "empty"}
    return names.get(type(value), "a number")


def parse_json(text: str, where: str) -> object:
    """The content of a JSON text; raises SpecError, also for a key that appears twice."""

    def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
        content = dict(pairs)
        if len(content) != len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name, times in Counter(names).items() if times > 1)
            raise SpecError(where, f"the key {quote(twice)} appears twice")
        return content

    try:
        return json.loads(text, object_pairs_hook=unique)
    except json.JSONDecodeError as error:
        raise SpecError(where, f"is not valid JSON (line {error.lineno}: {error.msg})") from None
    except (RecursionError, ValueError):
        raise SpecError(where, "is not valid JSON (nested too deeply, or a number out of range)") from None


def parse_yaml(text: str, where: str) -> object:
    """The content of a YAML text; raises SpecError."""
    try:
        return _compose(text)
    except yaml.MarkedYAMLError as error:
        if "nesting depth" in (error.problem or ""):  # the limit of libyaml's scanner, at fewer levels in some versions
            raise SpecError(where, f"is not valid YAML ({_TOO_DEEP})") from None
        line = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        raise SpecError(where, f"is not valid YAML ({line}{error.problem or 'syntax error'})") from None
    except yaml.YAMLError as error:
        problem = " ".join(str(getattr(error, "reason", None) or error).split())
        raise SpecError(where, f"is not valid YAML ({problem[:200]})") from None
    except Exception:  # PyYAML's constructors pass on any exception of a conversion
        raise SpecError(where, "is not valid YAML (a value that its type does not have, or out of range)") from None


_PARSER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TAG = "tag:yaml.org,2002:"
_MERGE = object()
"""The value of the scalar `<<`."""


class _Problem(yaml.YAMLError):
    """Content that specs do not allow."""


class _Container:
    """A list or mapping under construction: its content, the pending key, its depth in `levels`, and its `size`.

    The size is in characters and entries, aliases written out.
    """

    __slots__ = ("anchor", "content", "key", "levels", "size")

    def __init__(self, content: list[Any] | dict[str, Any], anchor: str | None) -> None:
        self.content, self.anchor, self.levels, self.size = content, anchor, 1, 1
        self.key: str | None = None

    def add(self, value: Any) -> None:
        """Append a list entry, or take a key or its value in turn."""
        content = self.content
        if value is _MERGE:
            raise _Problem("merge keys ('<<') are not supported")
        if isinstance(content, list):
            content.append(value)
        elif self.key is not None:
            content[self.key], self.key = value, None
        elif not isinstance(value, str):
            raise _Problem(f"the key {quote(value)} is not text")
        elif value in content:
            raise _Problem(f"the key {quote(value)} appears twice")
        else:
            self.key = value


class _Composer:
    def __init__(self) -> None:
        self._documents = _Container([], None)
        self._open = [self._documents]
        self._anchors: dict[str, tuple[Any, int, int]] = {}  # values, their depth and size
        self._aliases = 0  # the size of all aliased values

    @property
    def content(self) -> object:
        return next(iter(self._documents.content), None)

    def take(self, event: Any) -> None:
        if isinstance(event, yaml.ScalarEvent):
            value, size = _scalar(event), 1 + len(event.value)
            if event.anchor is not None:
                self._anchors[event.anchor] = value, 0, size
            self._open[-1].size += size
            self._open[-1].add(value)
        elif isinstance(event, yaml.CollectionStartEvent):
            self._open.append(_Container(_empty(event), event.anchor))
            self._check_depth(0)
        elif isinstance(event, yaml.CollectionEndEvent):
            closed = self._open.pop()
            if closed.anchor is not None:
                self._anchors[closed.anchor] = closed.content, closed.levels, closed.size
            self._add(closed.content, closed.levels, closed.size)
        elif isinstance(event, yaml.AliasEvent):
            value, levels, size = self._aliased(event.anchor)
            self._aliases += size
            if self._aliases > MAX_BYTES:
                raise _Problem(f"its aliases stand for more than {MAX_BYTES >> 20} MiB")
            self._add(value, levels, size)
        elif isinstance(event, yaml.DocumentStartEvent) and self._documents.content:
            raise _Problem("another document begins where one is expected")

    def _add(self, value: Any, levels: int, size: int) -> None:
        self._check_depth(levels)
        outer = self._open[-1]
        outer.levels, outer.size = max(outer.levels, levels + 1), outer.size + size
        outer.add(value)

    def _check_depth(self, levels: int) -> None:
        if len(self._open) - 1 + levels > MAX_DEPTH:
            raise _Problem(_TOO_DEEP)

    def _aliased(self, name: str | None) -> tuple[Any, int, int]:
        if any(entry.anchor == name for entry in self._open):
            raise _Problem(f"the alias {quote(name)} is recursive")
        if name is None or name not in self._anchors:
            raise _Problem(f"the alias {quote(name)} has no anchor")
        return self._anchors[name]


def _compose(text: str) -> object:
    composer = _Composer()
    parser: Any = _PARSER(text)
    try:
        while (event := parser.get_event()) is not None:
            try:
                composer.take(event)
            except _Problem as problem:
                raise yaml.MarkedYAMLError(problem=str(problem), problem_mark=event.start_mark) from None
    finally:
        parser.dispose()
    return composer.content


def _empty(event: yaml.CollectionStartEvent) -> list[Any] | dict[str, Any]:
    """An empty list or mapping; raises _Problem for other collections."""
    in_order = isinstance(event, yaml.SequenceStartEvent)
    if event.tag not in (None, "!", _TAG + ("seq" if in_order else "map")):
        raise _Problem(f"the tag {quote(event.tag)} is not one of a {'list' if in_order else 'mapping'}")
    return [] if in_order else {}


def _scalar(event: yaml.ScalarEvent) -> Any:
    if event.tag is not None and event.tag != "!":
        return _constructed(event.tag, event.value)
    return _plain(event.value) if event.implicit[0] else event.value


@lru_cache(maxsize=4096)
def _plain(value: str) -> Any:
    """The value of a scalar without quotes or tag. 1:30 is text, not the sexagesimal 90."""
    if (decimal := _DECIMAL.fullmatch(value)) is not None:  # most scalars; PyYAML takes ten times as long
        return float(value) if decimal[1] else int(value)
    resolvers = yaml.SafeLoader.yaml_implicit_resolvers
    patterns = [*resolvers.get(value[:1], []), *resolvers.get(None, [])]
    tag = next((tag for tag, pattern in patterns if pattern.match(value)), _TAG + "str")
    if tag == _TAG + "merge":
        return _MERGE
    return value if tag == _TAG + "str" or _SEXAGESIMAL.fullmatch(value) else _constructed(tag, value)


_DECIMAL = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?")

_SEXAGESIMAL = re.compile(r"[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?")


_SCALARS = frozenset(_TAG + name for name in ("str", "int", "float", "bool", "null", "timestamp"))


def _constructed(tag: str, value: str) -> Any:
    """A tagged scalar, converted by PyYAML's safe constructor."""
    if tag not in _SCALARS:
        raise _Problem(f"the tag {quote(tag)} is not one of a single value")
    return yaml.constructor.SafeConstructor().construct_object(yaml.ScalarNode(tag, value))
