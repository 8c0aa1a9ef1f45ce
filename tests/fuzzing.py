"""What the fuzz tests and `make fuzz` share: hostile values, mutated documents, and what must hold for every input."""

from __future__ import annotations

import copy
import datetime
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
import pandas as pd
import yaml

from roofline import RooflineError

Answer = TypeVar("Answer")
Document = dict[str, Any]

HUGE = 10**400
HOSTILE: tuple[Any, ...] = (
    *(None, True, "", "text", "1e999 s", "nan", [], {}, [[1]], {"a": 1}, datetime.date(2026, 1, 1)),
    *(0, -1, HUGE, -HUGE, int("f" * 5000, 16), 1e308, 5e-324, float("inf"), float("-inf"), float("nan"), 0.5, 1e-9),
)


outcomes: Counter[str] = Counter()
"""How many attempts were answered, and how many refused."""


def attempt(read: Callable[[], Answer]) -> Answer | None:
    """The result of `read`, or None if it fails with one short sentence; anything else fails the test."""
    try:
        answer = read()
        outcomes["answered"] += 1
        return answer
    except RooflineError as error:
        outcomes["refused"] += 1
        message = str(error)
        assert message.isprintable(), ascii(message)
        assert 0 < len(message) < 600, message
        return None


def places(content: object) -> list[tuple[Any, Any]]:
    """Every (container, key) of a document."""
    if not isinstance(content, (dict, list)):
        return []
    keys = list(content) if isinstance(content, dict) else list(range(len(content)))
    return [place for key in keys for place in [(content, key), *places(content[key])]]


def mutants(document: Document, count: int, seed: int = 0) -> Iterator[Document]:
    """Copies of a document with null at every key, then `count` with a random value anywhere."""
    generator, size = random.Random(seed), len(places(document))
    chosen = [(index, None) for index in range(size)][: 2 * count]
    chosen += [(generator.randrange(size), generator.choice(HOSTILE)) for _ in range(count)]
    for index, value in chosen:
        changed = copy.deepcopy(document)
        holder, key = places(changed)[index]
        holder[key] = value
        yield changed


WORDS = (
    *("", " ", "0", "-1", "1e999", "nan", "inf", "16 GB", "1e3 TB/s", "9" * 400, "no", "null", "x" * 500, "a,b", "a:b"),
    *("h100-sxm", "llama-3.2-1b", "bf16", "fp8", "awq", "vllm", "vllm@0.8", "1:3", "1:9:log3", "batch", "ttft", "all"),
    *(
        "none",
        "eagle",
        "gemm",
        "silu",
        "3 x layer",
        "\x1b[31m",
        "two\nlines",
        "=1+1",
        "\u202e",
        "\udcff",
        "..",
        "own.yaml",
    ),
)

TOKENS = (
    *("name", "a", "b", "- ", ": ", ", ", "? ", "{", "}", "[", "]", "'", '"', "\n", "\n  ", " ", "\t", "|", ">", "#"),
    *(
        "&a ",
        "*a",
        "<<",
        "!!bool ",
        "!!int ",
        "!!float ",
        "!!map ",
        "!!seq ",
        "!!set ",
        "!!omap ",
        "!!pairs ",
        "!!str ",
    ),
    *("!!null ", "!!binary ", "!!timestamp ", "!!python/name:os.system ", "!", "%YAML 9.9", "---\n", "...\n", "~", "="),
    *("1", "0x", "0b", "1_", "1e999", ".inf", ".nan", "-", "1:60", "2025-99-99", "true", "null", "NaN", "\\u0000"),
    *("\x00", "\x85", "\u2028", "\ufeff", "\\ud800", "é", "🦙"),
)


def hostile(generator: random.Random) -> Any:
    """A value that a file may have instead of what it should have."""
    match generator.randrange(5):
        case 0:
            return generator.choice(WORDS)
        case 1:
            return generator.choice((1, 2, 3, 8, 64, 4096, 10**6, 10**9, 10**15, 0.1, 1.5, 1e6))
        case 2:
            return [hostile(generator) for _ in range(generator.randrange(4))]
        case 3:
            return {generator.choice(WORDS): hostile(generator) for _ in range(generator.randrange(3))}
    return copy.deepcopy(generator.choice(HOSTILE))


MUTATIONS = ("replace", "replace", "number", "number", "number", "delete", "rename", "move", "insert")


def mutated(document: Document, generator: random.Random, others: Sequence[Any] = ()) -> Document:
    """A copy of a document with up to three entries replaced, deleted, renamed, moved or added."""
    content = copy.deepcopy(document)
    for _ in range(generator.choice((1, 1, 1, 2, 3))):
        if not (found := places(content)):
            break
        holder, key = generator.choice(found)
        donor, donated = generator.choice(found)
        value = hostile(generator)
        if others and generator.random() < 0.3:
            value = generator.choice(others)
        match generator.choice(MUTATIONS):
            case "replace":
                holder[key] = value
            case "number" if isinstance(holder[key], (int, float)) and abs(holder[key]) < HUGE:
                holder[key] = type(holder[key])(holder[key] * generator.choice((-1, 0, 0.5, 2, 10, 1000)))
            case "delete":
                del holder[key]
            case "move":
                holder[key] = copy.deepcopy(donor[donated])
            case "rename" if isinstance(holder, dict):
                holder[generator.choice((*WORDS, str(donated)))] = holder.pop(key)
            case _ if isinstance(holder, dict):
                holder[generator.choice((*WORDS, str(donated)))] = value
            case _:
                holder.insert(key, value)
    return content


def damaged(raw: bytes, generator: random.Random) -> bytes:
    """A file with a stretch of it replaced, repeated, flipped or cut off."""
    start = generator.randrange(len(raw) + 1)
    end = min(len(raw), start + generator.randrange(40))
    match generator.randrange(5):
        case 0:
            return raw[:start]
        case 1:
            return raw[:start] + bytes(byte ^ 1 << generator.randrange(8) for byte in raw[start:end]) + raw[end:]
        case 2:
            return raw[:end] + raw[start:end] * generator.randrange(1, 2000) + raw[end:]
    tokens = "".join(generator.choices(TOKENS, k=generator.randrange(12)))
    return raw[:start] + tokens.encode("utf-8", "surrogateescape") + raw[end:]


def dumped(content: object, write: Callable[[Any], str] = yaml.safe_dump) -> str:
    """The YAML of a document (or JSON), also of integers that Python usually does not print."""
    before = sys.get_int_max_str_digits()
    try:
        sys.set_int_max_str_digits(0)
        return write(content)
    finally:
        sys.set_int_max_str_digits(before)


def disordered(document: object, place: str = "") -> list[str]:
    """The figures of a JSON document that cannot be true: intervals out of order, or on the wrong side of the bound."""
    found = []
    if isinstance(document, dict):
        for name, value in document.items():
            inside = f"{place}.{name}"
            if isinstance(value, dict) and {"low", "mid", "high"} <= set(value):
                if value["mid"] is None:  # of requests with one token there is no time between two
                    continue
                found += [inside] if not value["low"] <= value["mid"] <= value["high"] else []
                bound = _bound(document, name)
                if bound is not None and not ("power" in name or "rate" in name):
                    above = "per_s" in name
                    found += [inside] if (value["high"] > bound if above else value["low"] < bound) else []
            found += disordered(value, inside)
    elif isinstance(document, list):
        for index, value in enumerate(document):
            found += disordered(value, f"{place}.{index}")
    return found


def _bound(document: Document, name: str) -> float | None:
    """The bound beside an expected figure."""
    plain = name.removeprefix("expected_")
    names = ("bound_time_s", "total_s") if name == "expected_time_s" else (plain,) if plain != name else ()
    return next((document[key] for key in names if isinstance(document.get(key), float)), None)


def measured_gemms(rows: int) -> pd.DataFrame:
    """A faultless table of measured GEMMs."""
    return pd.DataFrame(
        {
            "hardware": "h100-sxm",
            "op": "gemm",
            "dtype": "bf16",
            "m": 2 ** (np.arange(rows) % 12),
            "n": 4096,
            "k": 1024 * (1 + np.arange(rows)),
            "latency_us": 10.0 + np.arange(rows),
            "kernel": "torch",
            "software": "torch 2.9",
            "cache": "cold",
            "bare": 0.0,
            "remark": "none",
        }
    )
