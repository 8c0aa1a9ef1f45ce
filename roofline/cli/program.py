"""The command line: a command parses, calls and prints; no arithmetic lives here."""

from __future__ import annotations

import atexit
import gc
import os
import re
import sys
from collections.abc import Iterator, Mapping, MutableMapping
from functools import cache
from importlib import import_module
from types import MappingProxyType
from typing import Annotated, Any, cast

import typer
from typer.core import TyperGroup

COMMANDS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "analyze": ("roofline.cli.questions", "analyze"),
        "solve": ("roofline.cli.questions", "solve"),
        "sensitivity": ("roofline.cli.questions", "sensitivity"),
        "advise": ("roofline.cli.advice", "advise"),
        "explain": ("roofline.cli.questions", "explain"),
        "compare": ("roofline.cli.questions", "compare"),
        "size": ("roofline.cli.advice", "size"),
        "sweep": ("roofline.cli.studies", "sweep"),
        "plot": ("roofline.cli.studies", "plot"),
        "report": ("roofline.cli.studies", "report"),
        "techniques": ("roofline.cli.specs", "list_techniques"),
        "specs": ("roofline.cli.specs", "specs_app"),
        "validate": ("roofline.cli.validate", "validate_app"),
    }
)
"""Where each command is: a function, or a Typer of several."""

SETTINGS = {"compare": {"ignore_unknown_options": True}}
"""What a command's parser does otherwise than the others'."""


@cache
def _made(name: str) -> Any:
    """The parser of a command."""
    module, attribute = COMMANDS[name]
    found = getattr(import_module(module), attribute)
    if not isinstance(found, typer.Typer):
        alone = typer.Typer(rich_markup_mode=None, add_completion=False)
        alone.command(name, context_settings=SETTINGS.get(name))(found)
        found = alone
    command = typer.main.get_command(found)
    command.name = name
    return command


class Lazily(Mapping[str, Any]):
    """The commands by name, each made when it is asked for."""

    def __getitem__(self, name: str) -> Any:
        return _made(name)

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


class Program(TyperGroup):
    """All commands. Typer would make every one of them for each call, which took a tenth of the time of a short one."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = cast(MutableMapping[str, Any], Lazily())


app = typer.Typer(
    cls=Program,
    name="roofline",
    help="How fast an LLM runs on a piece of hardware, what holds it back, and what it needs.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)


def _version(asked: bool) -> None:
    if asked:
        from roofline import __version__

        typer.echo(f"roofline {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    pass


SELDOM = 1_000_000
"""Objects made between two looks of the garbage collector: a command makes hundreds of thousands that it keeps (graphs,
specs) and hardly a cycle; the usual 700 cost it a sixth of its time, and each look at all of them a thirtieth."""


def main() -> None:
    """Run the command line: mistakes end with one sentence on stderr and exit status 2, never with a traceback."""
    gc.set_threshold(SELDOM)
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")  # it would look for some in every installed package
    atexit.register(_leave)
    try:
        status = app(standalone_mode=False)
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 0
    except SystemExit:
        if not type(sys.stdout).__name__.endswith("PacifyFlushWrapper"):
            raise
        status = 0  # Typer met a broken pipe: whoever read our output has had enough of it.
    except (KeyboardInterrupt, typer.Abort):
        status = 130
    except OSError as error:
        status = _complain(f"cannot write the output: {error.strerror}")
    except Exception as error:
        status = _explain(error)
    sys.exit(status if isinstance(status, int) else 0)


def _leave() -> None:
    """As the process ends it would look for cycles once more, for a sixth of the time that an advice takes.

    Triton's bindings want that: they print what is left of them.
    """
    if "triton" not in sys.modules:
        gc.freeze()


def _explain(error: Exception) -> int:
    """Status of a mistake in what was asked; any other exception is a defect of ours and raised again."""
    from roofline.core.errors import RooflineError

    if isinstance(error, RooflineError):
        return _complain(str(error))
    # A usage error of the option parser, whose class differs between versions of Typer.
    message = getattr(error, "format_message", None)
    if message is None:
        raise error
    context = getattr(error, "ctx", None)
    # Older ones repeat what was given, however long it is.
    sentence = re.sub(r"\S{100,}", lambda found: f"{found[0][:40]}...", message())
    return _complain(sentence, f"; see '{context.command_path} --help'" if context else "")


def _complain(message: str, hint: str = "") -> int:
    typer.echo(f"roofline: {' '.join(message.replace('Value error, ', '').split()).rstrip('.')}{hint}", err=True)
    return 2
