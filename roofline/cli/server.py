"""The command `roofline validate server`: a live server measured beside its prediction."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from roofline.cli.options import FORMAT, AnswerFormat, print_document
from roofline.cli.scenario_options import scenario_command, with_parameters
from roofline.core.errors import RooflineError, needs_extra, quote
from roofline.core.options import names_in
from roofline.scenario.options import OPTIONS, STATIC
from roofline.specs.engine_versions import split_name

if TYPE_CHECKING:
    from roofline.scenario.scenario import Scenario

ModelOption = Annotated[
    str, typer.Option("--model", metavar="MODEL", help="The served model: a name, a repository, or a file.")
]


def _server(
    url: Annotated[str, typer.Argument(metavar="URL", help="The endpoint, such as http://localhost:8000/v1.")],
    scenario: Scenario,
    prompt: Annotated[str, typer.Option(metavar="LENGTHS", help="Prompt tokens of the loads, up to four.")] = "128,512",
    generate: Annotated[str, typer.Option(metavar="TOKENS", help="Tokens to generate per scenario.")] = "64",
    concurrency: Annotated[int | None, typer.Option(help="Most requests in flight. [default: 8]")] = None,
    api: Annotated[str, typer.Option(metavar="API", help="completions, or chat.")] = "completions",
    served_model: Annotated[
        str | None, typer.Option(metavar="NAME", help="The server's name of the model. [default: its only one]")
    ] = None,
    key_env: Annotated[
        str | None, typer.Option(metavar="VARIABLE", help="Environment variable with the API key. [default: no key]")
    ] = None,
    proxy: Annotated[
        str | None, typer.Option(metavar="URL", help="A proxy. [default: none, whatever the environment says]")
    ] = None,
    requests: Annotated[int, typer.Option(help="Most requests of the run.")] = 200,
    minutes: Annotated[float, typer.Option(help="Most minutes of the run.")] = 10.0,
    timeout: Annotated[float, typer.Option(help="Most seconds without a byte.")] = 60.0,
    fit: Annotated[
        Path | None, typer.Option("--fit", metavar="FILE", help="Write an engine profile fitted to the server (YAML).")
    ] = None,
    rows: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="Rows of the measurements; an existing file grows.")
    ] = Path("server.csv"),
    format: Annotated[AnswerFormat, FORMAT] = AnswerFormat.TABLE,
) -> None:
    """Measure a live server, and compare it with its prediction.

    Sends a small load to an OpenAI-compatible endpoint, and only to it: a single stream at each prompt length, then
    several requests in flight. Needs pip install 'llm-roofline[server]'.
    """
    from roofline.reports.documents.server import server_blocks
    from roofline.validate.servers.client import APIS
    from roofline.validate.servers.measure import Limits

    with needs_extra("server"):
        from roofline.validate.servers import server as measuring
    if api not in APIS:
        raise RooflineError(f"--api must be {' or '.join(APIS)}, got {quote(api)}")
    prompts = tuple(int(OPTIONS["prompt"].number(text)) for text in names_in(prompt))
    if not 1 <= len(prompts) <= 4:
        raise RooflineError(f"--prompt takes one to four lengths, got {len(prompts)}")
    output = int(OPTIONS["generate"].number(generate))
    most = measuring.DEFAULT_CONCURRENCY if concurrency is None else concurrency
    limits = Limits(requests, 60 * minutes, answer=max(10 * timeout, 60.0))
    _check_apart(scenario.given("engine"), fit)
    document = measuring.measure_server(
        measuring.Target(url, api, served_model, key_env, proxy),
        scenario,
        measuring.Plan(prompts, output, most, limits, timeout),
        rows,
        fit,
    )
    print_document(document, server_blocks(document), format, None)


def _check_apart(engine: object, fit: Path | None) -> None:
    """Raise RooflineError where the fitted profile would replace the one that the scenario has."""
    path = Path(split_name(engine)[0]) if isinstance(engine, str) else None
    if fit is not None and path is not None and path.exists() and fit.exists() and path.samefile(fit):
        raise RooflineError(
            f"{fit} is the profile that the scenario has: write the fitted one to another file", options=["fit"]
        )


def _with_model_option(command: Any) -> Any:
    """The command with `--model` in place of the argument MODEL."""
    entries = inspect.signature(command).parameters.values()
    return with_parameters(
        command, [entry.replace(annotation=ModelOption) if entry.name == "model" else entry for entry in entries]
    )


server = _with_model_option(scenario_command(_server, without={*STATIC, "prompt", "generate"}))
