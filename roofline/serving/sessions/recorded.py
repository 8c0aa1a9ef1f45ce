"""Recorded requests as a workload of sessions: distributions alone, no text, name or hash of a request.

Formats, recognised by their fields:

    request log (CSV, JSONL)        arrival, prompt and output tokens, a session (session_id, conversation_id, ...)
    Mooncake (JSONL)                timestamp (ms), input_length, output_length, hash_ids of 512 tokens
    Weka, kv-cache-tester (JSON)    a session an object: requests with t, in, out, api_time, hash_ids; sub-agents inside
    AIPerf, GenAI-Perf (JSONL)      records with metadata and metrics, or session_id and delay: input_length is then new
    vLLM's multi-turn, ShareGPT     messages or conversations: texts, whose tokens are characters over a given number
    a server's /metrics             histograms of vLLM's and SGLang's prompt and output tokens: requests of one turn

Without a session a request follows the one whose blocks it begins with. A prompt of less than half of the context is a
call beside the session if the context comes back, else another session.
"""

from __future__ import annotations

import json
import math
import re
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from roofline.core.errors import RooflineError, SpecError, quote
from roofline.core.inputs import read_text
from roofline.core.limits import MAX_LENGTH
from roofline.scenario.lengths import parse_lengths
from roofline.serving.sessions.workload import Replayed, Workload, parse_gaps
from roofline.serving.tables import Array
from roofline.serving.traces import HASH_TOKENS, MAX_BYTES, OUTPUTS, PROMPTS, TIMES, column, rows_in, time_of

SESSIONS = ("session_id", "session", "conversation_id", "chat_id", "thread_id", "user_id", "user")
ENDS = ("end", "end_time", "finish", "completion_time")
DURATIONS = ("api_time", "latency", "latency_s", "e2e", "duration", "duration_s")
"""Columns by name, in lower case."""

QUANTILES = (1, 5, 10, 25, 50, 75, 90, 95, 99, 100)
"""The percentiles of a distribution that are kept, to three digits."""

BLOCK = 64
"""Tokens of a hash of Weka's traces where they do not say (callanjfox/kv-cache-tester)."""

FEW = 20
"""Sessions below which quantiles are those of single ones."""


class Request(NamedTuple):
    """Seconds of its begin and end (NaN: unknown), tokens of its prompt and output, and hashes of its blocks."""

    start: float
    end: float
    prompt: int
    output: int
    blocks: tuple[Hashable, ...] = ()


START = attrgetter("start")


class Recorded(NamedTuple):
    """A workload, and what it was read from: the kind of file, its sessions and requests."""

    workload: Workload
    kind: str
    sessions: int
    requests: int

    @property
    def note(self) -> str:
        """One line for the person."""
        few = f"; below {FEW} sessions percentiles are single ones" if self.sessions < FEW else ""
        return f"{self.kind}: {self.requests} requests in {self.sessions} sessions{few}"


def read_recorded(path: Path, characters: float | None = None) -> Recorded:
    """The workload of a file; `characters` of a token, for texts. Raises RooflineError."""
    where, text = str(path), read_text(path, MAX_BYTES)
    if re.search(r"^# (HELP|TYPE) ", text, re.MULTILINE):
        return _served(text, where)
    kind, found = _sessions(text, where, characters)
    sessions = [part for session in found for part in _parts(session)]
    if not sessions:
        raise SpecError(where, "has no requests with tokens")
    return Recorded(_workload(sessions, kind), kind, len(sessions), sum(map(len, sessions)))


def hit_rates(path: Path, pools: Sequence[float]) -> list[float]:
    """Of the prompt tokens of a trace with block hashes, the fractions that caches of so many tokens have.

    Requests come one after the other, in order of their begin; least recently used blocks go. Raises RooflineError.
    """
    where = str(path)
    requests = sorted((each for part in _sessions(read_text(path, MAX_BYTES), where)[1] for each in part), key=START)
    blocks, tokens = sum(len(each.blocks) for each in requests), sum(each.prompt for each in requests)
    if not blocks:
        raise SpecError(where, "has no block hashes, of which a cache could find some")
    size = next(size for size in (BLOCK, HASH_TOKENS, math.inf) if tokens <= blocks * size)
    if math.isinf(size):
        raise SpecError(where, f"has fewer hashes than one in {HASH_TOKENS} tokens")
    found = (found_blocks([each.blocks for each in requests], pool // size) for pool in pools)
    return [
        sum(min(hit * size, each.prompt) for hit, each in zip(hits, requests, strict=True)) / tokens for hits in found
    ]


def found_blocks(requests: Iterable[Sequence[Hashable]], most: float) -> list[int]:
    """The leading blocks of each request that a cache of so many has; the last ones of a request go first."""
    order, found = OrderedDict[Hashable, None](), list[int]()
    for blocks in requests:
        found.append(next((place for place, block in enumerate(blocks) if block not in order), len(blocks)))
        for block in blocks:
            order.pop(block, None)
        while order and len(order) + len(blocks) > most:
            order.popitem(last=False)
        order.update(dict.fromkeys(reversed(blocks)))
        while len(order) > most:
            order.popitem(last=False)
    return found


def _sessions(text: str, where: str, characters: float | None = None) -> tuple[str, list[list[Request]]]:
    """The kind of a file, and its requests by session, in order. Raises SpecError."""
    rows = [dict(row) for _, row in rows_in(text, where)]
    try:
        kind, found = _requests(rows, where, characters)
        return kind, [sorted(session, key=START) for session in found]
    except (AttributeError, KeyError, TypeError, ValueError):  # a request of another shape than the first
        raise SpecError(where, "has a request that cannot be read") from None


def _requests(rows: list[dict[str, Any]], where: str, characters: float | None) -> tuple[str, Iterable[list[Request]]]:
    first = rows[0] if rows else {}
    if isinstance(first.get("requests"), list):
        traces = enumerate(rows)
        return "Weka traces", (
            part for number, row in traces for part in _weka(row, row.get("block_size"), where, number)
        )
    if isinstance(first.get("messages") or first.get("conversations"), list):
        if not characters:
            raise SpecError(where, "has texts: say how many characters a token has", options=["characters"])
        return "conversations", [_conversation(row, characters) for row in rows]
    if isinstance(first.get("metadata"), Mapping) and isinstance(first.get("metrics"), Mapping):
        return "AIPerf records", _grouped((_record(row), row["metadata"]) for row in rows)
    names = [column(first, each) for each in (TIMES, PROMPTS, OUTPUTS, ENDS, DURATIONS)]
    if names[1] is None or names[2] is None:
        raise SpecError(where, "has no known columns of prompt and output tokens")
    hashed = isinstance(first.get("hash_ids"), list)
    read = [_row(row, names, 1e-3 if hashed else 1.0, where) for row in rows]
    if column(first, SESSIONS) is None:
        if not hashed:
            return "requests without sessions", [[each] for each in read]
        return "Mooncake trace", _joined(read)
    sessions = _grouped(zip(read, rows, strict=True))
    if "delay" in first:
        delays = _grouped((_tokens(row.get("delay") or 0, where) / 1e3, row) for row in rows)
        return "AIPerf sessions", [_grown(*each) for each in zip(sessions, delays, strict=True)]
    return "request log", sessions


def _row(row: Mapping[str, Any], names: Sequence[str | None], scale: float, where: str) -> Request:
    time, prompt, output, end, duration = names
    start = math.nan if time is None else time_of(row.get(time), where, 0) * scale
    ends = math.nan
    if end is not None:
        ends = time_of(row.get(end), where, 0) * scale
    elif duration is not None:
        ends = start + _tokens(row.get(duration), where)
    prompts, outputs = (int(_tokens(row.get(name or ""), where)) for name in (prompt, output))
    return Request(start, ends, prompts, outputs, tuple(map(str, row.get("hash_ids") or ())))


def _tokens(value: object, where: str = "") -> float:
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not 0 <= number <= MAX_LENGTH:
        raise SpecError(where or "the file", "has a request without a number of tokens or seconds")
    return number


def _weka(session: Mapping[str, Any], block: object, where: str, number: int) -> Iterator[list[Request]]:
    """A session, and those of its sub-agents; hashes are of its own trace alone."""
    size, own = int(_tokens(block or BLOCK, where)), list[Request]()
    for each in session.get("requests") or ():
        if not isinstance(each, Mapping):
            raise SpecError(where, "has a request that is no object")
        if isinstance(each.get("requests"), list):
            yield from _weka(each, size, where, number)
            continue
        blocks = tuple(f"{number}:{name}" for name in each.get("hash_ids") or ())
        start = _tokens(each.get("t"), where)
        prompt = int(_tokens(each.get("in") or len(blocks) * size, where))
        output = int(_tokens(each.get("out"), where))
        own.append(Request(start, start + _tokens(each.get("api_time") or 0, where), prompt, output, blocks))
    yield own


def _conversation(row: Mapping[str, Any], characters: float) -> list[Request]:
    """Turns of texts: what a person or a tool says is new, what the model says is output."""
    found, context, place = list[Request](), 0, 0
    for message in row.get("messages") or row.get("conversations") or ():
        text = str(message.get("content") or message.get("value") or "")
        size = max(round(len(text) / characters), 1)
        if str(message.get("role") or message.get("from")) in ("assistant", "gpt"):
            found.append(Request(float(place), math.nan, max(context, 1), size))
            place += 1
        context += size
    return found


def _record(row: Mapping[str, Any]) -> Request:
    metrics, about = row["metrics"], row["metadata"]

    def value(name: str) -> object:
        found = metrics.get(name)
        return found.get("value") if isinstance(found, Mapping) else found

    prompt, output = (int(_tokens(value(f"{end}_sequence_length"))) for end in ("input", "output"))
    start, end = (float(about[f"request_{end}_ns"]) / 1e9 for end in ("start", "end"))
    return Request(start, end, prompt, output)


def _grouped(rows: Iterable[tuple[Any, Mapping[str, Any]]]) -> list[list[Any]]:
    """The entries of each session, in order."""
    found: dict[str, list[Any]] = {}
    for entry, row in rows:
        name = column(row, SESSIONS)
        found.setdefault(str(row.get(name or "session_num")), []).append(entry)
    return list(found.values())


def _grown(session: list[Request], delays: list[float]) -> list[Request]:
    """Turns whose prompts are new tokens, with all before them, each a delay after the one before."""
    found, context, now = list[Request](), 0, 0.0
    for request, delay in zip(session, delays, strict=True):
        now += delay
        found.append(request._replace(start=now, end=now, prompt=context + request.prompt))
        context += request.prompt + request.output
    return found


def _joined(requests: Iterable[Request]) -> list[list[Request]]:
    """Requests by the session that they continue: the one of which all blocks but the last, partial one come first.

    Blocks with more than two successors, that of the next turn and a partial one, are a prefix of several sessions.
    """
    found = sorted(requests, key=START)
    after: dict[Hashable, set[Hashable]] = {}
    for request in found:
        for one, two in pairwise(request.blocks):
            after.setdefault(one, set()).add(two)
    sessions, ends = list[list[Request]](), dict[Hashable, list[Request]]()
    for request in found:
        session = next((ends.pop(block) for block in reversed(request.blocks) if block in ends), None)
        if session is None:
            sessions.append(session := [])
        session.append(request)
        full = request.blocks[: max(len(request.blocks) - 1, 1)]
        if full and len(after.get(full[-1], ())) <= 2:
            ends[full[-1]] = session
    return sessions


class _Part(list[Request]):
    """Turns of one session; `asides` are prompts of calls beside it."""

    asides: tuple[int, ...] = ()


def _parts(session: list[Request]) -> Iterator[_Part]:
    """A session, divided where its context ends."""
    part = _Part()
    for place, request in enumerate(session):
        if request.prompt <= 0 or request.output <= 0:
            continue
        if part and request.prompt < part[-1].prompt / 2:
            if any(later.prompt >= 0.9 * part[-1].prompt for later in session[place + 1 : place + 4]):
                part.asides = (*part.asides, request.prompt)
                continue
            yield part
            part = _Part()
        part.append(request)
    if part:
        yield part


def _workload(sessions: Sequence[_Part], kind: str) -> Workload:
    """The distributions of sessions, and what all first prompts begin with."""
    pairs = [(one, two) for session in sessions for one, two in pairwise(session)]
    growth = np.array([two.prompt - one.prompt for one, two in pairs], float)
    outputs = np.array([one.output for one, _ in pairs], float)
    kept = bool(growth.size) and float(np.median(growth - outputs)) >= 0
    new = np.maximum(growth - (outputs if kept else 0.0), 1.0)
    waits = [two.start - (one.start if math.isnan(one.end) else one.end) for one, two in pairs]
    gaps = np.array([wait for wait in waits if wait >= 0])
    first = np.array([session[0].prompt for session in sessions], float)
    asides = [prompt for session in sessions for prompt in session.asides]
    turns = sum(map(len, sessions)) + len(asides)
    shared = min(_shared(sessions), int(first.min()) - 1)
    ends = "to the next begin" if any(math.isnan(one.end) for one, _ in pairs) else "to the next"
    return Workload(
        name="recorded",
        turns=parse_lengths(_quantiles(np.array([len(session) + len(session.asides) for session in sessions], float))),
        first=parse_lengths(_quantiles(np.maximum(first - shared, 1.0))),
        new=parse_lengths(_quantiles(new if new.size else first)),
        output=parse_lengths(_quantiles(np.array([each.output for part in sessions for each in part], float))),
        gap=parse_gaps(_quantiles(np.maximum(gaps, 1e-3), "s") if gaps.size else 0),
        shared=shared,
        kept=kept,
        asides=len(asides) / turns,
        aside=round(float(np.mean(asides))) if asides else 0,
        source=f"{kind}: {turns} requests of {len(sessions)} sessions; gaps from the end of a turn {ends}",
    )


def _shared(sessions: Sequence[_Part]) -> int:
    """Tokens that all first prompts begin with, by their blocks."""
    paths = [session[0].blocks for session in sessions]
    if len(paths) < 2 or not all(paths):
        return 0
    common = next(
        (place for place, blocks in enumerate(zip(*paths, strict=False)) if len(set(blocks)) > 1), min(map(len, paths))
    )
    return common * max(round(sessions[0][0].prompt / len(paths[0])), 1)


def _quantiles(values: Array, unit: str = "") -> str:
    if values.min() == values.max():
        return f"{values[0]:.3g}{unit}"
    marks = np.maximum.accumulate([float(f"{mark:.3g}") for mark in np.percentile(values, QUANTILES)])
    texts = (f"p{share}={mark:.12g}{unit}" for share, mark in zip(QUANTILES, marks, strict=True))
    return "quantiles:" + ",".join(texts)


HISTOGRAMS = (
    ("vllm:request_prompt_tokens", "vllm:request_generation_tokens"),
    ("sglang:prompt_tokens_histogram", "sglang:generation_tokens_histogram"),
)
"""Prompt and output tokens of requests (vLLM's and SGLang's production metrics)."""


def _served(text: str, where: str) -> Recorded:
    """Requests of one turn with the lengths of a server's histograms."""
    for names in HISTOGRAMS:
        found = [_histogram(text, name, where) for name in names]
        if all(part is not None for part in found):
            prompt, output = ((part or ("", 0))[0] for part in found)
            count = (found[0] or ("", 0))[1]
            source = f"a server's histograms {names[0]} and {names[1]}, {count} requests; sessions are not in them"
            work = Workload(
                parse_lengths(1),
                parse_lengths(prompt),
                parse_lengths(output),
                parse_gaps(0),
                name="served",
                source=source,
            )
            return Recorded(work, "a server's metrics", count, count)
    raise SpecError(where, "has no histogram of prompt and output tokens, as vLLM and SGLang have")


def _histogram(text: str, name: str, where: str) -> tuple[str, int] | None:
    """The quantiles of a Prometheus histogram at the bounds of its buckets, over all labels, and its count."""
    buckets: dict[float, float] = {}
    for bound, value in re.findall(
        rf'^{re.escape(name)}_bucket{{[^}}]*le="([^"]+)"[^}}]*}}\s+(\S+)', text, re.MULTILINE
    ):
        try:
            at, requests = float(bound), float(value)
        except ValueError:
            requests = math.nan
        if not math.isfinite(requests):
            raise SpecError(where, f"{name} has a bucket that is no number ({quote(bound)}, {quote(value)})")
        buckets[at] = buckets.get(at, 0.0) + requests
    total = buckets.get(math.inf, 0.0)
    marks, last = list[str](), 0.0
    for bound, below in sorted(buckets.items()):
        if total and last < below and 1 <= bound < math.inf:
            marks.append(f"p{100 * below / total:.6g}={bound:.12g}")
            last = below
    if not marks:
        return None
    return (f"quantiles:{','.join(marks)}" if len(marks) > 1 else marks[0].partition("=")[2]), int(total)


DEFAULTS = dict(zip(Workload.__struct_fields__[::-1], Workload.__struct_defaults__[::-1], strict=False))
LENGTHS = ("turns", "first", "new", "output", "branch_turns", "branch_first")


def workload_in(content: Mapping[str, Any], where: str) -> Workload:
    """The workload of a file's entries; raises SpecError."""
    unknown = sorted(set(content) - set(Workload.__struct_fields__))
    missing = [name for name in ("turns", "new", "output", "gap") if name not in content]
    if unknown or missing:
        problem = f"has the unknown entry {quote(unknown[0])}" if unknown else f"lacks {missing[0]}"
        raise SpecError(where, f"is no workload of sessions: it {problem}")
    read = {name: parse_lengths(content[name], name) for name in LENGTHS if content.get(name) is not None}
    try:
        replayed = msgspec.convert(content.get("replayed", ()), tuple[Replayed, ...])
        return Workload(**{**content, **read, "gap": parse_gaps(content["gap"]), "replayed": replayed})
    except (TypeError, msgspec.ValidationError) as error:
        raise SpecError(where, f"is no workload of sessions: {error}") from None
    except RooflineError as error:
        raise SpecError(where, str(error)) from None


def as_text(work: Workload) -> str:
    """The file of a workload: JSON, one entry a line, which is YAML, too; without those that are as by default."""
    values = ((name, getattr(work, name)) for name in Workload.__struct_fields__)
    own = {name: getattr(value, "written", value) for name, value in values if value != DEFAULTS.get(name)}
    return json.dumps(msgspec.to_builtins(own), indent=2) + "\n"
