"""The examples of README and docs: found, run, and their shown output compared or renewed.

    python -m lab.examples [PAGE...]    # run all pages, or these, and renew the output that they show

A fenced block of `console`, `sh` or `bash` holds commands; where one begins with `$ `, the lines below it are its
output, `...` standing for any. A block of `python` runs in the namespace of its page. A block with a title is a file of
that name. All of a page runs in one folder, in the order of the page. A block below `<!-- not run: REASON -->` is not
run, but its commands must parse.
"""

from __future__ import annotations

import contextlib
import csv
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

import typer

ROOT = Path(__file__).parents[1]
SHELL = ("console", "sh", "bash")
_FENCE = re.compile(r"^ {0,3}```(?P<info>[^`]*)$")
_MARK = re.compile(r"<!-- not run: (?P<reason>.+?) -->")

Run = Callable[..., tuple[int, str, str]]
"""Runs `roofline ARGS`: exit status, stdout, stderr."""


class ExampleError(AssertionError):
    """An example that does not do what its page says."""


@dataclass(frozen=True)
class Command:
    """A command line: environment and words, and the output that is shown for it, with the index of its first line."""

    words: tuple[str, ...]
    environment: Mapping[str, str]
    shown: tuple[str, ...] = ()
    at: int = 0


@dataclass(frozen=True)
class Block:
    """A fenced block: its language and title, its lines and the index of the first, and why it is not run."""

    page: str
    language: str
    title: str | None
    lines: tuple[str, ...]
    at: int
    reason: str | None

    @property
    def where(self) -> str:
        """Where it stands, for messages."""
        return f"{self.page}:{self.at}"

    @property
    def commands(self) -> Iterator[Command]:
        prompted = any(line.startswith("$ ") for line in self.lines)
        index = 0
        while index < len(self.lines):
            line = self.lines[index]
            index += 1
            while line.endswith("\\") and index < len(self.lines):
                line = line[:-1] + self.lines[index].strip()
                index += 1
            if prompted:
                line, start = line.removeprefix("$ "), index
                while index < len(self.lines) and not self.lines[index].startswith("$ "):
                    index += 1
                shown = self.lines[start:index]
            else:
                start, shown = index, ()
            words = shlex.split(line, comments=True)
            environment = {}
            while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
                name, _, value = words.pop(0).partition("=")
                environment[name] = value
            if words:
                yield Command(tuple(words), environment, shown, self.at + start)


def pages() -> list[Path]:
    """README and every page of the documentation but the generated reference, whose examples are doctests."""
    docs = ROOT / "docs"
    return [ROOT / "README.md", *(page for page in sorted(docs.rglob("*.md")) if page.parent != docs / "reference")]


def blocks(path: Path) -> Iterator[Block]:
    """The fenced blocks of a page."""
    page = path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else path.name
    lines = path.read_text(encoding="utf-8").splitlines()
    index = 0
    while index < len(lines):
        opening = _FENCE.match(lines[index])
        index += 1
        if opening is None:
            continue
        start = index
        while index < len(lines) and lines[index].strip() != "```":
            index += 1
        above = next((line for line in reversed(lines[: start - 1]) if line.strip()), "")
        mark = _MARK.fullmatch(above.strip())
        language, _, rest = opening["info"].strip().partition(" ")
        title = re.search(r'title="([^"]+)"', rest)
        reason = None if mark is None else mark["reason"]
        yield Block(page, language, title and title[1], tuple(lines[start:index]), start, reason)
        index += 1


def furnish(folder: Path) -> None:
    """Put the files into a folder that examples expect: measurements, figures, a model's configuration."""
    config = folder / "path" / "to"
    config.mkdir(parents=True)
    shutil.copy(ROOT / "tests" / "data" / "configs" / "llama-3.1-8b.json", config / "config.json")
    gallery = folder / "lab" / "gallery"
    gallery.mkdir(parents=True)
    shutil.copy(ROOT / "lab" / "gallery" / "figure-7.yaml", gallery)
    (folder / "study.yaml").write_text("model: llama-3.1-8b\nhw: l40s\nover: {batch: [1, 8], quant: [W16, W4]}\n")
    write_measured(folder / "measured.csv")
    header = "model,hardware,gpus,engine,weights,kv,batch,input_len,output_len,metric,value,unit,source"
    row = "llama-2-7b,a100-sxm-80gb,1,vLLM 0.5,fp16,fp16,4,1000,100,batch_latency,3.5,s,made up"
    (folder / "figures.csv").write_text(f"{header}\n{row}\n")
    requests = [{"timestamp": 200 * at, "input_length": 900 + at, "output_length": 50} for at in range(20)]
    (folder / "trace.jsonl").write_text("".join(f"{json.dumps(request)}\n" for request in requests))
    benchmarks = ROOT / "tests" / "data" / "benchmarks"
    shutil.copy(benchmarks / "vllm-serve.json", folder / "result.json")
    shutil.copy(benchmarks.parent / "serving.csv", folder / "benchmarks.csv")  # made up


def write_measured(path: Path) -> None:
    """A small file of kernels such as `roofline validate measure` writes; the times are made up from the bound."""
    from roofline import load_hardware
    from roofline.timing.kernels import kernel_bound

    hardware = load_hardware("h100-sxm")
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("hardware", "op", "dtype", "m", "n", "k", "latency_us", "kernel", "software", "cache"))
        for m in (1, 16, 64, 128, 512, 1024, 4096, 8192):
            for n, k in ((4096, 4096), (14336, 4096), (4096, 14336)):
                columns: dict[str, float | str] = {"dtype": "bf16", "m": float(m), "n": float(n), "k": float(k)}
                time = 4.0 + 1.25e6 * float(kernel_bound("gemm", columns, hardware))
                writer.writerow(("h100-sxm", "gemm", "bf16", m, n, k, f"{time:.3f}", "torch", "made up", "cold"))


@dataclass
class Session:
    """The run of one page in a folder of its own."""

    folder: Path
    run: Run
    renew: bool = False
    namespace: dict[str, Any] = field(default_factory=lambda: {"__name__": "__main__"})
    renewed: dict[int, str] = field(default_factory=dict)

    def do(self, block: Block) -> None:
        """Run a block, or see that it parses; raises ExampleError where it does something else than the page says."""
        if block.title is not None:
            target = self.folder / block.title
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text("\n".join(block.lines) + "\n", encoding="utf-8")
        elif block.reason is not None:
            if len(block.reason) < 10:
                raise ExampleError(f"{block.where}: the mark needs a reason")
            for command in block.commands if block.language in SHELL else ():
                parse(command, block.where)
        elif block.language in SHELL:
            for command in block.commands:
                self._command(command, block.where)
        elif block.language == "python":
            code = compile("\n" * block.at + "\n".join(block.lines), block.page, "exec")
            with contextlib.redirect_stdout(None):
                exec(code, self.namespace)  # noqa: S102 - our own pages

    def _command(self, command: Command, where: str) -> None:
        words = command.words
        if words[0] == "make":
            words = recipe(words, where)
        if words[0] == "pip":
            parse(command, where)
            return
        if words[:2] == ("mkdir", "-p"):
            for name in words[2:]:
                (self.folder / name).mkdir(parents=True, exist_ok=True)
            return
        if words[0] != "roofline":
            raise ExampleError(f"{where}: {shlex.join(words)}: mark the block as not run, and say why")
        with _environment(command.environment):
            status, out, err = self.run(*words[1:])
        if status:
            raise ExampleError(f"{where}: {shlex.join(words)}: {err.strip() or f'exit status {status}'}")
        self._compare(command, f"{err}\n{out}".splitlines(), where)

    def _compare(self, command: Command, actual: list[str], where: str) -> None:
        """Every line that is shown must be among those that come, in their order."""
        found = 0
        flat = [" ".join(line.split()) for line in actual]
        for index, line in enumerate(command.shown):
            want = " ".join(line.split())
            if want in ("", "..."):
                continue
            if want in flat[found:]:
                found = flat.index(want, found) + 1
                continue
            if not self.renew or found == len(flat):
                raise ExampleError(f"{where}: {shlex.join(command.words)} does not print {want!r}; {RENEW}")
            found = max(range(found, len(flat)), key=lambda at: _alike(want, flat[at])) + 1
            self.renewed[command.at + index] = actual[found - 1].rstrip()


RENEW = "python -m lab.examples renews what pages show"


def _alike(one: str, other: str) -> float:
    """How alike two lines are, their numbers aside."""
    first, second = (re.sub(r"[\d.,]+", "0", line) for line in (one, other))
    return SequenceMatcher(None, first, second).ratio()


def recipe(words: tuple[str, ...], where: str) -> tuple[str, ...]:
    """The `roofline` command of a target of the Makefile; raises ExampleError where there is no such target."""
    lines = (ROOT / "Makefile").read_text(encoding="utf-8").splitlines()
    starts = [index for index, line in enumerate(lines) if line.startswith(f"{words[1]}:")]
    if not starts:
        raise ExampleError(f"{where}: the Makefile has no target {words[1]}")
    for line in lines[starts[0] + 1 :]:
        if not line.startswith("\t"):
            break
        if line.strip().startswith("$(BIN)/roofline"):
            return ("roofline", *shlex.split(line)[1:])
    raise ExampleError(f"{where}: make {words[1]} runs no command of roofline: mark the block as not run")


def parse(command: Command, where: str) -> None:
    """See that a command that is not run has options that exist; raises ExampleError."""
    words = command.words
    if words[0] == "make":
        if f"\n{words[1]}:" not in (ROOT / "Makefile").read_text(encoding="utf-8"):
            raise ExampleError(f"{where}: the Makefile has no target {words[1]}")
    elif words[0] == "pip":
        known = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        for extra in re.findall(r"\[(.+?)\]", " ".join(words)):
            if not set(extra.split(",")) <= set(known["optional-dependencies"]):
                raise ExampleError(f"{where}: there is no extra {extra}")
    elif words[0] == "roofline":
        _parse_roofline(list(words[1:]), where)
    elif words[:2] == ("python", "-m") and not (ROOT / words[2].replace(".", "/")).with_suffix(".py").exists():
        raise ExampleError(f"{where}: there is no module {words[2]}")


def _parse_roofline(words: list[str], where: str) -> None:
    from roofline import cli

    command: Any = typer.main.get_command(cli.app)
    flags = command.context_settings["help_option_names"]  # a command keeps those of its first context
    while hasattr(command, "commands"):
        name = words.pop(0)
        if name not in command.commands:
            raise ExampleError(f"{where}: there is no command {name}")
        command = command.commands[name]
    try:
        command.make_context(command.name, words, help_option_names=flags)
    except Exception as error:
        message = error.format_message() if hasattr(error, "format_message") else error
        raise ExampleError(f"{where}: roofline {command.name}: {message}") from error


@contextlib.contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _subprocess(*words: object) -> tuple[int, str, str]:
    command = [sys.executable, "-c", "from roofline.cli import main; main()", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - our own pages
    return done.returncode, done.stdout, done.stderr


def main() -> None:
    """Run every page, or those that are named, and write the output that has changed into them."""
    chosen = [Path(name).resolve() for name in sys.argv[1:]] or pages()
    os.environ["PYTHONPATH"] = f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    for path in chosen:
        with tempfile.TemporaryDirectory() as name, contextlib.chdir(name):
            furnish(Path(name))
            session = Session(Path(name), _subprocess, renew=True)
            for block in blocks(path):
                session.do(block)
        if session.renewed:
            lines = path.read_text(encoding="utf-8").splitlines()
            for index, line in session.renewed.items():
                lines[index] = line
            path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        sys.stdout.write(f"{path.relative_to(ROOT)}: {len(session.renewed)} lines renewed\n")


if __name__ == "__main__":
    main()
