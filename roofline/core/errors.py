"""What can go wrong for the person, in one sentence each. The command line prints these and exits with status 2."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class RooflineError(Exception):
    """A mistake in what the program was given. Its text is one sentence that says what would be right."""


class UnknownNameError(RooflineError):
    """A name (model, hardware, format, key, ...) that does not exist."""

    def __init__(self, kind: str, name: object, known: Iterable[str]) -> None:
        super().__init__(f"unknown {kind} {quote(name)}{suggest(name, known)}")


class SpecError(RooflineError):
    """A file that cannot be read as a spec. `where` names the file, and the key inside it where there is one."""

    def __init__(self, where: str, problem: str) -> None:
        super().__init__(f"{where if where.isprintable() else quote(where, 200)}: {problem}")


class UnsupportedError(RooflineError):
    """A well-formed request for something the simulator cannot express."""


def quote(value: object, limit: int = 60) -> str:
    """`value` for a message: quoted, on one line, control characters escaped, cut to `limit` characters."""
    text = (value if isinstance(value, str) else _shown(value))[: limit + 1]
    text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    if len(text) > limit:
        text = text[: limit - 1] + "…"
    return f"'{text}'"


def _shown(value: object) -> str:
    """A value that is no text: scalars as they are, containers by their kind (aliases make some of them endless)."""
    if isinstance(value, (dict, list, tuple, set)):
        return "a mapping" if isinstance(value, dict) else "a list"
    try:
        return repr(value)
    except ValueError:
        return "a number of thousands of digits"


def suggest(name: object, known: Iterable[str], listed: int = 12) -> str:
    """The end of a message about an unknown name: those that go on from it, else the nearest, or all where few."""
    options = sorted(set(known))
    longer = [quote(option) for option in options if _goes_on(option.lower(), str(name).lower())]
    if longer:
        shown = [*longer[:CONTINUED], *(["others"] if len(longer) > CONTINUED else [])]
        return f"; did you mean {' or '.join(filter(None, (', '.join(shown[:-1]), shown[-1])))}?"
    nearest = get_close_matches(str(name).lower(), options, n=1, cutoff=0.5)
    if nearest:
        return f"; did you mean {quote(nearest[0])}?"
    if 0 < len(options) <= listed:
        return f"; known: {', '.join(name if name.isidentifier() else quote(name)[1:-1] for name in options)}"
    return ""


CONTINUED = 6
"""Names that are listed at most where several go on from what was asked for."""


def _goes_on(option: str, name: str) -> bool:
    """Whether `name` is the first words of `option`, however joined: h100 of h100-sxm, llama3 of llama-3-8b."""
    wanted = [char for char in name if char.isalnum()]
    if len(wanted) < 2:
        return False
    rest = list(option)
    for char in wanted:
        while rest and not rest[0].isalnum():
            rest.pop(0)
        if not rest or rest.pop(0) != char:
            return False
    return not rest or not rest[0].isalnum() or rest[0].isdigit() != wanted[-1].isdigit()
