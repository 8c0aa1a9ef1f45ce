"""`roofline specs` and `techniques`: what is known, and what can be applied."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from roofline.cli.options import OutputOption, drawn, emit

if TYPE_CHECKING:
    from roofline import Hardware, Model


class ListFormat(StrEnum):
    """How specs are printed."""

    TABLE = "table"
    JSON = "json"


class LevelChoice(StrEnum):
    """What a technique changes."""

    DATA = "data"
    MODEL = "model"
    SYSTEM = "system"


class SpecKind(StrEnum):
    """What is listed."""

    MODELS = "models"
    HARDWARE = "hardware"


specs_app = typer.Typer(
    help="List, show, check and import model and hardware specs.", rich_markup_mode=None, add_completion=False
)


def list_techniques(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="A technique or a system it covers.")] = None,
    level: Annotated[LevelChoice | None, typer.Option(help="Only this level.")] = None,
    format: Annotated[ListFormat, typer.Option(help="How to print.")] = ListFormat.TABLE,
) -> None:
    """List the techniques that --with applies, or show one with its parameters and published effects."""
    from roofline.reports.documents import catalogue
    from roofline.reports.output import export

    documents = catalogue.techniques(name, None if level is None else str(level))
    if format is ListFormat.JSON:
        typer.echo(export.as_json({"techniques": documents}), nl=False)
    else:
        typer.echo(drawn(catalogue.parts(documents, alone=name is not None), True), nl=False)


@specs_app.command("list")
def specs_list(
    kind: Annotated[SpecKind, typer.Argument(help="models or hardware.")],
    format: Annotated[ListFormat, typer.Option(help="How to print.")] = ListFormat.TABLE,
) -> None:
    """List every model or all hardware that is known, bundled or from ROOFLINE_SPECS."""
    from roofline.reports.documents import listing
    from roofline.reports.output import export

    documents = listing.models() if kind is SpecKind.MODELS else listing.hardware()
    if format is ListFormat.JSON:
        typer.echo(export.as_json({str(kind): documents}), nl=False)
    else:
        typer.echo(drawn(listing.parts(str(kind), documents), True), nl=False)


@specs_app.command("show")
def specs_show(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="A model or hardware: a name, a spec file or a config.json.")
    ],
    format: Annotated[ListFormat, typer.Option(help="How to print.")] = ListFormat.TABLE,
) -> None:
    """Show one spec with what follows from it: parameters, KV bytes a token, ridges."""
    from roofline import Hardware
    from roofline.reports.documents import listing
    from roofline.reports.documents.analysis import hardware_document, model_document
    from roofline.reports.output import export

    found = _any_spec(name)
    document = hardware_document(found) if isinstance(found, Hardware) else model_document(found)
    if format is ListFormat.JSON:
        typer.echo(export.as_json(document), nl=False)
    else:
        typer.echo(drawn(listing.card(document), True), nl=False)


@specs_app.command("check")
def specs_check(
    paths: Annotated[list[str], typer.Argument(metavar="FILE...", help="Spec files or config.json files, or names.")],
) -> None:
    """Check spec files: readable, complete, and the published parameter count met where one is given."""
    from roofline.reports.documents import listing

    for path in paths:
        typer.echo(listing.verdict(path, _any_spec(path)))


@specs_app.command("import")
def specs_import(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="A Hugging Face config.json.")],
    name: Annotated[str | None, typer.Option(help="Name of the model. [default: the file's or folder's]")] = None,
    output: OutputOption = None,
) -> None:
    """Write a Hugging Face config.json as a model spec."""
    from roofline.reports.documents import listing

    emit(listing.imported(config, name), output)


def _any_spec(name: str) -> Model | Hardware:
    from roofline.specs.catalogue import load_any

    return load_any(name)
