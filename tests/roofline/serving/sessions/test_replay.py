"""Traces with block hashes: today's hits without a limit, and those of a list of single blocks with one."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

import pytest

from roofline.serving.sessions.cache import Level, PrefixCache
from roofline.serving.sessions.recorded import found_blocks, hit_rates
from roofline.serving.traces import HASH_TOKENS, read_trace


def requests(seed: int, count: int = 300) -> list[list[int]]:
    """Prompts that begin like earlier ones and part somewhere."""
    draw, found, new = random.Random(seed), [list(range(5))], 100
    for _ in range(count):
        before = draw.choice(found[-20:])
        more = list(range(new, new + draw.randrange(1, 6)))
        found.append(before[: draw.randrange(1, len(before) + 1)] + more)
        new += 10
    return found


def test_without_a_limit_it_finds_what_a_trace_is_read_with(tmp_path: Path) -> None:
    asked = requests(1)
    path = tmp_path / "trace.jsonl"
    rows = [
        {"timestamp": place, "input_length": HASH_TOKENS * len(ids), "output_length": 1, "hash_ids": ids}
        for place, ids in enumerate(asked)
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    found = found_blocks(asked, math.inf)
    assert [blocks * HASH_TOKENS for blocks in found] == list(read_trace(path).cached)


@pytest.mark.parametrize("size", [40, 100, 400])
def test_with_a_limit_it_finds_what_the_simulated_cache_has(size: int) -> None:
    """Of sessions that only grow; the cache holds runs of blocks, the trace's list each of them."""
    draw, cache = random.Random(size), PrefixCache([Level(size)])
    runs, lengths = [cache.run() for _ in range(12)], [0] * 12
    asked, expected = [], []
    for now in range(400):
        one = draw.randrange(12)
        lengths[one] = lengths[one] % 18 + draw.randrange(1, 4)
        if lengths[one] < runs[one].length:
            runs[one] = cache.run()
        end, run = lengths[one], runs[one]
        asked.append([(run.serial, place) for place in range(end)])
        expected.append(sum(cache.found(run, end)))
        cache.pin(run)
        cache.shrink(0, size - end + run.held[0])
        cache.insert(run, end)
        cache.unpin(run, float(now))
    assert found_blocks(asked, size) == expected


def test_hit_rates_over_the_size_of_a_cache(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    rows = [
        {"timestamp": place, "input_length": HASH_TOKENS * len(ids), "output_length": 1, "hash_ids": ids}
        for place, ids in enumerate(requests(1))
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    rates = hit_rates(path, [10_000, 20_000, 50_000, math.inf])
    assert rates == sorted(rates)
    assert rates[-1] == sum(read_trace(path).cached) / sum(row["input_length"] for row in rows)
