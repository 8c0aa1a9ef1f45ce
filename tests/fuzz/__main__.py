"""`python -m tests.fuzz`: attack every surface in processes with limits of time and memory, and print the counts.

Each input is of a seed and a number, so that `--only NUMBER` repeats it.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import tempfile
import time
from collections import Counter
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, NamedTuple

import typer

from tests.fuzz.surfaces import attack, surface_of
from tests.fuzz.worker import MEBIBYTES, work

KILLED = 60
"""Seconds after which a process is killed that waits, or does not heed its alarm."""


class Failure(NamedTuple):
    """An input that broke a promise."""

    index: int
    kind: str
    text: str


def main() -> int:
    """Attack, print a table, and return 1 if a promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--first", type=int, default=0, help="the number of the first input")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--only", type=int, help="the number of one input, whose error is raised")
    options = parser.parse_args()
    if options.only is not None:
        with tempfile.TemporaryDirectory() as folder:
            attack(options.seed, options.only, Path(folder) / "input")
        return 0
    start = time.monotonic()
    numbers = range(options.first, options.first + options.inputs)
    jobs = [Job(numbers[job :: options.jobs], options.seed) for job in range(options.jobs)]
    while running := [job for job in jobs if not job.ended]:
        wait([job.pipe for job in running], timeout=5)
        for job in running:
            job.look()
    failures = [failure for job in jobs for failure in job.failures]
    _print(jobs, failures, time.monotonic() - start)
    return 1 if failures else 0


class Job:
    """A process that works on some inputs, and is started again behind one that kills it."""

    def __init__(self, inputs: range, seed: int) -> None:
        self.inputs, self.seed = inputs, seed
        self.failures: list[Failure] = []
        self.counts: Counter[str] = Counter()
        self.slowest: dict[str, float] = {}
        self.memory: dict[str, float] = {}
        self.ended = False
        self._start(inputs)

    def _start(self, inputs: range) -> None:
        self.current, self.since = (inputs[0] if inputs else -1), time.monotonic()
        self.pipe, other = multiprocessing.Pipe(duplex=False)
        self.process = multiprocessing.get_context("spawn").Process(target=work, args=(other, inputs, self.seed))
        self.process.start()
        other.close()

    def look(self) -> None:
        """Take what the process has said; replace it if it has died or does not answer."""
        try:
            while self.pipe.poll():
                self._take(self.pipe.recv())
        except EOFError:
            self.process.join()
            if not self.ended:
                self._replace("death", f"exit code {self.process.exitcode}")
            return
        if time.monotonic() - self.since > KILLED:
            self.process.kill()
            self.process.join()
            self._replace("hang", f"over {KILLED} seconds")

    def _take(self, said: tuple[Any, ...]) -> None:
        self.since = time.monotonic()
        match said:
            case ("next", index):
                self.current = index
            case ("done", name, seconds, memory):
                self.counts[name] += 1
                self.slowest[name] = max(self.slowest.get(name, 0.0), seconds)
                self.memory[name] = max(self.memory.get(name, 0.0), memory)
            case ("failed", failure):
                self.failures.append(Failure(*failure))
                typer.echo(f"input {failure[0]} ({surface_of(failure[0]).__name__}): {failure[1]}: {failure[2]}")
            case ("outcomes", found):
                self.counts.update(found)
                self.ended = True

    def _replace(self, kind: str, text: str) -> None:
        self._take(("failed", (self.current, kind, text)))
        rest = self.inputs[self.inputs.index(self.current) + 1 :]
        if rest:
            self._start(rest)
        else:
            self.ended = True


def _print(jobs: list[Job], failures: list[Failure], seconds: float) -> None:
    total: Counter[str] = Counter()
    for job in jobs:
        total.update(job.counts)
    answered, refused = total.pop("answered", 0), total.pop("refused", 0)
    typer.echo("| surface | inputs | slowest | most memory | broken promises |\n|---|---:|---:|---:|---:|")
    for name, count in total.items():
        slowest = max(job.slowest.get(name, 0.0) for job in jobs)
        memory = max(job.memory.get(name, 0.0) for job in jobs)
        broken = sum(surface_of(failure.index).__name__ == name for failure in failures)
        typer.echo(f"| {name} | {count:,} | {slowest:.1f} s | {memory:,.0f} MiB | {broken} |")
    kinds = Counter(failure.kind for failure in failures)
    typer.echo(
        f"\n{sum(total.values()):,} inputs in {seconds / 60:.1f} minutes; {answered:,} readings answered, {refused:,}"
        f" refused in one sentence; {kinds['error']} errors, {kinds['hang']} hangs, {kinds['memory']} over"
        f" {MEBIBYTES} MiB, {kinds['death']} deaths"
    )


if __name__ == "__main__":
    sys.exit(main())
