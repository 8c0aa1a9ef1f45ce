"""`python -m lab.launch_flags ENGINE`: the options of an installed engine's `--help`, beside the table of launches.

Names the options of `roofline/specs/servers.yaml` that the engine does not list, with exit status 2. What an engine
reads from a file of settings is not in its help, and is not checked.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence

from lab.command import run_command
from roofline.core.errors import RooflineError
from roofline.specs.servers import SERVERS, Server, server_of

HELP = {"vllm": "vllm serve --help=all", "tensorrt-llm": "trtllm-serve serve --help", "ollama": "ollama serve --help"}
"""Commands that list all options of an engine, where they are not its server's with --help."""

SECONDS = 300
"""The longest that a help may take: engines import their libraries first."""


def table_flags(server: Server, version: str) -> Iterator[str]:
    """The options, and the variables, of the table's rows that a version has."""
    for rows in server.rows.values():
        for row in rows:
            if row.holds(version) and ": " not in row.words:
                yield from (word.partition("=")[0] for word in row.words.split(" ") if re.match("-|[A-Z]", word))
    for keys in server.drafts.values():
        yield from (key for key in keys if key.startswith("-"))


def missing(server: Server, listed: str) -> list[str]:
    """The options of the newest version's rows that a help does not list."""
    names = set(re.findall(r"(?<![\w-])--?[a-zA-Z][\w-]*|[A-Z]+(?:_[A-Z]+)+", listed))
    return sorted(set(table_flags(server, server.versions[-1])) - names)


def main(arguments: Sequence[str] | None = None) -> int:
    """Check one engine; the exit status, 2 where an option is missing."""
    parser = ArgumentParser(prog="python -m lab.launch_flags", description=__doc__)
    parser.add_argument("engine", choices=SERVERS)
    return run_command(parser, _work, arguments)


def _work(options: Namespace) -> str:
    server = server_of(options.engine)
    command = shlex.split(HELP.get(server.name, f"{server.command.replace('{model}', '')} --help"))
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RooflineError(f"{shlex.join(command)} does not run: {error}") from None
    absent = missing(server, ran.stdout + ran.stderr)
    count = len(set(table_flags(server, server.versions[-1])))
    if absent:
        raise RooflineError(f"{server.title} does not list {', '.join(absent)}, which the table has")
    return f"{server.title}: the {count} options of the table are in its help\n"


if __name__ == "__main__":
    sys.exit(main())
