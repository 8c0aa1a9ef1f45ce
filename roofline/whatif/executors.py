"""Executors of sweeps: processes on this machine, or a Dask cluster."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from importlib import import_module
from types import SimpleNamespace
from typing import Any

from msgspec import Struct

from roofline.core.errors import RooflineError, install, quote
from roofline.whatif.sweeps import Executor, LostWorkersError

CONNECT = 5
"""Timeout of the connection to a Dask scheduler, in seconds."""

PATIENCE = 10
"""Seconds to wait for a worker of a cluster that has none."""

RETRIES = 10
"""Retries of a chunk whose worker was lost."""

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
"""Variables for the threads of BLAS: one per worker process."""


class _Watchful:
    """A cluster's future that fails once no worker is left: Dask's wait for another one."""

    def __init__(self, future: Any, client: Any) -> None:
        self._future, self._client = future, client
        self.cancel = future.cancel

    def result(self) -> Any:
        """The result; raises LostWorkersError if the cluster has had no workers for `PATIENCE` seconds."""
        had = True
        while True:
            try:
                return self._future.result(timeout=PATIENCE / 2)
            except TimeoutError:
                has = bool(self._client.nthreads())
                if not has and not had:
                    raise LostWorkersError("the cluster has no workers left") from None
                had = has


class Pool(Struct, frozen=True):
    """An executor (None: this process) and the number of chunks to submit ahead."""

    executor: Executor | None
    ahead: int = 1


@contextmanager
def pool(workers: int | None = None, dask: str | None = None) -> Iterator[Pool]:
    """The pool of `workers` processes, of the Dask scheduler at an address such as tcp://host:8786, or of this process.

    Raises RooflineError if the scheduler does not answer or has no workers.
    """
    if workers is not None and dask is not None:
        raise RooflineError(
            "workers of this machine and a Dask cluster exclude each other", options=["workers", "dask"]
        )
    if dask is not None:
        with _cluster(dask) as found:
            yield found
    elif workers is None or workers == 1:
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


@contextmanager
def _cluster(address: str) -> Iterator[Pool]:
    try:
        distributed: Any = import_module("distributed")
    except ModuleNotFoundError:
        raise RooflineError(f"a Dask cluster needs distributed: {install('cluster')}", options=["dask"]) from None
    for name in ("distributed", "distributed.client"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # errors are reported as RooflineError
    try:
        client = distributed.Client(address, timeout=CONNECT, set_as_default=False)
    except (OSError, ValueError, TypeError, AttributeError):
        raise RooflineError(
            f"no Dask scheduler answers at {quote(address, 200)}; write it like tcp://host:8786"
        ) from None
    try:
        threads = sum(client.nthreads().values())
        if not threads:
            raise RooflineError(f"the Dask scheduler at {quote(address, 200)} has no workers")
        executor = client.get_executor(retries=RETRIES)
        watched: Any = SimpleNamespace(submit=lambda *call: _Watchful(executor.submit(*call), client))
        yield Pool(watched, 2 * threads + 1)
    finally:
        client.close()
