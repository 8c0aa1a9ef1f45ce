"""The scheduler of an engine: how it fills its steps, and what a request takes outside them.

A step has the decode tokens of running sequences and tokens of prompts, up to a budget of `tokens`. A profile states
its policy under `scheduler`. The budget is by default that of the engine's memory (`Reserve.tokens`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from roofline.core.documents import finite_number
from roofline.core.errors import RooflineError, SpecError, quote, suggest
from roofline.core.units import Dimension, parse_quantity

ORDERS = MIXED, PREFILL_FIRST = ("mixed", "prefill first")
"""Chunks of prompts and decode tokens share a step (vLLM, TensorRT-LLM), or prompts have steps of their own, first."""


class Scheduler(Struct, frozen=True):
    """A scheduler's policy and times.

    `order`: one of ORDERS. `tokens`: the most tokens of a step (None: those of the engine's memory settings).
    `sequences`: the most running sequences of a replica of attention (0: no limit). `whole`: prompts are not cut into
    chunks. `reserved`: the part of a request's output that has room in the KV cache before the request is admitted;
    with less than 1, sequences are preempted where it runs out. `lag`: steps that are already scheduled when a request
    arrives. `poll`: decode steps from one look for new requests to the next (SGLang's --scheduler-recv-interval).
    `gather`: steps that prompts wait for others while sequences decode: with data-parallel attention until there is one
    for each rank (timeout_iters of TensorRT-LLM's attention_dp_config), else until they fill a step
    (batch_wait_timeout_iters). `stream`: decode steps from one message to the client to the next, the first included.
    `latency`: seconds from client to scheduler and back (HTTP, queues). `request`, `prompt_token`: seconds of the front
    end a request and a token of its prompt (tokenizer), one request after the other. `dispatch`: host seconds of each
    kernel of a step with prompts, which no CUDA graph replays: a step takes at least that long. `step`, `sequence`:
    host seconds of a step and of a sequence in it, of a server that streams to its clients (0: the profile's own).
    `spread_tpot`, `spread_ttft`: the distances of p10 and p90 from p50 of a latency under load, over those of the step
    times.
    """

    order: str = MIXED
    tokens: int | None = None
    sequences: int = 0
    whole: bool = False
    reserved: float = 0.0
    lag: int = 0
    poll: int = 1
    gather: int = 0
    stream: int = 1
    latency: float = 0.0
    request: float = 0.0
    prompt_token: float = 0.0
    dispatch: float = 0.0
    step: float = 0.0
    sequence: float = 0.0
    spread_tpot: tuple[float, float] = (1.0, 1.0)
    spread_ttft: tuple[float, float] = (1.0, 1.0)


PLAIN_SCHEDULER = Scheduler()

_COUNTS = ("tokens", "sequences", "lag", "poll", "gather", "stream")
MAX_COUNT = 10**9
_FRACTIONS = {"reserved": 1.0}
_TIMES = ("latency", "request", "prompt_token", "dispatch", "step", "sequence")
_SPREADS = ("spread_tpot", "spread_ttft")
_MAX_TIME = 10.0
MAX_SPREAD = 100
_KEYS = Scheduler.__struct_fields__


def parse_scheduler(content: object, where: str) -> Scheduler:
    """The policy under a profile's key 'scheduler'; `where` names the file in errors."""
    if not isinstance(content, Mapping):
        raise SpecError(where, "'scheduler' must map names to values")
    for name in content:
        if name not in _KEYS:
            raise SpecError(where, f"unknown key {quote(str(name))} in 'scheduler'{suggest(str(name), _KEYS)}")
    values: dict[str, Any] = {name: _value(name, value, where) for name, value in content.items()}
    return Scheduler(**values)


def _value(name: str, value: object, where: str) -> Any:
    key = f"scheduler.{name}"
    if name == "order":
        if value not in ORDERS:
            raise SpecError(where, f"'{key}' must be {' or '.join(map(repr, ORDERS))}, got {quote(str(value))}")
        return value
    if name == "whole":
        if not isinstance(value, bool):
            raise SpecError(where, f"'{key}' must be true or false")
        return value
    if name in _COUNTS:
        least = 0 if name in ("lag", "gather") else 1
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= MAX_COUNT:
            raise SpecError(where, f"'{key}' must be an integer from {least} to {MAX_COUNT}")
        return value
    if name in _TIMES:
        return _seconds(value, key, where)
    if name in _SPREADS:
        return _spread(value, key, where)
    number, most = finite_number(value), _FRACTIONS[name]
    if number is None or not 0 <= number <= most:
        raise SpecError(where, f"'{key}' must be a number from 0 to {most:g}")
    return number


def _seconds(value: object, key: str, where: str) -> float:
    try:
        seconds = 0.0 if finite_number(value) == 0 else parse_quantity(value, Dimension.TIME).value
    except RooflineError as error:
        raise SpecError(where, f"'{key}': {error}") from None
    if not 0 <= seconds <= _MAX_TIME:
        raise SpecError(where, f"'{key}' must be at most {_MAX_TIME:g} s")
    return seconds


def _spread(value: object, key: str, where: str) -> tuple[float, float]:
    ends = [finite_number(entry) for entry in value] if isinstance(value, list) else []
    match ends:
        case [float(low), float(high)] if 0 <= low <= MAX_SPREAD and 0 <= high <= MAX_SPREAD:
            return low, high
    raise SpecError(where, f"'{key}' must be two numbers from 0 to {MAX_SPREAD}")


def render_scheduler(scheduler: Scheduler) -> list[str]:
    """The lines of a profile's key 'scheduler'; `parse_scheduler` reads them back."""
    if scheduler == PLAIN_SCHEDULER:
        return []
    changed = {name: value for name in _KEYS if (value := getattr(scheduler, name)) != getattr(PLAIN_SCHEDULER, name)}
    return ["scheduler:", *(f"  {name}: {_written(name, value)}" for name, value in changed.items())]


def _written(name: str, value: Any) -> str:
    if name in _TIMES:
        return f"{value * 1e6:.4g} us"
    if name in _SPREADS:
        return f"[{value[0]:.4g}, {value[1]:.4g}]"
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)
