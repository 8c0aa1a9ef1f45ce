"""The technique catalogue as documents and tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec.structs import asdict
from rich.text import Text

from roofline.reports.output.blocks import picked
from roofline.reports.output.cells import Column, table_of
from roofline.reports.output.terminal import table
from roofline.techniques import Technique, find_technique
from roofline.techniques import techniques as every


def techniques(name: str | None, level: str | None) -> list[dict[str, Any]]:
    """The techniques called `name` or of a `level`; all by default."""
    entries = [find_technique(name)] if name is not None else list(every().values())
    return [technique_document(entry) for entry in entries if level is None or entry.level == level]


def technique_document(technique: Technique) -> dict[str, Any]:
    """The JSON document of a technique."""
    return {
        **picked(technique, "name", "title"),
        "level": str(technique.level),
        "price": str(technique.price),
        **picked(technique, "effect", "slot"),
        "simulated": technique.change is not None or bool(technique.command),
        "command": technique.command or None,
        "caveat": technique.caveat,
        "same_as": technique.same_as or None,
        "reference": technique.reference,
        "covers": list(technique.covers),
        "parameters": [
            picked(parameter, "name", "default", "meaning", "low", "high") for parameter in technique.parameters
        ],
        "published": [asdict(figure) for figure in technique.published],
    }


def parts(documents: Sequence[Mapping[str, Any]], alone: bool) -> list[Any]:
    """The output of `roofline techniques`: a table, or one technique in full."""
    if alone:
        return [part for document in documents for part in _card(document)]
    hint = "Apply one with --with NAME[:key=value,...]; details: `roofline techniques NAME`."
    return [_table(documents, technique="name", level="level", price="price", effect="effect"), Text(hint, "dim")]


def _table(rows: Iterable[Mapping[str, Any]], **keys: str) -> Any:
    """A table of texts with the keys of its columns by title, in which an underscore is a blank."""
    columns = [Column(title.replace("_", " "), key, str) for title, key in keys.items()]
    return table(*table_of(columns, rows), left=len(columns))


def _card(document: Mapping[str, Any]) -> list[Any]:
    rows = [[key, str(document[key])] for key in ("title", "level", "price", "effect", "slot", "reference")]
    if document["caveat"]:
        rows.append(["limits" if document["simulated"] else "not simulated", document["caveat"]])
    if document["command"]:
        rows.append(["simulated by", document["command"]])
    if document["same_as"]:
        rows.append(["simulated as", f"{document['same_as']}, with the defaults below"])
    if document["covers"]:
        rows.append(["covers", ", ".join(document["covers"])])
    drawn: list[Any] = [table((document["name"], ""), rows, left=2)]
    if document["parameters"]:
        parameters = [{**entry, "range": _range(entry)} for entry in document["parameters"]]
        drawn.append(_table(parameters, parameter="name", default="default", range="range", meaning="meaning"))
    if document["published"]:
        keys = {"published_effect": "effect", "conditions": "conditions", "source": "source"}
        drawn.append(_table(document["published"], **keys))
    return drawn


def _range(parameter: Mapping[str, Any]) -> str:
    low, high = parameter["low"], parameter["high"]
    if low is None:
        return "-"
    return f"{low:g} to {high:g}" if high is not None else f"{low:g} or more"
