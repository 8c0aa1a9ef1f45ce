"""User errors, one sentence each. The CLI prints them and exits with status 2."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path


class RooflineError(Exception):
    """Invalid input. The message is one sentence that states what is valid.

    `options` are the names of the options that would change it; a command adds their flags.
    """

    def __init__(self, message: str = "", *, options: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.options = tuple(options)


class UnknownNameError(RooflineError):
    """A name (model, hardware, format, key, ...) that does not exist.

    The message offers the `candidates`; without any, those of `known` that are nearest to the name.
    """

    def __init__(
        self,
        kind: str,
        name: object,
        known: Iterable[str],
        candidates: Sequence[str] = (),
        hint: str = "",
        options: Sequence[str] = (),
    ) -> None:
        self.candidates = tuple(candidates)
        near = offer(list(map(quote, candidates))) if candidates else suggest(name, known)
        super().__init__(f"unknown {kind} {quote(name)}{near}{hint}", options=options)


class SpecError(RooflineError):
    """An invalid spec file. `where` names the file, and the key in it if the error concerns one."""

    def __init__(self, where: str, problem: str, *, options: Sequence[str] = ()) -> None:
        super().__init__(f"{where if where.isprintable() else quote(where, 200)}: {problem}", options=options)


@contextmanager
def located(where: str, key: str = "") -> Iterator[None]:
    """A context whose errors name the file `where` and the key in it that they are about."""
    try:
        yield
    except SpecError:
        raise
    except RooflineError as error:
        raise SpecError(where, f"{quote(key)}: {error}" if key else str(error)) from None


class InexpressibleError(SpecError):
    """A valid file of an architecture that the records of a spec cannot express."""


class UnsupportedError(RooflineError):
    """A well-formed request that the simulator does not support."""


def quote(value: object, limit: int = 60) -> str:
    """`value` for a message: quoted, on one line, control characters escaped, truncated to `limit` characters."""
    return f"'{shortened(value if isinstance(value, str) else _shown(value), limit)}'"


def shortened(text: object, limit: int = 120) -> str:
    """What another library says of an input, which may be in it: control characters escaped, at most `limit` long."""
    text = visible(str(text)[: limit + 1])
    return text if len(text) <= limit else text[: limit - 1] + "…"


def visible(text: str) -> str:
    """`text` with escapes for characters that would control a terminal or that no encoding has."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _shown(value: object) -> str:
    """The text of a value other than a string; of a container only the kind, since YAML aliases can nest endlessly."""
    if isinstance(value, (dict, list, tuple, set)):
        return "a mapping" if isinstance(value, dict) else "a list"
    if (dimensions := getattr(value, "ndim", None)) and isinstance(dimensions, int):
        return "an array"
    try:
        return repr(value.item() if dimensions == 0 and hasattr(value, "item") else value)
    except ValueError:
        return "a number of thousands of digits"


def system_error(error: OSError) -> str:
    """The sentence of an error of the system, with its file if it has one, else of the output."""
    what = "cannot write the output" if error.filename is None else quote(os.fsdecode(error.filename), 200)
    return f"{what}: {error.strerror}"


MAX_COMPLETIONS = 6
"""Names that an error lists at most: more are not read."""

MAX_NAME = 100
"""Characters of an unknown name that are compared with known ones."""


def alternatives(options: Sequence[str]) -> str:
    """Options as text: 'a, b or c'."""
    return " or ".join(filter(None, (", ".join(options[:-1]), options[-1])))


def suggest(name: object, known: Iterable[str], listed: int = 16) -> str:
    """The end of a message about an unknown name: its completions, else the closest name, else the first ones."""
    options, name = sorted(set(known)), (name if isinstance(name, str) else _shown(name))[:MAX_NAME]
    completions = [quote(option) for option in options if _completes(option.lower(), str(name).lower())]
    if completions:
        return offer(completions)
    nearest = get_close_matches(str(name).lower(), options, n=1, cutoff=0.5)
    if nearest:
        return f"; did you mean {quote(nearest[0])}?"
    shown = options if len(options) <= listed else options[:MAX_COMPLETIONS]
    more = f" and {len(options) - len(shown)} others" if len(shown) < len(options) else ""
    return f"; known: {', '.join(quote(name)[1:-1] for name in shown)}{more}" if options else ""


def offer(names: Sequence[str]) -> str:
    """The end of a message that asks which of these names was meant."""
    shown = [*names[:MAX_COMPLETIONS], *(["others"] if len(names) > MAX_COMPLETIONS else [])]
    return f"; did you mean {alternatives(shown)}?"


def _completes(option: str, name: str) -> bool:
    """Whether `option` begins with the words of `name`, separators aside: h100-sxm for h100, llama-3-8b for llama3."""
    typed = [char for char in name if char.isalnum()]
    begun = re.match("".join(rf"[\W_]*{char}" for char in typed), option)
    if begun is None or len(typed) < 2:
        return False
    rest = option[begun.end() :]
    return not rest[:1].isalnum() or rest[0].isdigit() != typed[-1].isdigit()


DISTRIBUTION = "llm-roofline"


def install(extra: str) -> str:
    """The command that installs an extra where this package runs.

    `pip` alone may be that of another Python, which does not have the package and would look for it on an index. A
    checkout that is on the path and not installed is named by its folder.
    """
    from importlib import metadata

    python, pip = Path(sys.executable or "python"), shutil.which("pip")
    own = pip is not None and Path(pip).parent == python.parent
    near = python.relative_to(Path.cwd()) if python.is_relative_to(Path.cwd()) else python
    try:
        metadata.distribution(DISTRIBUTION)
        package = DISTRIBUTION
    except metadata.PackageNotFoundError:
        root = Path(__file__).absolute().parents[2]
        package = str(root) if (root / "pyproject.toml").is_file() else DISTRIBUTION
    return f"{'pip' if own else f'{shlex.quote(str(near))} -m pip'} install '{package}[{extra}]'"


@contextmanager
def needs_extra(extra: str) -> Iterator[None]:
    """A context in which a module that is missing raises RooflineError with the extra that installs it."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise RooflineError(f"this needs {error.name}: {install(extra)}") from None
