"""Locating spec files (bundled, in `ROOFLINE_SPECS`, or by path) and checking their keys."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from roofline.core.documents import MAX_BYTES, bundled_path, read_mapping
from roofline.core.errors import RooflineError, SpecError, quote, suggest
from roofline.core.inputs import check_allowed, read_text, reason
from roofline.core.registry import registered

SEARCH_PATH = "ROOFLINE_SPECS"
"""Environment variable: further spec folders or files, separated like PATH; they override the bundled ones."""


def spec_files(package: str) -> dict[str, Path]:
    """Every spec by name: the bundled ones of `package` (hwspecs or modelspecs), overridden by `ROOFLINE_SPECS`."""
    folder = bundled_path(package)
    found = _listed(File.at(folder))
    extra = {path.stem: path for path in reversed(list(_extra_files(package)))}
    return dict(sorted((found | extra).items())) if extra else dict(found)


@lru_cache(maxsize=4)
def _listed(folder: File) -> dict[str, Path]:
    return {path.stem: path for path in sorted(folder.path.glob("*.yaml"), key=lambda path: path.stem)}


def folders() -> tuple[Path, ...]:
    """The folder of the program with its packages, and the files and folders in `ROOFLINE_SPECS`."""
    program = bundled_path("")
    return (program, *filter(Path.is_dir, program.iterdir()), *_extra_roots())


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


def find_file(relative: str, package: str) -> Path | None:
    """The file `relative` in a folder of `ROOFLINE_SPECS`, or in its folder `package`, else in the bundled package.

    `relative` has names of specs in it, and leads to no other folder.
    """
    if not _INSIDE.fullmatch(relative):
        return None
    folders = (*_extra_folders(package), bundled_path(package))
    return next((path for folder in folders if exists(path := folder / relative)), None)


def exists(path: Path) -> bool:
    """Whether there is a file of a name that may be no valid one."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


_INSIDE = re.compile(r"(?!\.)[^/\\\0]+(/(?!\.)[^/\\\0]+)*")
"""A relative path through folders below, none of them hidden."""


def _extra_folders(package: str) -> Iterator[Path]:
    return (folder for root in _extra_roots() for folder in (root, root / package))


class File(NamedTuple):
    """A file as it was at a time (ns): equal ones have the same content."""

    path: Path
    modified: int

    @classmethod
    def at(cls, path: Path) -> File:
        """The file at a path, as it is now."""
        return cls(path, modified(path))


def is_own_path(name: str) -> bool:
    """Whether a name of a host, a network or an engine is the path of a file."""
    return name.endswith((".yaml", ".yml")) or "/" in name


def named_file(name: str, folder: str) -> File | None:
    """The file at a path, or of a name in a folder of hwspecs; None for a name without one."""
    if is_own_path(name):
        return File.at(Path(name))
    path = find_file(f"{folder}/{name}.yaml", "hwspecs") if name.replace("-", "").isalnum() else None
    return None if path is None else File.at(path)


def files_below(folder: Path) -> dict[str, File]:
    """The YAML files of a folder and its subfolders, by path in it without `.yaml`."""
    paths = sorted(folder.glob("**/*.yaml"))
    return {path.relative_to(folder).as_posix().removesuffix(".yaml"): File.at(path) for path in paths}


def overriding_files(folder: str, package: str) -> dict[str, File]:
    """The files of `ROOFLINE_SPECS` that `find_file` prefers to those below a folder of a bundled package."""
    if not os.environ.get(SEARCH_PATH):
        return {}
    folders = (extra / folder for extra in _extra_folders(package))
    own = [extra for extra in folders if not extra.is_relative_to(bundled_path(package))]
    return {name: file for extra in reversed(own) for name, file in files_below(extra).items()}


ENGINES, TECHNIQUES = "engines", "techniques"
"""The folders of `ROOFLINE_SPECS` with engine profiles, and with entries of the technique catalogue."""


def own_files(folder: str) -> dict[str, File]:
    """The YAML files in the folder of this name in each folder of `ROOFLINE_SPECS`, by name; the first one counts."""
    paths = [path for root in _extra_roots() for path in sorted((root / folder).glob("*.yaml"))]
    return {path.stem: File.at(path) for path in reversed(paths)}


def extensions() -> str:
    """A digest of what extends the program beside specs: registered functions, and techniques in `ROOFLINE_SPECS`.

    For keys of stored results; "" where nothing does. Raises SpecError for a file that cannot be read.
    """
    found = [registered(), *(read_text(file.path, MAX_BYTES) for file in own_files(TECHNIQUES).values())]
    return hashlib.sha256("\0".join(found).encode()).hexdigest() if any(found) else ""


def modified(path: Path) -> int:
    """A file's modification time in ns; 0 if it cannot be accessed (reading it raises the error).

    Raises RooflineError for a file that may not be opened (`roofline.core.inputs.restricted`), which may be cached.
    """
    check_allowed(path)
    try:
        return path.stat().st_mtime_ns
    except (OSError, ValueError):
        return 0


ADAPTER = "adapter_config.json"
"""The file of the `peft` library beside weights that come on top of a model."""

CONFIG, MODELOPT = "config.json", "hf_quant_config.json"
FORMAT_FILES = (MODELOPT, "quant_config.json", "quantize_config.json")
"""The files beside a Hugging Face model's in which NVIDIA's ModelOpt, AutoAWQ and AutoGPTQ name a checkpoint's formats.

Engines look for the same names (`get_config_filenames` of vLLM's quantization methods).
"""


def format_files(path: Path) -> tuple[Path, ...]:
    """Where such files are beside a config.json; none beside files of other names, which may be of other models."""
    return tuple(map(path.with_name, FORMAT_FILES)) if path.name == CONFIG else ()


def is_hardware(path: Path) -> bool:
    """Whether a spec file describes hardware: only those have the key `memory`."""
    return "memory" in read_mapping(path)


_REPOSITORY = re.compile(r"(?:https?://)?(?:[\w-]+\.\w+/)?\w[\w.-]*/\w[\w.:-]*(?:(?:@|/tree/)[\w.-]+)?", re.ASCII)
"""The id of a repository, owner/name, after the address of its hub, if any, and with a tag or revision, if any."""


def _is_path(name: str) -> bool:
    """Whether a name is that of a file: by its ending, or with separators and not the id of a repository."""
    if name.endswith((".yaml", ".yml", ".json", ".gguf", ".safetensors")) or name in (os.curdir, os.pardir):
        return True
    if "/" not in name and os.sep not in name:
        return False
    return _REPOSITORY.fullmatch(name) is None or os.path.exists(name)  # noqa: PTH110 - raises for no text


def written(name: object, kind: str) -> str:
    """The text of a name or a path; raises RooflineError for what is neither."""
    if isinstance(name, os.PathLike):
        path = str(os.fspath(name))
        return path if os.sep in path or _is_path(path) else f"{os.curdir}{os.sep}{path}"
    if not isinstance(name, str):
        raise RooflineError(f"{kind} is a name, a path or a {kind.capitalize()}, got {quote(name)}")
    return name


def spec_path(name: str, package: str) -> Path | None:
    """The spec file of `name`: a path if it looks like one, else the spec of that name; None for any other name."""
    if _is_path(name):
        return Path(name)
    bundled = bundled_path(package) / f"{name}.yaml"
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
        raise SpecError(where, f"{quote(key)} must be a mapping")
    return content


def check_keys(content: Mapping[str, Any], known: Iterable[str], where: str, place: str = "") -> None:
    """Raise SpecError, with the nearest valid key, for an unknown key in the section at the key path `place`."""
    known = tuple(known)
    for key in content:
        if key not in known:
            raise SpecError(where, unknown_key(key, known, place))


def unknown_key(key: str, known: Iterable[str], place: str) -> str:
    """The error for an unknown key in the section at the key path `place`, with the nearest valid ones."""
    inside = f" in {quote(place)}" if place else ""
    return f"unknown key {quote(key)}{inside}{suggest(key, known, listed=20)}"
