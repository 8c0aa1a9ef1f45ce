"""Where the chunks of a sweep are evaluated: processes of this machine, or a Dask cluster."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from msgspec import Struct

from roofline.core.errors import RooflineError, quote
from roofline.whatif.sweep import Executor

CONNECT = 5
"""Seconds that a scheduler has to answer."""

RETRIES = 10
"""Times that a chunk whose worker was lost is given to another one."""

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
"""Say how many threads a matrix product takes: one in a worker, as the workers are the threads."""


class Pool(Struct, frozen=True):
    """An executor, and how many chunks it should be given beforehand; None for neither is this process."""

    executor: Executor | None
    ahead: int = 1


@contextmanager
def pool(workers: int | None = None, dask: str | None = None) -> Iterator[Pool]:
    """So many worker processes, or those of the Dask scheduler at an address such as tcp://host:8786, or neither.

    Raises RooflineError where no scheduler answers or it has no workers.
    """
    if workers is not None and dask is not None:
        raise RooflineError("a sweep runs on --workers of this machine or on --dask, not on both")
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
    # Processes that start afresh, whatever threads this one has.
    context = multiprocessing.get_context("spawn")
    executor = ProcessPoolExecutor(workers, mp_context=context, initializer=_ignore_interrupts)
    try:
        with _environment(dict.fromkeys(THREADS, "1")):
            yield Pool(executor, 2 * workers + 1)
    finally:
        executor.shutdown(wait=True, cancel_futures=True)


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Variables for the processes that start meanwhile, where they are not set already."""
    added = {name: value for name, value in values.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


def _ignore_interrupts() -> None:
    """Whoever interrupts a sweep at the keyboard reaches its workers too, which are told to end by their parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


@contextmanager
def _cluster(address: str) -> Iterator[Pool]:
    try:
        distributed: Any = import_module("distributed")
    except ModuleNotFoundError:
        raise RooflineError("--dask needs distributed: pip install 'llm-roofline[cluster]'") from None
    for name in ("distributed", "distributed.client"):
        logging.getLogger(name).setLevel(
            logging.CRITICAL
        )  # lost workers are no news, and the rest is told in a sentence
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
        yield Pool(client.get_executor(retries=RETRIES), 2 * threads + 1)
    finally:
        client.close()
