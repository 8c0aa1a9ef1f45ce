"""The command `roofline schema`."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Annotated

import typer

from roofline.cli.options import OutputOption, emit

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
