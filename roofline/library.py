"""Finding and reading spec files: bundled ones, those of `ROOFLINE_SPECS`, and any path.

Files are hostile until checked: only safe YAML and JSON are read, of bounded size, without duplicate keys, and every
problem becomes a SpecError that names the file and the key.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import yaml

from roofline.errors import RooflineError, SpecError, UnknownNameError, quote, suggest

if TYPE_CHECKING:
    from pydantic import TypeAdapter, ValidationError

MAX_BYTES = 4 << 20
"""Larger than any honest spec or config.json."""

SEARCH_PATH = "ROOFLINE_SPECS"
"""Environment variable: folders or files with more specs, separated as PATH is; they come before the bundled ones."""


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Safe YAML that refuses duplicate keys instead of keeping the last, and reads 1:30 as text, not as ninety.

    Most of a spec is text, and the same keys stand in all of them: both are short cuts.
    """

    def resolve(self, kind: type[yaml.Node], value: Any, implicit: Any) -> Any:
        """The tag of a node that has none written."""
        if kind is yaml.ScalarNode and implicit[0]:
            return _plain_tag(value)
        return super().resolve(kind, value, implicit)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """The value of a node."""
        if node.tag == _TEXT and isinstance(node, yaml.ScalarNode):
            return node.value
        return super().construct_object(node, deep)


_TEXT = "tag:yaml.org,2002:str"


@lru_cache(maxsize=4096)
def _plain_tag(value: str) -> str:
    """The tag of a scalar without quotes."""
    resolvers = _Loader.yaml_implicit_resolvers
    patterns = [*resolvers.get(value[:1], []), *resolvers.get(None, [])]
    return next((tag for tag, pattern in patterns if pattern.match(value)), _TEXT)


_SEXAGESIMAL = re.compile(r"[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?")
_Loader.yaml_implicit_resolvers = {
    first: [*([(_TEXT, _SEXAGESIMAL)] if first in "-+0123456789" and first else []), *known]
    for first, known in _Loader.yaml_implicit_resolvers.items()
}


def _unique_mapping(loader: Any, node: yaml.MappingNode) -> dict[str, object]:
    if not isinstance(node, yaml.MappingNode):
        raise yaml.YAMLError("something that is no mapping is tagged as one")
    content: dict[str, object] = {}
    for key_node, value_node in node.value:
        if key_node.tag == "tag:yaml.org,2002:merge":
            raise yaml.YAMLError("merge keys ('<<') are not part of the vocabulary")
        key = loader.construct_object(key_node)
        if not isinstance(key, str):
            raise yaml.YAMLError(f"the key {quote(key)} is not text")
        if key in content:
            raise yaml.YAMLError(f"the key {quote(key)} appears twice")
        content[key] = loader.construct_object(value_node, deep=True)
    return content


_Loader.add_constructor("tag:yaml.org,2002:map", _unique_mapping)


def read_mapping(path: Path) -> dict[str, Any]:
    """The mapping in a YAML or JSON file; raises SpecError for anything else."""
    where = str(path)
    try:
        if path.is_dir():
            raise SpecError(where, "is a folder, not a file")
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        raise SpecError(quote(where, 200), f"cannot be read ({_reason(error)})") from None
    if len(raw) > MAX_BYTES:
        raise SpecError(where, f"is larger than {MAX_BYTES >> 20} MiB, too large for a spec")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SpecError(where, f"is not UTF-8 text (byte {error.start})") from None
    content = _parse_json(text, where) if path.suffix.lower() == ".json" else _parse_yaml(text, where)
    if not isinstance(content, dict):
        raise SpecError(where, f"must be a mapping of keys to values, not {_type_name(content)}")
    return content


def _reason(error: Exception) -> str:
    return (error.strerror or type(error).__name__) if isinstance(error, OSError) else "not a valid path"


def _parse_json(text: str, where: str) -> object:
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


def _parse_yaml(text: str, where: str) -> object:
    try:
        openings = sum(map(text.count, "[{-?:"))
        if openings > COMPOSED:
            _check_depth(text)
        content = yaml.load(text, Loader=_Loader)  # noqa: S506 - a safe loader
        if MAX_DEPTH < openings <= COMPOSED:
            _check_nesting(content)
        return content
    except yaml.MarkedYAMLError as error:
        line = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        raise SpecError(where, f"is not valid YAML ({line}{error.problem or 'syntax error'})") from None
    except yaml.YAMLError as error:
        problem = " ".join(str(getattr(error, "reason", None) or error).split())
        raise SpecError(where, f"is not valid YAML ({problem[:200]})") from None
    except RecursionError:
        raise SpecError(where, "is not valid YAML (nested too deeply)") from None
    except Exception:  # the constructors of PyYAML raise whatever their conversions do
        raise SpecError(where, "is not valid YAML (a value that its type does not have, or out of range)") from None


MAX_DEPTH = 100
"""Deeper than any honest spec."""

COMPOSED = 1000
"""Levels that libyaml's composer may descend, at some 400 bytes each, far from where it overflows a thread's stack.

Every level is opened by a character of its own, so that a text with no more of these need not be looked through first.
"""


def _check_depth(text: str) -> None:
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            raise RecursionError


def _check_nesting(content: object) -> None:
    level, depth = {id(content): content}, 0
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            raise RecursionError
        inner = [child for node in level.values() for child in _inside(node) if isinstance(child, (dict, list, tuple))]
        level = {id(child): child for child in inner}


def _inside(node: object) -> Iterable[object]:
    if isinstance(node, dict):
        return node.values()
    return node if isinstance(node, (list, tuple)) else ()


def _type_name(value: object) -> str:
    names = {dict: "a mapping", list: "a list", str: "text", bool: "true or false", type(None): "empty"}
    return names.get(type(value), "a number")


def spec_files(package: str) -> dict[str, Path]:
    """Every spec by name: the bundled ones of `package` (hwspecs or modelspecs), overridden by `ROOFLINE_SPECS`."""
    found = {
        Path(str(entry)).stem: Path(str(entry)) for entry in files(package).iterdir() if entry.name.endswith(".yaml")
    }
    for path in reversed(list(_extra_files(package))):
        found[path.stem] = path
    return dict(sorted(found.items()))


def _extra_roots() -> Iterator[Path]:
    """The files and folders that `ROOFLINE_SPECS` names; raises RooflineError for one that does not exist."""
    for entry in filter(None, os.environ.get(SEARCH_PATH, "").split(os.pathsep)):
        root = Path(entry)
        try:
            exists = root.is_file() or root.is_dir()
        except (OSError, ValueError) as error:
            raise RooflineError(f"{SEARCH_PATH} names {quote(entry, 200)}: {_reason(error)}") from None
        if not exists:
            raise RooflineError(f"{SEARCH_PATH} names {quote(entry, 200)}, which does not exist")
        yield root


def _extra_files(package: str) -> Iterator[Path]:
    for root in _extra_roots():
        folder = root / package if (root / package).is_dir() else root
        candidates = [root] if root.is_file() else sorted(folder.glob("*.y*ml"))
        yield from (path for path in candidates if is_hardware(path) == (package == "hwspecs"))


def find_file(relative: str, package: str) -> Path | None:
    """The file `relative` in a folder of `ROOFLINE_SPECS`, or in its folder `package`, else in the bundled package."""
    # With strings: every simulated scenario looks for its calibration.
    folders = [str(folder) for root in _extra_roots() for folder in (root, root / package)]
    for folder in (*folders, _bundled(package)):
        path = f"{folder}/{relative}"
        if os.path.isfile(path):  # noqa: PTH113
            return _path(path)
    return None


@lru_cache(maxsize=256)
def _path(text: str) -> Path:
    return Path(text)


@lru_cache(maxsize=8)
def _bundled(package: str) -> str:
    return str(files(package))


def modified(path: Path) -> int:
    """When a file was last changed, in ns; 0 where there is none (reading it says why)."""
    try:
        return path.stat().st_mtime_ns
    except (OSError, ValueError):
        return 0


def is_hardware(path: Path) -> bool:
    """Whether a user's spec describes hardware: only such a file has a `memory`."""
    return "memory" in read_mapping(path)


def find_spec(name: str, package: str, kind: str) -> Path:
    """The file that `name` means: a path if it looks like one, else the spec of that name."""
    if name.endswith((".yaml", ".yml", ".json")) or "/" in name or os.sep in name:
        return Path(name)
    bundled = files(package) / f"{name}.yaml"
    if not os.environ.get(SEARCH_PATH) and name.replace("-", "").replace(".", "").isalnum() and bundled.is_file():
        return Path(str(bundled))
    known = spec_files(package)
    if name in known:
        return known[name]
    if name.lower() in known:
        return known[name.lower()]
    raise UnknownNameError(kind, name, known)


def as_mapping(content: object, where: str, key: str) -> Mapping[str, Any]:
    """`content`, which is what the file has under `key`; raises SpecError where it is no mapping."""
    if not isinstance(content, Mapping):
        raise SpecError(where, f"{quote(key)} must be a mapping of keys to values")
    return content


def check_keys(content: Mapping[str, Any], known: Iterable[str], where: str, place: str = "") -> None:
    """Raise SpecError, with the nearest valid key, for a key that the section at the key path `place` has not."""
    known = tuple(known)
    for key in content:
        if key not in known:
            raise SpecError(where, _unknown_key(key, known, place))


def _unknown_key(key: str, known: Iterable[str], place: str) -> str:
    inside = f" in {quote(place)}" if place else ""
    return f"unknown key {quote(key)}{inside}{suggest(key, known, listed=20)}"


Record = TypeVar("Record")
_UNKNOWN_KEY = ("extra_forbidden", "unexpected_keyword_argument")


def validate(
    adapter: TypeAdapter[Record],
    content: object,
    where: str,
    known: Mapping[str, Iterable[str]] | None = None,
    prefix: tuple[str, ...] = (),
) -> Record:
    """`content` as the adapter's type; `prefix` is the key path of the section that it is.

    Raises SpecError with the key and, for an unknown key, the nearest valid one.
    """
    from pydantic import ValidationError

    try:
        return adapter.validate_python(content)
    except ValidationError as error:
        raise SpecError(where, explain(error, known or {}, prefix)) from None
    except RecursionError:
        raise SpecError(where, "is nested too deeply") from None


def explain(error: ValidationError, known: Mapping[str, Iterable[str]], prefix: tuple[str, ...] = ()) -> str:
    """One sentence for the first problem of a validation error; `known` maps a section to its valid keys.

    A misspelt key is told before the key that is missing because of it.
    """
    problems = error.errors(include_url=False, include_context=True)
    misspelt = (problem for problem in problems if problem["type"] in _UNKNOWN_KEY)
    first = next(misspelt, problems[0])
    own = (str(part) for part in first["loc"])
    location = [*prefix, *(part for part in own if not part.startswith(("function-", "union", "is-instance")))]
    key = ".".join(location)
    match first["type"]:
        case kind if kind in _UNKNOWN_KEY:
            section = location[-2] if len(location) > 1 else ""
            return _unknown_key(location[-1], known.get(section, ()), ".".join(location[:-1]))
        case "missing" | "missing_argument":
            return f"the key {quote(key)} is missing"
    message = str(first.get("ctx", {}).get("error", "")) or first["msg"][:1].lower() + first["msg"][1:]
    message = re.sub(" or an instance of .*", "", message)
    given = first.get("input")
    shown = (
        f", got {quote(given)}"
        if isinstance(given, (str, int, float, bool)) and not first.get("ctx", {}).get("error")
        else ""
    )
    return f"{quote(key)}: {message}{shown}" if key else f"{message}{shown}"
