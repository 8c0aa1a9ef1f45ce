"""Traces of requests: CSV or JSONL files with arrival times and lengths.

Known columns, by the names of public traces:

    Azure LLM inference (2023, 2024)    TIMESTAMP, ContextTokens, GeneratedTokens
    Mooncake                            timestamp (ms), input_length, output_length, hash_ids
    BurstGPT                            Timestamp (s), Request tokens, Response tokens
    ShareGPT lengths                    prompt_len, output_len, without times: as fast as the load asks
    other                               arrival, arrival_s, prompt, input, output, generate, ..._tokens

Blocks of 512 tokens whose `hash_ids` appeared before are cached (Mooncake). Requests are sorted by time.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any

from roofline.core.errors import RooflineError, quote
from roofline.core.inputs import read_text
from roofline.core.limits import MAX_LENGTH
from roofline.serving.load import Trace

TIMES = ("timestamp", "arrival", "arrival_s", "arrival_time", "time")
PROMPTS = (
    *("contexttokens", "input_length", "request tokens"),
    *("prompt_len", "prompt", "prompt_tokens", "input", "input_tokens", "isl"),
)
OUTPUTS = (
    *("generatedtokens", "output_length", "response tokens"),
    *("output_len", "output", "output_tokens", "generate", "osl"),
)
"""Column names in lower case."""

HASH_TOKENS = 512
"""Tokens of a block of `hash_ids` (Qin et al. 2024, Mooncake)."""

MAX_BYTES = 64 << 20
"""The largest trace file."""

MAX_REQUESTS = 10**6
"""The most requests of a trace."""


def read_trace(path: Path) -> Trace:
    """The requests of a trace file; raises RooflineError with file and line for the first that is none."""
    where, text = str(path), read_text(path, MAX_BYTES)
    rows = list(islice(rows_in(text, where), MAX_REQUESTS + 1))
    if not rows:
        raise RooflineError(f"the trace {quote(where)} has no requests")
    if len(rows) > MAX_REQUESTS:
        raise RooflineError(f"the trace {quote(where)} has more than {MAX_REQUESTS} requests")
    times, prompts, outputs = (column(rows[0][1], names) for names in (TIMES, PROMPTS, OUTPUTS))
    if prompts is None or outputs is None:
        missing = "prompt" if prompts is None else "output"
        known = PROMPTS if prompts is None else OUTPUTS
        raise RooflineError(
            f"the trace {quote(where)} has no column with {missing} lengths; known names: {', '.join(known)}"
        )
    scale = 1e-3 if any("hash_ids" in row for _, row in rows[:1]) else 1.0
    seen: set[Any] = set()
    found = [
        (
            0.0 if times is None else time_of(row.get(times), where, line) * scale,
            _length(row.get(prompts), prompts, where, line),
            _length(row.get(outputs), outputs, where, line),
            _cached(row.get("hash_ids"), seen),
        )
        for line, row in rows
    ]
    found.sort(key=lambda entry: entry[0])
    start = found[0][0]
    arrival, prompt, output, cached = zip(*found, strict=True)
    return Trace(tuple(time - start for time in arrival), prompt, output, cached)


def rows_in(text: str, where: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """The rows of CSV, JSONL or a JSON list by lower-case names, with their lines; raises RooflineError."""
    return _json_rows(text, where) if text.lstrip()[:1] in ("{", "[") else _csv_rows(text, where)


def _json_rows(text: str, where: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """The objects of a JSONL file, or of one JSON list, with their lines or places."""
    if text.lstrip().startswith("["):
        numbered: Iterable[tuple[int, object]] = enumerate(_decoded(text, where, 1), 1)
    else:
        lines = enumerate(text.splitlines(), 1)
        numbered = ((line, _decoded(part, where, line)) for line, part in lines if part.strip())
    for line, entry in numbered:
        if not isinstance(entry, Mapping):
            raise RooflineError(f'{where}:{line}: a request is an object such as {{"prompt": 512, "output": 128}}')
        yield line, {str(key).strip().lower(): value for key, value in entry.items()}


def _decoded(text: str, where: str, line: int) -> Any:
    """The value of JSON that begins at a line; raises RooflineError."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise RooflineError(f"{where}:{line + error.lineno - 1}: no JSON ({error.msg})") from None
    except (RecursionError, ValueError):
        raise RooflineError(f"{where}:{line}: no JSON (nested too deeply, or a number out of range)") from None


def _csv_rows(text: str, where: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    try:
        reader = csv.DictReader(text.splitlines(), strict=True)
        for row in reader:
            if None in row or any(value is None for value in row.values()):
                raise RooflineError(f"{where}:{reader.line_num}: a row has as many cells as the header")
            yield reader.line_num, {str(key).strip().lower(): value for key, value in row.items()}
    except csv.Error as error:
        raise RooflineError(f"the trace {quote(where)} is no CSV file ({error})") from None


def column(row: Mapping[str, Any], names: tuple[str, ...]) -> str | None:
    """The first of some names that a row has."""
    return next((name for name in names if name in row), None)


def _length(value: object, name: str, where: str, line: int) -> int:
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if isinstance(value, bool) or not (1 <= number <= MAX_LENGTH and number == math.floor(number)):
        raise RooflineError(f"{where}:{line}: {name} is a number of tokens from 1 to {MAX_LENGTH}, got {quote(value)}")
    return int(number)


def time_of(value: object, where: str, line: int) -> float:
    """Seconds: a number, or a date and time."""
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        try:
            number = datetime.fromisoformat(str(value).strip()[:26]).timestamp()
        except ValueError:
            number = math.nan
    if isinstance(value, bool) or not math.isfinite(number):
        raise RooflineError(f"{where}:{line}: an arrival is a number of seconds or a date and time, got {quote(value)}")
    return number


def _cached(ids: object, seen: set[Any]) -> int:
    """Tokens of the leading blocks that appeared before."""
    if not isinstance(ids, list):
        return 0
    known = 0
    while known < len(ids) and str(ids[known]) in seen:
        known += 1
    seen.update(map(str, ids))
    return known * HASH_TOKENS
