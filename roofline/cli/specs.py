"""The commands `roofline specs`, `techniques` and `schema`."""

from __future__ import annotations

import json
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from roofline.cli.options import FORMAT, OutputOption, emit, rendered, say
from roofline.core.errors import RooflineError

ListFormat = StrEnum("ListFormat", ["TABLE", "JSON"])
LevelChoice = StrEnum("LevelChoice", ["DATA", "MODEL", "SYSTEM"])
SpecKind = StrEnum("SpecKind", ["MODELS", "HARDWARE"])

specs = typer.Typer(
    help="List, show, check and import model and hardware specs.", rich_markup_mode=None, add_completion=False
)


def _show(document: Any, parts: Callable[[], list[Any]], format: StrEnum) -> None:
    from roofline.reports.output import export

    typer.echo(export.as_json(document) if format is ListFormat.JSON else rendered(parts(), to_terminal=True), nl=False)


def techniques(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="A technique, or a system that it covers.")] = None,
    level: Annotated[LevelChoice | None, typer.Option(help="List this level alone.")] = None,
    format: Annotated[ListFormat, FORMAT] = ListFormat.TABLE,
) -> None:
    """List the techniques of --with, or show one.

    A single technique is shown with its parameters and published effects, a name that is a model or hardware with its
    spec, and one of several models or devices with their names.
    """
    from roofline.core.errors import UnknownNameError
    from roofline.reports.documents import catalogue, listing

    try:
        documents = catalogue.techniques(name, None if level is None else str(level))
    except UnknownNameError as error:
        family = listing.family(str(name))
        try:
            if len(family) > 1:  # A vendor of both, as Cerebras is, is not the nearest of its models.
                raise error
            specs_show(str(name), format)
        except UnknownNameError:
            if not family:
                raise error from None
            _show(family, lambda: listing.family_parts(str(name), family), format)
        return
    if not documents and name is not None:
        (found,) = catalogue.techniques(name, None)
        raise RooflineError(f"{found['name']} is of level {found['level']}, not {level}")
    _show({"techniques": documents}, lambda: catalogue.parts(documents, alone=name is not None), format)


@specs.command("list")
def specs_list(
    kind: Annotated[SpecKind, typer.Argument(help="models or hardware.")],
    format: Annotated[ListFormat, FORMAT] = ListFormat.TABLE,
) -> None:
    """List models or hardware.

    Bundled specs, and those in ROOFLINE_SPECS.
    """
    from roofline.reports.documents import listing

    documents = listing.listed(str(kind))
    _show({str(kind): documents}, lambda: listing.parts(str(kind), documents), format)


@specs.command("show")
def specs_show(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="A model or hardware: a name, a spec file, config.json or checkpoint.")
    ],
    format: Annotated[ListFormat, FORMAT] = ListFormat.TABLE,
) -> None:
    """Show a spec with derived values.

    Parameters, KV bytes/token, ridge points.
    """
    from roofline import Hardware
    from roofline.reports.documents import listing
    from roofline.reports.documents.analysis import hardware_document, model_document
    from roofline.specs.modelspec import load_any

    found = load_any(name)
    document = hardware_document(found) if isinstance(found, Hardware) else model_document(found)
    _show(document, lambda: listing.card(document), format)


@specs.command("check")
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


@specs.command("import")
def specs_import(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="A Hugging Face config.json.")],
    name: Annotated[str | None, typer.Option(help="Name of the model. [default: that of the file or folder]")] = None,
    output: OutputOption = None,
) -> None:
    """Convert a Hugging Face config.json to a model spec."""
    from roofline.reports.documents import listing

    emit(listing.imported(config, name), output)


Subject = StrEnum("Subject", ["SCENARIO", "STUDY", "HARDWARE", "MODEL"])


def schema(
    subject: Annotated[Subject, typer.Argument(help="A scenario, a study file, or a spec file.")] = Subject.SCENARIO,
    output: OutputOption = None,
) -> None:
    """Print the JSON Schema of a scenario or of a file, for editors and clients."""
    from roofline.specs.schema import hardware_schema, model_schema
    from roofline.whatif.schema import scenario_schema, study_schema

    schemas = {
        Subject.SCENARIO: scenario_schema,
        Subject.STUDY: study_schema,
        Subject.HARDWARE: hardware_schema,
        Subject.MODEL: model_schema,
    }
    emit(f"{json.dumps(schemas[subject](), indent=2, ensure_ascii=False)}\n", output)
