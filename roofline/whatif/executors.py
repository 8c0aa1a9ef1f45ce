"""Worker processes of sweeps on this machine."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager

from msgspec import Struct

from roofline.whatif.sweeps import Executor

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
"""Variables for the threads of BLAS: one per worker process."""


class Pool(Struct, frozen=True):
    """An executor (None: this process) and the number of chunks to submit ahead."""

    executor: Executor | None
    ahead: int = 1


@contextmanager
def pool(workers: int | None = None) -> Iterator[Pool]:
    """The pool of `workers` processes, or of this process."""
    if workers is None or workers == 1:
        yield Pool(None)
    else:
        with _processes(workers) as found:
            yield found


@contextmanager
def _processes(workers: int) -> Iterator[Pool]:
    # Spawned processes are safe whatever threads this one has.
    context = multiprocessing.get_context("spawn")
    executor = ProcessPoolExecutor(workers, mp_context=context, initializer=_end_with_parent)
    try:
        with _environment(dict.fromkeys(THREADS, "1")):
            with _interrupts_ignored():
                for _ in range(workers):  # each submission starts a process while none is idle
                    executor.submit(int)
            yield Pool(executor, 2 * workers + 1)
    finally:
        executor.shutdown(wait=True, cancel_futures=True)


def _end_with_parent() -> None:
    """Ends this worker when the process that started it ends, also one that was killed."""
    parent = multiprocessing.parent_process()

    def wait() -> None:
        if parent is not None:
            parent.join()  # a pipe that the parent holds open
            os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Sets environment variables that are not set yet, for processes started in this context."""
    added = {name: value for name, value in values.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


@contextmanager
def _interrupts_ignored() -> Iterator[None]:
    """Ignores Ctrl-C for an instant, and for good in processes that start meanwhile: this one ends them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
