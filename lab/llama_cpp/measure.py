"""Timed passes of llama.cpp, through its Python binding: prefill of a prompt, and decode steps behind it."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from msgspec import Struct

from lab.llama_cpp.random_model import library
from roofline.core.errors import RooflineError

MICRO_BATCH = 512
"""Prompt tokens of one pass (`n_ubatch`, llama.cpp's default)."""

TOKEN = 300
"""A token of every vocabulary that does not end the text."""


class Span(NamedTuple):
    """Seconds of a call, and the part of them for which its threads ran: CPU time over wall time and threads."""

    seconds: float
    busy: float


class Timing(Struct, frozen=True):
    """The prefill of `prompt` tokens and a decode step behind it, each the fastest of its repeats."""

    prompt: int
    prefill: Span
    decode: Span


def time_passes(
    path: Path, threads: int, prompts: Sequence[int], repeats: int = 3, steps: int = 16, limit: float = 8.0
) -> Iterator[Timing]:
    """Time one sequence on `threads` threads; a prompt is repeated while its passes take less than `limit` seconds.

    The fastest repeat is the least disturbed one. On one thread CPU time is measured, which other processes do not
    lengthen. Several threads wait for each other at every operator, with their cores busy: CPU time well below that of
    all threads is that of a pass in which another process had a core. Raises RooflineError if llama.cpp cannot run the
    file.
    """
    llama = library("llama_cpp")
    with _context(llama, path, threads, max(prompts) + steps) as context:
        _decode(llama, context, 32, threads)  # the first pass allocates
        for prompt in prompts:
            prefills: list[Span] = []
            decodes: list[Span] = []
            while len(prefills) < repeats and sum(span.seconds for span in prefills) < limit:
                llama.llama_memory_clear(llama.llama_get_memory(context), True)
                prefills.append(_decode(llama, context, prompt, threads))
                decodes += [_decode(llama, context, 1, threads) for _ in range(steps)]
            yield Timing(prompt, min(prefills), min(decodes))


def _decode(llama: Any, context: Any, tokens: int, threads: int) -> Span:
    """One call for `tokens` further tokens of the sequence."""
    array = (llama.llama_token * tokens)(*([TOKEN] * tokens))
    batch = llama.llama_batch_get_one(array, tokens)
    wall, cpu = time.perf_counter(), time.process_time()
    status = llama.llama_decode(context, batch)
    llama.llama_synchronize(context)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    if status:
        raise RooflineError(f"llama.cpp could not run a pass of {tokens} tokens (status {status})")
    return Span(cpu, 1.0) if threads == 1 else Span(wall, min(cpu / (threads * wall), 1.0))


@contextmanager
def _context(llama: Any, path: Path, threads: int, tokens: int) -> Iterator[Any]:
    """A context for one sequence of `tokens` tokens, with llama.cpp's log switched off."""
    silent = llama.llama_log_callback(lambda *_: None)
    llama.llama_log_set(silent, ctypes.c_void_p(0))
    llama.llama_backend_init()
    model = llama.llama_model_load_from_file(str(path).encode(), llama.llama_model_default_params())
    if not model:
        raise RooflineError(f"llama.cpp cannot load {path}")
    options = llama.llama_context_default_params()
    options.n_ctx, options.n_batch, options.n_ubatch = -(-tokens // 256) * 256, tokens, MICRO_BATCH
    options.n_threads = options.n_threads_batch = threads
    context = llama.llama_init_from_model(model, options)
    try:
        if not context:
            raise RooflineError(f"llama.cpp cannot make a context of {tokens} tokens")
        yield context
    finally:
        if context:
            llama.llama_free(context)
        llama.llama_model_free(model)
