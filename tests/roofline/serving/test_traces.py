"""Trace files: the public formats, and bad lines."""

import json

import pytest

from roofline.core.errors import RooflineError
from roofline.serving.traces import read_trace

AZURE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,4808,10\n2023-11-16 18:17:04.0319600,3180,8\n"
)
MOONCAKE = [
    {"timestamp": 27482, "input_length": 1200, "output_length": 52, "hash_ids": [46, 47, 48]},
    {"timestamp": 30535, "input_length": 1300, "output_length": 26, "hash_ids": [46, 47, 2370]},
]


def written(tmp_path, name, text):
    path = tmp_path / name
    path.write_text(text)
    return path


def test_azure_has_dates(tmp_path) -> None:
    found = read_trace(written(tmp_path, "azure.csv", AZURE))
    assert found.prompt == (4808, 3180)
    assert found.output == (10, 8)
    assert found.arrival == pytest.approx((0.0, 0.052))


def test_mooncake_has_milliseconds_and_blocks_that_appeared_before(tmp_path) -> None:
    found = read_trace(written(tmp_path, "mooncake.jsonl", "\n".join(map(json.dumps, MOONCAKE))))
    assert found.arrival == pytest.approx((0.0, 3.053))
    assert found.cached == (0, 1024)


def test_lengths_without_times_arrive_at_once(tmp_path) -> None:
    found = read_trace(written(tmp_path, "sharegpt.json", json.dumps([{"prompt_len": 10, "output_len": 20}] * 3)))
    assert found.arrival == (0.0, 0.0, 0.0)


def test_requests_are_sorted_by_time(tmp_path) -> None:
    found = read_trace(written(tmp_path, "mixed.csv", "arrival_s,prompt,output\n5,50,5\n1,10,1\n"))
    assert found.arrival == (0.0, 4.0)
    assert found.prompt == (10, 50)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.csv", "arrival_s,prompt,output\n0,12,3\n1,twelve,3\n", r"a.csv:3: prompt is a number of tokens"),
        ("a.csv", "arrival_s,prompt,output\nsoon,12,4\n", r"a.csv:2: an arrival is a number of seconds"),
        ("a.csv", "arrival_s,output\n0,12\n", "no column with prompt lengths; known names: contexttokens"),
        ("a.jsonl", '{"prompt": 1, "output": 2}\n{"prompt": \n', r"a.jsonl:2: no JSON"),
        ("a.jsonl", '{"prompt": true, "output": 2}\n', r"a.jsonl:1: prompt is a number"),
        ("a.jsonl", '{"prompt": 1e400, "output": 2}\n', r"a.jsonl:1: prompt is a number"),
    ],
)
def test_bad_lines_are_named(tmp_path, name, text, message) -> None:
    with pytest.raises(RooflineError, match=message):
        read_trace(written(tmp_path, name, text))


def test_a_missing_file_is_told(tmp_path) -> None:
    with pytest.raises(RooflineError, match="cannot be read"):
        read_trace(tmp_path / "none.csv")
