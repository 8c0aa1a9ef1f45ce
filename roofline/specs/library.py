"""Locating spec files (bundled, in `ROOFLINE_SPECS`, or by path) and validating them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from roofline.core.documents import read_mapping
from roofline.core.errors import RooflineError, SpecError, quote, suggest
from roofline.core.inputs import reason

if TYPE_CHECKING:
    from pydantic import TypeAdapter, ValidationError

SEARCH_PATH = "ROOFLINE_SPECS"
"""Environment variable: further spec folders or files, separated like PATH; they override the bundled ones."""


def spec_files(package: str) -> dict[str, Path]:
    """Every spec by name: the bundled ones of `package` (hwspecs or modelspecs), overridden by `ROOFLINE_SPECS`."""
    found = {
        Path(str(entry)).stem: Path(str(entry))
        for entry in (files("roofline") / package).iterdir()
        if entry.name.endswith(".yaml")
    }
    for path in reversed(list(_extra_files(package))):
        found[path.stem] = path
    return dict(sorted(found.items()))


def _extra_roots() -> Iterator[Path]:
    """The files and folders in `ROOFLINE_SPECS`; raises RooflineError for one that does not exist."""
    for entry in filter(None, os.environ.get(SEARCH_PATH, "").split(os.pathsep)):
        root = Path(entry)
        try:
            exists = root.is_file() or root.is_dir()
        except (OSError, ValueError) as error:
            raise RooflineError(f"{SEARCH_PATH} names {quote(entry, 200)}: {reason(error)}") from None
        if not exists:
            raise RooflineError(f"{SEARCH_PATH} names {quote(entry, 200)}, which does not exist")
        yield root


def _extra_files(package: str) -> Iterator[Path]:
    for root in _extra_roots():
        folder = root / package if (root / package).is_dir() else root
        candidates = [root] if root.is_file() else sorted(folder.glob("*.y*ml"))
        yield from (path for path in candidates if is_hardware(path) == (package == "hwspecs"))


def find_file(relative: str, package: str, bundled: bool = False) -> Path | None:
    """The file `relative` in a folder of `ROOFLINE_SPECS`, or in its folder `package`, else in the bundled package.

    With `bundled` in the bundled package only. `relative` has names of specs in it, and leads to no other folder.
    """
    if not _INSIDE.fullmatch(relative):
        return None
    # Strings, not Paths, for speed: every simulated scenario locates its calibration.
    folders = [] if bundled else [str(folder) for root in _extra_roots() for folder in (root, root / package)]
    for folder in (*folders, _bundled(package)):
        path = f"{folder}/{relative}"
        if os.path.isfile(path):  # noqa: PTH113
            return _path(path)
    return None


_INSIDE = re.compile(r"(?!\.)[^/\\\0]+(/(?!\.)[^/\\\0]+)*")
"""A relative path through folders below, none of them hidden."""


@lru_cache(maxsize=256)
def _path(text: str) -> Path:
    return Path(text)


@lru_cache(maxsize=8)
def _bundled(package: str) -> str:
    return str(files("roofline") / package)


def is_bundled(path: Path, package: str = "hwspecs") -> bool:
    """Whether a file lies in the bundled package."""
    return str(path).startswith(_bundled(package))


def modified(path: Path) -> int:
    """A file's modification time in ns; 0 if it cannot be accessed (reading it raises the error)."""
    try:
        return path.stat().st_mtime_ns
    except (OSError, ValueError):
        return 0


def is_hardware(path: Path) -> bool:
    """Whether a spec file describes hardware: only those have the key `memory`."""
    return "memory" in read_mapping(path)


_REPOSITORY = re.compile(r"(?:https?://)?(?:[\w-]+\.\w+/)?\w[\w.-]*/\w[\w.:-]*", re.ASCII)
"""The id of a repository, owner/name, after the address of its hub, if any, and with a tag, if any."""


def _is_path(name: str) -> bool:
    """Whether a name is that of a file: by its ending, or with separators and not the id of a repository."""
    if name.endswith((".yaml", ".yml", ".json", ".gguf", ".safetensors")):
        return True
    if "/" not in name and os.sep not in name:
        return False
    return _REPOSITORY.fullmatch(name) is None or os.path.exists(name)  # noqa: PTH110 - raises for no text


def spec_path(name: str, package: str) -> Path | None:
    """The spec file of `name`: a path if it looks like one, else the spec of that name; None for any other name."""
    if _is_path(name):
        return Path(name)
    bundled = Path(_bundled(package), f"{name}.yaml")
    plain = len(name) < 200 and name.replace("-", "").replace(".", "").isalnum()
    if not os.environ.get(SEARCH_PATH) and plain and bundled.is_file():
        return bundled
    known = spec_files(package)
    return known.get(name) or known.get(name.lower())


def check_name(value: str, where: str, key: str) -> str:
    """A name in a file, by which another file is looked up; raises SpecError for a path."""
    if not _INSIDE.fullmatch(value) or "/" in value or value.endswith((".yaml", ".yml", ".json")):
        raise SpecError(where, f"{quote(key)} must be a name, not a path, got {quote(value)}")
    return value


def as_mapping(content: object, where: str, key: str) -> Mapping[str, Any]:
    """`content`, the value of `key` in the file; raises SpecError if it is not a mapping."""
    if not isinstance(content, Mapping):
        raise SpecError(where, f"{quote(key)} must be a mapping of keys to values")
    return content


def check_keys(content: Mapping[str, Any], known: Iterable[str], where: str, place: str = "") -> None:
    """Raise SpecError, with the nearest valid key, for an unknown key in the section at the key path `place`."""
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
    """Validate `content`, the section at the key path `prefix`, as the adapter's type.

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
    """One sentence for the first problem of a validation error; `known` maps sections to their valid keys.

    A misspelt key is reported before the key that is missing because of it.
    """
    problems = error.errors(include_url=False, include_context=True)
    misspelt = (problem for problem in problems if problem["type"] in _UNKNOWN_KEY)
    first = next(misspelt, problems[0])
    own = [str(part) for part in first["loc"]]
    if first["type"] not in _UNKNOWN_KEY:  # an unknown key may be called anything
        branches = ("function-", "union", "is-instance", "literal[")
        own = [part for part in own if part != "bool" and not part.startswith(branches)]
    location = [*prefix, *own]
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
