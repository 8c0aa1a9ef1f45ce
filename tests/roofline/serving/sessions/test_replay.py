"""Traces with block hashes: today's hits without a limit, and those of a list of single blocks with one."""

from __future__ import annotations

import json
import math
import random
from collections import OrderedDict
from pathlib import Path

import pytest

from roofline.serving.sessions.cache import Level, PrefixCache
from roofline.serving.sessions.replay import replay
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
    found = replay(asked, PrefixCache([Level(math.inf)]))
    assert [blocks * HASH_TOKENS for blocks in found] == list(read_trace(path).cached)


@pytest.mark.parametrize("size", [40, 100, 400])
def test_with_a_limit_it_finds_what_a_list_of_blocks_has(size: int) -> None:
    order = OrderedDict[int, None]()
    expected = []
    asked = requests(2)
    for ids in asked:
        hits = 0
        while hits < len(ids) and ids[hits] in order:
            hits += 1
        expected.append(hits)
        for block in ids:
            order.pop(block, None)
        while len(order) + len(ids) > size:
            order.popitem(last=False)
        order.update(dict.fromkeys(reversed(ids)))
    cache = PrefixCache([Level(size)])
    assert replay(asked, cache) == expected
    assert cache.used[0] == len(order)
