"""The program `roofline`: its commands, imported when they are called, and its exit status."""

from __future__ import annotations

import atexit
import ctypes
import gc
import io
import os
import re
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from types import MappingProxyType
from typing import Annotated, Any, cast

import typer
from typer.core import TyperGroup

QUESTIONS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "Does it run, and how fast? (roofline MODEL HW)": {"answer": "answer"},
        "How fast does a model run, and why?": dict.fromkeys(
            ("analyze", "explain", "compare", "sensitivity"), "questions"
        ),
        "What would make it faster, smaller or cheaper?": {
            "advise": "advice",
            "techniques": "specs",
            "solve": "questions",
        },
        "Which hardware, and how much of it?": {
            "size": "advice",
            "choose": "advice",
            "serve": "serving",
            "workload": "serving",
            "fleet": "serving",
            "launch": "launch",
        },
        "What about many scenarios, and how do they look?": {
            **dict.fromkeys(("sweep", "plot", "report"), "studies"),
            "view": "view",
        },
        "What is known, and how sure is it?": {
            "specs": "specs",
            "schema": "specs",
            "validate": "validate",
            "mcp": "mcp",
        },
    }
)
"""The commands by the question that they answer, each with its module: of a function, or of a Typer of several."""

COMMANDS: Mapping[str, str] = MappingProxyType(
    {name: module for commands in QUESTIONS.values() for name, module in commands.items()}
)

SETTINGS = {"compare": {"ignore_unknown_options": True}}
"""Parser settings of single commands."""


def _function(name: str) -> Any:
    return getattr(import_module(f"roofline.cli.{COMMANDS[name]}"), name)


def _summary(name: str) -> str:
    """The first line of a command's help. Its parser would have it, but takes milliseconds to build."""
    found = _function(name)
    text = found.info.help if isinstance(found, typer.Typer) else found.__doc__
    return str(text).splitlines()[0]


@cache
def _command(name: str) -> Any:
    found = _function(name)
    if not isinstance(found, typer.Typer):
        from roofline.cli.engine_flags import EngineFlags

        alone = typer.Typer(rich_markup_mode=None, add_completion=False)
        alone.command(name, cls=EngineFlags, context_settings=SETTINGS.get(name))(found)
        found = alone
    command = typer.main.get_command(found)
    command.name = name
    return command


OWN_OPTIONS = ("--version", "-h", "--help", "--help-all", "--")
"""What may come first beside a command and a model."""


def _near(name: str) -> tuple[str, list[str], int, float]:
    """A mistyped command or option, as arguments of `get_close_matches`; the names of models have digits."""
    known = OWN_OPTIONS if name.startswith("-") else () if any(map(str.isdigit, name)) else COMMANDS
    return name, list(known), 1, 0.75


class LazyCommands(Mapping[str, Any]):
    """The commands by name, each imported on first use."""

    def __getitem__(self, name: str) -> Any:
        return _command(name)

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


def _with_hub(args: list[str]) -> list[str]:
    """The arguments without `--hub`, which every command takes at any place."""
    end = args.index("--") if "--" in args else len(args)
    if "--hub" not in args[:end]:
        return args
    os.environ["ROOFLINE_HUB"] = "1"
    return [arg for index, arg in enumerate(args) if index >= end or arg != "--hub"]


class Program(TyperGroup):
    """The group of all commands. Typer alone would import all of them for each call: a tenth of a short call's time."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = cast(MutableMapping[str, Any], LazyCommands())

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """`MODEL HW [OPTIONS]` without the name of a command is `answer MODEL HW [OPTIONS]`."""
        args = _with_hub(args)
        if args and args[0] == "help":
            args = [*args[1:2], "--help"]
        if args and args[0] == "--help-all":  # of all commands there is no more
            args = ["--help"]
        if args and args[0] not in COMMANDS and args[0] not in OWN_OPTIONS and not get_close_matches(*_near(args[0])):
            args = ["answer", *args]
        return list(super().parse_args(ctx, args))

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 - the signature of its class
        """The commands by question, each with a whole sentence."""
        width = max(map(len, COMMANDS))
        for question, commands in QUESTIONS.items():
            formatter.write(f"\n{question}\n")
            formatter.indent()
            rows = [(name.ljust(width), _summary(name)) for name in commands]
            formatter.write_dl(rows)
            formatter.dedent()


app = typer.Typer(
    cls=Program,
    name="roofline",
    help="Predict LLM inference on given hardware: latency, throughput, memory, bottlenecks, and how to improve them.",
    epilog="For example: roofline llama-3.3-70b 2x4090",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)


def _version(requested: bool) -> None:
    if requested:
        from roofline import __version__

        typer.echo(f"roofline {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_version, is_eager=True)
    ] = False,
    hub: Annotated[
        bool,
        typer.Option("--hub", help="Read repositories without a bundled spec from the Hugging Face hub (any command)."),
    ] = False,
) -> None:
    pass


GC_THRESHOLD = 1_000_000
"""Allocations between garbage collections. A command keeps hundreds of thousands of objects (graphs, specs) and makes
hardly any cycle; Python's default of 700 costs a sixth of its time, each full collection a thirtieth."""


def main() -> None:
    """Run the command line: a user error prints one sentence on stderr and exits with status 2, without a traceback."""
    gc.set_threshold(GC_THRESHOLD)
    _keep_memory()
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")  # skips a search of all installed packages
    # Matrices are of hundreds of rows: threads cost more than they save, on a busy machine several times as much.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    atexit.register(_skip_final_collection)
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _terminate)
    _names_taken()  # those of an earlier command in the same process
    lost = io.BytesIO()
    if sys.stdout is None:  # it is closed: what is printed there is lost, which is no success
        sys.stdout = io.TextIOWrapper(lost, "utf-8")
    try:
        status = app(standalone_mode=False)
        sys.stdout.flush()
        if lost.tell():
            status = _complain("standard output is closed: name a file with --output")
        for sentence in _names_taken():
            _complain(sentence)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 0
    except SystemExit:
        if not type(sys.stdout).__name__.endswith("PacifyFlushWrapper"):
            raise
        status = 0  # Typer met a broken pipe: the reader of our output has closed it.
    except (KeyboardInterrupt, typer.Abort):
        status = 130
    except OSError as error:
        from roofline.core.errors import system_error

        status = _complain(system_error(error))
    except Exception as error:
        status = _explain(error)
    sys.exit(status if isinstance(status, int) else 0)


def _keep_memory() -> None:
    """Tell glibc to keep up to 32 MiB: the next array of a tenth of a megabyte would fault in page by page."""
    if sys.platform == "linux" and (mallopt := getattr(ctypes.CDLL(None), "mallopt", None)) is not None:
        for trim_or_mmap_threshold in (-1, -3):
            mallopt(trim_or_mmap_threshold, 1 << 25)


def _terminate(*_: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise SystemExit(128 + signal.SIGTERM)


def _skip_final_collection() -> None:
    """Skip the garbage collection at exit, a sixth of the time of `roofline advise`.

    Triton's bindings need it: they print objects that are left.
    """
    if "triton" not in sys.modules:
        gc.freeze()


def _explain(error: Exception) -> int:
    """The exit status of a user error, after its message; raises any other exception again, as a bug of ours."""
    from roofline.core.errors import RooflineError

    if isinstance(error, RooflineError):
        return _complain(with_flags(str(error), error.options), _remedy(error))
    # A usage error of Typer's parser; its class depends on the version.
    message = getattr(error, "format_message", None)
    if message is None:
        raise error
    context = getattr(error, "ctx", None)
    # Older versions repeat arguments of any length.
    sentence = re.sub(r"\S{100,}", lambda found: f"{found[0][:40]}...", message())
    parameter = getattr(getattr(error, "param", None), "name", None)
    if type(error).__name__ == "MissingParameter" and parameter in ("model", "hw"):
        from roofline.scenario.options import missing

        return _complain(with_flags(missing(parameter), ["hw"] if parameter == "hw" else []))
    return _complain(sentence, f"; see '{context.command_path} --help'" if context else "")


def _remedy(error: Exception) -> str:
    """What would make a deployment fit that does not, where it is that of an error."""
    from roofline.serving.replica import DoesNotFitError

    if not isinstance(error, DoesNotFitError):
        return ""
    from roofline.advisor.fitting import remedy

    found = remedy(error)
    return f"; {found} would do" if found else ""


def with_flags(message: str, options: Sequence[str]) -> str:
    """The message of an error in the words of the command line: names of options as flags, and those that help."""
    from roofline.cli.engine_flags import ALL

    named = re.sub(
        r"\b[a-z]+(?:_[a-z]+)+\b", lambda found: ALL[found[0]].flag if found[0] in ALL else found[0], message
    )
    named = re.sub(r"^([a-z]+)(?= (?:takes|must be) )", lambda found: _flag(found[0]), named)
    flags = [ALL[name].flag if name in ALL else f"--{name.replace('_', '-')}" for name in options]
    more = [flag for flag in flags if flag not in named]
    return f"{named.rstrip('.')} ({', '.join(more)})" if more else named


def _flag(name: str) -> str:
    """The flag of an option that an error begins with; metrics in conditions have the same names, and units."""
    from roofline.cli.engine_flags import ALL

    return ALL[name].flag if name in ALL else f"--{name}" if name in ("total", "users") else name


def _names_taken() -> tuple[str, ...]:
    """How names other than those of specs were read since the last call, a sentence each."""
    names = sys.modules.get("roofline.specs.names")  # imported only to read such a name
    return () if names is None else names.taken()


def _complain(message: str, hint: str = "") -> int:
    from roofline.cli.options import say

    say(f"roofline: {' '.join(message.replace('Value error, ', '').split()).rstrip('.')}{hint}", err=True)
    return 2
