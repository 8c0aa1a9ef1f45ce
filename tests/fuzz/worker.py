"""A process of `make fuzz`, which gives inputs to their surfaces within limits of time and memory."""

from __future__ import annotations

import resource
import signal
import socket
import tempfile
import time
import traceback
import warnings
from multiprocessing.connection import Connection
from pathlib import Path

from tests.fuzz.surfaces import attack, surface_of
from tests.fuzzing import outcomes

SECONDS = 10
"""Longest processor time of an input."""

MEBIBYTES = 2048
"""Most memory of a process, its libraries included."""

ADDRESSES = 8 << 30
"""Bytes of addresses: beyond, Python raises MemoryError."""


class Hang(BaseException):
    """An input that takes too long; no reader catches it."""


def work(pipe: Connection, inputs: range, seed: int) -> None:
    """Attack with some inputs, each within its limits."""
    signal.signal(signal.SIGPROF, _alarm)
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESSES, ADDRESSES))
    warnings.simplefilter("ignore")
    forbid_connections()
    with tempfile.TemporaryDirectory() as folder:
        for index in inputs:
            name = surface_of(index).__name__
            pipe.send(("next", index))
            _reset_peak()
            start = time.process_time()
            signal.setitimer(signal.ITIMER_PROF, SECONDS)
            try:
                attack(seed, index, Path(folder) / "input")
            except Hang:
                pipe.send(("failed", (index, "hang", f"over {SECONDS} seconds")))
            except MemoryError:
                pipe.send(("failed", (index, "memory", "over 8 GiB")))
            except BaseException as error:
                place = traceback.extract_tb(error.__traceback__)[-1]
                text = f"{type(error).__name__}: {str(error)[:300]!r} at {Path(place.filename).name}:{place.lineno}"
                pipe.send(("failed", (index, "error", text)))
            finally:
                signal.setitimer(signal.ITIMER_PROF, 0)
            memory = _peak()
            if memory > MEBIBYTES:
                pipe.send(("failed", (index, "memory", f"{memory:.0f} MiB")))
            pipe.send(("done", name, time.process_time() - start, memory))
    pipe.send(("outcomes", dict(outcomes)))


def forbid_connections() -> None:
    """Make every connection of this process an error."""

    def connect(*where: object) -> None:
        raise AssertionError(f"a connection to {where[1:]}")

    for name in ("connect", "connect_ex"):
        setattr(socket.socket, name, connect)


def _alarm(*_: object) -> None:
    raise Hang


def _reset_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def _peak() -> float:
    """The most memory that this process has held since `_reset_peak`, in MiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))
