"""The commands `roofline specs` and `roofline techniques`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from roofline.cli.options import FORMAT, OutputOption, emit, rendered, say

ListFormat = StrEnum("ListFormat", ["TABLE", "JSON"])
LevelChoice = StrEnum("LevelChoice", ["DATA", "MODEL", "SYSTEM"])
SpecKind = StrEnum("SpecKind", ["MODELS", "HARDWARE"])

specs_app = typer.Typer(
    help="List, show, check and import model and hardware specs.", rich_markup_mode=None, add_completion=False
)


def list_techniques(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="A technique, or a system that it covers.")] = None,
    level: Annotated[LevelChoice | None, typer.Option(help="List this level alone.")] = None,
    format: Annotated[ListFormat, FORMAT] = ListFormat.TABLE,
) -> None:
    """List the techniques of --with, or show one.

    A single technique is shown with its parameters and published effects.
    """
    from roofline.reports.documents import catalogue
    from roofline.reports.output import export

    documents = catalogue.techniques(name, None if level is None else str(level))
    if format is ListFormat.JSON:
        typer.echo(export.as_json({"techniques": documents}), nl=False)
    else:
        typer.echo(rendered(catalogue.parts(documents, alone=name is not None), True), nl=False)


@specs_app.command("list")
def specs_list(
    kind: Annotated[SpecKind, typer.Argument(help="models or hardware.")],
    format: Annotated[ListFormat, FORMAT] = ListFormat.TABLE,
) -> None:
    """List models or hardware.

    Bundled specs, and those in ROOFLINE_SPECS.
    """
    from roofline.reports.documents import listing
    from roofline.reports.output import export

    documents = listing.models() if kind is SpecKind.MODELS else listing.hardware()
    if format is ListFormat.JSON:
        typer.echo(export.as_json({str(kind): documents}), nl=False)
    else:
        typer.echo(rendered(listing.parts(str(kind), documents), True), nl=False)


@specs_app.command("show")
def specs_show(
    name: Annotated[
        str,
        typer.Argument(metavar="NAME", help="A model or hardware: a name, a spec file, config.json or checkpoint."),
    ],
    format: Annotated[ListFormat, FORMAT] = ListFormat.TABLE,
) -> None:
    """Show a spec with derived values.

    Parameters, KV bytes/token, ridge points.
    """
    from roofline import Hardware
    from roofline.reports.documents import listing
    from roofline.reports.documents.analysis import hardware_document, model_document
    from roofline.reports.output import export
    from roofline.specs.modelspec import load_any

    found = load_any(name)
    document = hardware_document(found) if isinstance(found, Hardware) else model_document(found)
    if format is ListFormat.JSON:
        typer.echo(export.as_json(document), nl=False)
    else:
        typer.echo(rendered(listing.card(document), True), nl=False)


@specs_app.command("check")
def specs_check(
    paths: Annotated[list[str], typer.Argument(metavar="FILE...", help="Spec files or config.json files, or names.")],
) -> None:
    """Check spec files.

    A file must be readable and complete, and match the published parameter count if it has one.
    """
    from roofline.reports.documents import listing
    from roofline.specs.modelspec import load_any

    for path in paths:
        say(listing.verdict(path, load_any(path)))


@specs_app.command("import")
def specs_import(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="A Hugging Face config.json.")],
    name: Annotated[str | None, typer.Option(help="Name of the model. [default: that of the file or folder]")] = None,
    output: OutputOption = None,
) -> None:
    """Convert a Hugging Face config.json to a model spec."""
    from roofline.reports.documents import listing

    emit(listing.imported(config, name), output)
