"""Run tasks in forked processes that may crash, hang or lose the device: what they found before is kept.

A kernel that faults leaves its process without a usable device, so tasks on a device run in processes of their own.
They are forked from one that has imported PyTorch and has not used the device, which saves them the import.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing import connection, get_context
from multiprocessing.process import BaseProcess
from typing import Any

from msgspec import Struct

FATAL = 70
"""Exit status of a worker whose device is lost."""


class Answer(Struct, frozen=True):
    """What became of a task: its value, or why there is none in a sentence, and the seconds it took."""

    task: Any
    value: Any
    error: str | None
    seconds: float


class Worker:
    """A forked process with a group of its own that computes one task at a time; one that `nests` may fork others."""

    def __init__(
        self, function: Callable[[Any], Any], tasks: Sequence[Any], fatal: Callable[[Exception], bool], nests: bool
    ) -> None:
        context = get_context("fork")
        self.connection, other = context.Pipe()
        work = (other, function, tasks, fatal)
        self.process: BaseProcess = context.Process(target=_serve, args=work, daemon=not nests)
        self.process.start()
        with suppress(OSError):  # the child does so too: whichever is first, its group is there before it can be ended
            os.setpgid(self.process.pid or 0, self.process.pid or 0)
        other.close()
        self.index: int | None = None
        self.started = 0.0

    def give(self, index: int) -> None:
        self.index, self.started = index, time.monotonic()
        self.connection.send(index)

    def stop(self) -> None:
        """End the process with what it started, whatever it does; those that it forked end with it."""
        self.connection.close()
        if self.process.pid is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)
        self.process.join(10)  # a process in a driver may not end at once


def _serve(
    channel: connection.Connection,
    function: Callable[[Any], Any],
    tasks: Sequence[Any],
    fatal: Callable[[Exception], bool],
) -> None:
    """Answer with the task's number, its value or the first line of its error, until there are no more tasks."""
    os.setpgid(0, 0)
    end_with_parent()
    while True:
        try:
            index = channel.recv()
        except EOFError:
            os._exit(0)
        try:
            value, error, lost = function(tasks[index]), None, False
        except Exception as raised:  # kernels, compilers and drivers raise any type
            value, error, lost = None, sentence(raised), fatal(raised)
        channel.send((index, value, error))
        if lost:
            os._exit(FATAL)


def end_with_parent() -> None:
    """End this forked process when the one that forked it ends, whichever way: nobody else would stop it."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def sentence(error: BaseException) -> str:
    """An error as one short line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__


def each(
    function: Callable[[Any], Any],
    tasks: Sequence[Any],
    workers: int,
    done: Callable[[Answer], None],
    seconds: float = float("inf"),
    fatal: Callable[[Exception], bool] = lambda _: False,
    nests: bool = False,
) -> int:
    """Compute every task in order in forked processes; returns how many were left when the `seconds` were over.

    `done` is called in this process with each answer. A process that dies, or that raises an error that is `fatal` for
    it, is replaced by another. With `nests` they may fork processes themselves.
    """
    if not tasks:
        return 0
    deadline = time.monotonic() + seconds
    waiting, finished = list(reversed(range(len(tasks)))), 0
    running: list[Worker] = []
    try:
        while finished < len(tasks):
            while len(running) < min(workers, len(waiting) + len(running)) and waiting:
                worker = Worker(function, tasks, fatal, nests)
                worker.give(waiting.pop())
                running.append(worker)
            left = deadline - time.monotonic()
            ready = connection.wait([worker.connection for worker in running], max(0.0, min(left, 3600.0)))
            if not ready and left <= 0:
                break
            for worker in [one for one in running if one.connection in ready]:
                finished += 1
                spent = time.monotonic() - worker.started
                try:
                    index, value, error = worker.connection.recv()
                except (EOFError, OSError):
                    running.remove(worker)
                    worker.process.join(5)
                    ended = f"its process ended with status {worker.process.exitcode}"
                    worker.stop()
                    done(Answer(tasks[worker.index or 0], None, ended, spent))
                    continue
                done(Answer(tasks[index], value, error, spent))
                if waiting and error is None:
                    worker.give(waiting.pop())
                else:  # after an error, whatever it was, the next task gets a process that is whole
                    running.remove(worker)
                    worker.stop()
    finally:
        for worker in running:
            worker.stop()
    return len(tasks) - finished
