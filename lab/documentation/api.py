"""The reference of the Python interface: the verbs, then the public names of each room, from their docstrings."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from enum import Enum
from importlib import import_module
from types import ModuleType
from typing import Any, ForwardRef

MODULES = (
    "roofline",
    *map("roofline.{}".format, ("core", "specs", "graph", "bound", "timing", "scenario", "techniques", "serving")),
    *("roofline.whatif", "roofline.launch"),
    "roofline.whatif.solve",
    "roofline.advisor",
    "roofline.verdict",
)
"""The public interface: the package and its rooms, in the order in which data flows."""

VERBS: Mapping[str, tuple[str, str]] = {
    "answer": ("does it run, and how fast?", "the answer"),
    "analyze": ("how fast, and does it fit?", "operators; of a grid its points"),
    "serve": ("and under load?", "concurrencies or rates"),
    "compare": ("which is better, and by which operators?", "scenarios"),
    "sweep": ("over all of these options?", "combinations"),
    "solve": ("which setting just meets a target?", "the answer, the next value, and others tried"),
    "advise": ("what should change?", "single changes"),
    "size": ("which hardware, and how much of it?", "choices"),
    "choose": ("which layout, format, engine ...?", "alternatives"),
    "explain": ("where does a figure come from?", "formulas with numbers"),
}
"""The verbs in order: the question, and the rows of `to_frame` of the answer."""


def python_page() -> str:
    """The verbs; then the public names of MODULES, each once: in the room that defines it."""
    lines = ["# Python", "", *_verbs(), "Below is the public interface, room by room.", ""]
    for name in MODULES:
        module = import_module(name)
        lines += [f"## {name}", "", *documented(inspect.getdoc(module) or ""), ""]
        if name == MODULES[0]:
            lines += ["Exports " + ", ".join(f"`{entry}`" for entry, _ in public(module)) + ", described below.", ""]
            continue
        for entry, value in public(module):
            lines += [] if entry in VERBS else [*_entry(entry, value), ""]
    return "\n".join(lines)


def _verbs() -> Iterator[str]:
    """The verbs with an example of each, and what their answers offer."""
    package = import_module(MODULES[0])
    yield (
        "A `Scenario` is the question, with every option by keyword; the verbs answer it. `print(answer)` gives a few"
        " lines, a notebook shows tables, `answer.to_dict()` is the document that the command prints as JSON,"
        " `answer.to_frame()` has the rows as a DataFrame, and every answer can be pickled. Times are in seconds, sizes"
        " in bytes; a target may be a text such as `30ms`."
    )
    yield from ("", "| verb | answers | rows of `to_frame()` |", "|---|---|---|")
    for name, (question, rows) in VERBS.items():
        yield f"| [`{name}`](#{name}) | {question} | {rows} |"
    yield ""
    for name in VERBS:
        verb = getattr(package, name)
        if inspect.isfunction(verb):
            yield from (*_entry(name, verb), "")
            continue
        yield from (f"### {name}", "", *documented(inspect.getdoc(verb) or ""))
        yield from ("| question | finds |", "|---|---|")
        for entry, value in public(verb):
            if inspect.isfunction(value):
                finds = " ".join(inspect.cleandoc(value.__doc__ or "").split("\n\n")[0].split())
                yield f"| [`{name}.{entry}`](#{entry}) | {literal(finds)} |"
        yield ""


def public(module: ModuleType) -> Iterator[tuple[str, Any]]:
    """What a module offers: the names of its `__all__`, else what it defines itself and does not begin with `_`."""
    chosen = getattr(module, "__all__", None)
    for name, value in vars(module).items() if chosen is None else ((name, getattr(module, name)) for name in chosen):
        described = inspect.isclass(value) or inspect.isfunction(value) or hasattr(value, "cache_info")
        own = getattr(value, "__module__", None) == module.__name__
        if described and not name.startswith("_") and (own or chosen is not None):
            yield name, value


def _entry(name: str, value: Any) -> list[str]:
    """A function, or a class with its public methods and properties."""
    kind = "class " if inspect.isclass(value) else ""
    lines = [f"### {kind}{name}", "", "```python", f"{name}{_signature(value)}", "```", ""]
    lines += documented(_own_doc(value))
    if inspect.isclass(value) and not issubclass(value, Exception):
        for member, found in _members(value).items():
            target = found.fget if isinstance(found, property) else getattr(found, "func", found)
            target = getattr(target, "__func__", target)
            if member.startswith("_") or not inspect.isfunction(target) or not target.__doc__:
                continue
            called = "" if isinstance(found, property) or hasattr(found, "func") else _signature(target)
            summary = " ".join(inspect.cleandoc(target.__doc__).split("\n\n")[0].split())
            lines.append(f"- `{member}{called}`: {literal(summary)}")
    return lines


def _members(value: type) -> dict[str, Any]:
    """What a class and its bases of the same room define."""
    room = value.__module__.split(".")[:2]
    found = [vars(base) for base in value.__mro__ if base.__module__.split(".")[:2] == room]
    return {name: member for members in reversed(found) for name, member in members.items()}


def _own_doc(value: Any) -> str:
    """A docstring; none where a dataclass or an enumeration made it."""
    text = inspect.cleandoc(value.__doc__ or "")
    return "" if text.startswith(f"{getattr(value, '__name__', '')}(") else text


class _Bare(str):
    """The text of an annotation, which a signature shows without quotes."""

    __slots__ = ()
    __repr__ = str.__str__


def _bare(annotation: Any) -> Any:
    """An annotation, without the quotes of one that is a text."""
    text = annotation.__forward_arg__ if isinstance(annotation, ForwardRef) else annotation
    return _Bare(text.replace('"', "'")) if isinstance(text, str) else text


def _signature(value: Any) -> str:
    if inspect.isclass(value) and issubclass(value, Enum):
        return ""
    try:
        found = inspect.signature(value)
        entries = [entry.replace(annotation=_bare(entry.annotation)) for entry in found.parameters.values()]
        text = str(found.replace(parameters=entries, return_annotation=_bare(found.return_annotation)))
    except (TypeError, ValueError):
        return ""
    text = re.sub(r"<factory>|<[\w.]+ object at 0x\w+>|<function .+? at 0x\w+>", "...", text)
    text = re.sub(r"\b(?:roofline|advisor|validate|typing|pathlib|collections\.abc|numpy)(?:\.\w+)*\.(?=\w)", "", text)
    text = re.sub(r"Annotated\[([\w.]+), msgspec\.Meta\([^()]*\)\]", r"\1", text)  # the type without its range
    text = re.sub(r"<(\w+)\.(\w+): [^>]+>", r"\1.\2", text)
    text = text.removesuffix(" -> None").replace("(self, ", "(").replace("(self)", "()")
    if len(text) <= 90:
        return text
    inside, _, returned = text[1:].rpartition(")")
    return "(\n    " + ",\n    ".join(_split(inside)) + f",\n){returned}"


def _split(parameters: str) -> Iterator[str]:
    """Parameters apart: at the commas that stand in no bracket."""
    depth, start = 0, 0
    for index, char in enumerate(parameters):
        depth += (char in "([{") - (char in ")]}")
        if char == "," and depth == 0:
            yield parameters[start:index].strip()
            start = index + 1
    yield parameters[start:].strip()


def literal(text: str) -> str:
    """Text of a docstring or a help in Markdown: what is in backquotes stays code, the rest is not interpreted."""
    parts = re.split(r"(``?[^`]+``?)", text)
    for index in range(0, len(parts), 2):
        parts[index] = re.sub(r"([\\*_<>\[\]|#])", r"\\\1", parts[index])
    return "".join(part.replace("|", "\\|") if index % 2 else part for index, part in enumerate(parts))


def documented(text: str) -> list[str]:
    """A docstring as Markdown: indented formulas and examples become blocks of code."""
    lines: list[str] = []
    for paragraph in inspect.cleandoc(text).split("\n\n"):
        if paragraph.startswith(">>>"):
            lines += ["```pycon", paragraph, "```", ""]
        elif paragraph.startswith("    "):
            lines += [paragraph, ""]
        else:
            rows = paragraph.splitlines()
            lines += [f"* {literal(row[2:])}" if row.startswith("* ") else literal(row) for row in rows]
            lines.append("")
    return lines
