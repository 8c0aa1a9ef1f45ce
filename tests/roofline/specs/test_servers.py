"""The table of engines' options, held against the names that the engines define."""

from __future__ import annotations

import itertools
import random
import re
import shlex
from collections.abc import Iterator
from functools import cache

import pytest
import yaml

from lab import launch_flags
from roofline.cli.engine_flags import IRRELEVANT, STAND_INS
from roofline.core.errors import RooflineError
from roofline.launch import SERVERS, launch
from roofline.scenario.options import OPTIONS, SPELLINGS, option_key
from roofline.specs.servers import Row, Server, server_of
from roofline.techniques import Scenario
from tests.cases import sampled
from tests.paths import ROOT

MODELS = (
    *("llama-3.1-8b", "llama-3.3-70b", "qwen3-32b", "qwen3-30b-a3b", "qwen3-235b-a22b", "gpt-oss-20b", "gpt-oss-120b"),
    *("deepseek-r1", "mistral-small-3.2-24b", "gemma-3-27b", "mixtral-8x7b", "llama-4-scout"),
)
DEVICES = ("h100-sxm", "h200-sxm", "b200-sxm", "mi300x", "a100-sxm-80gb", "rtx-4090")
ENGINES = ("vllm", "sglang", "tensorrt-llm", "llama.cpp")


@cache
def known(key: str) -> frozenset[str]:
    lists = yaml.safe_load((ROOT / "roofline/launch/known.yaml").read_text(encoding="utf-8"))
    return frozenset(lists[key].split())


def options_of(row: Row) -> Iterator[str]:
    """The options, keys of a file, or variables of a row."""
    if ": " in row.words:
        yield row.words.partition(": ")[0]
    else:
        yield from (word.partition("=")[0] for word in row.words.split(" ") if re.match("-|[A-Z]", word))


@pytest.mark.parametrize("name", SERVERS)
def test_every_row_has_options_that_the_engine_defines(name: str) -> None:
    server = server_of(name)
    for version in server.versions:
        names = known(f"{name}@{version}")
        for setting, rows in server.rows.items():
            for row in rows:
                if row.holds(version):
                    assert names.issuperset(options_of(row)), (setting, version)
                    assert row.source
        for keys in server.drafts.values():
            assert names.issuperset(key for key in keys if key.startswith("-"))


@pytest.mark.parametrize("option", ["prefill_schedule_interval", "long_prefill_token_threshold"])
@pytest.mark.parametrize(
    "engine", ["vllm", "vllm@0.11", "sglang", "sglang@0.5.9", "tensorrt-llm", "llama.cpp", "ideal"]
)
def test_what_an_engine_lacks_is_no_scenario(engine: str, option: str) -> None:
    name, _, version = engine.partition("@")
    if name in SERVERS and server_of(name).has(option, version or server_of(name).versions[-1]):
        assert Scenario("llama-3.1-8b", "h100-sxm", engine=engine, **{option: 8}).settings.prompt_steps == {option: 8}
    else:
        with pytest.raises(RooflineError, match=option):
            Scenario("llama-3.1-8b", "h100-sxm", engine=engine, **{option: 8})


def test_the_interval_of_sglang_counts_steps_without_prompts() -> None:
    assert list(server_of("sglang").words("prefill_schedule_interval", 21, "0.5.23")) == [
        "--prefill-decode-interval",
        "20",
    ]


READ_OTHERWISE = {
    "--enable-eplb",
    "--quantization",
    "--dp-size",
    "--split-mode",
    "--attn-dp-size",
    "--n-cpu-moe",
    "--kv-bits",
}
"""Options of rows that are read as another option, or have no option beside them."""


@pytest.mark.parametrize("name", SERVERS)
def test_what_a_launch_writes_is_read_as_the_same_option(name: str) -> None:
    for setting, rows in server_of(name).rows.items():
        written = [word for row in rows for word in options_of(row) if word.startswith("--")]
        for word in written if setting in OPTIONS and setting != "model" else ():
            flag = word.replace("_", "-")
            key = option_key(flag)
            beside = {*READ_OTHERWISE, *STAND_INS, *IRRELEVANT, "--prompt-concurrency"}
            assert OPTIONS.get(key, OPTIONS.get(SPELLINGS.get(key, ""))) is OPTIONS[setting] or flag in beside, word


def fitting(model: str, device: str, engine: str) -> Scenario | None:
    """The scenario on as few devices as it fits, at most eight; None where it needs more, or the device lacks it."""
    quant = {"quant": "q4_k_m"} if engine == "llama.cpp" and not model.startswith("gpt-oss") else {}
    for devices in (1, 2, 4, 8):
        scenario = Scenario(model, device, engine=engine, tp=devices, prompt=1024, generate=256, **quant)
        try:
            launch(scenario, concurrency=8)
        except RooflineError as error:
            reason = str(error)
            if "fit" not in reason:
                assert re.search("cannot|not support|divi", reason), reason
                return None
        else:
            return scenario
    return None


GRID = [
    point for point in itertools.product(MODELS, DEVICES, ENGINES) if point[2] != "tensorrt-llm" or point[1] != "mi300x"
]


@pytest.mark.parametrize(("model", "device", "engine"), sampled(random.Random(52).sample(GRID, 24), 3))
def test_the_most_used_models_start(model: str, device: str, engine: str) -> None:
    scenario = fitting(model, device, engine)
    if scenario is None:
        return
    bundle = launch(scenario, concurrency=8)
    server = server_of(engine)
    words = shlex.split(bundle.command)
    given = {word for word in words if word.startswith("-") and word != "-m"}  # python -m
    assert given <= known(f"{engine}@{server.versions[-1]}")
    assert bundle.memory
    assert "--trust-remote-code" not in given
    check_benchmark(server, bundle.benchmark)


def check_benchmark(server: Server, command: str) -> None:
    """Every option of a benchmark's command is one that it defines."""
    lists = {
        "vllm": "vllm bench serve@0.33.0",
        "sglang": "sglang.benchmark.serving@0.5.23",
        "aiperf": "aiperf profile@0.12.0",
    }
    if server.benchmark in lists:
        assert {word for word in shlex.split(command) if word.startswith("--")} <= known(lists[server.benchmark])


@pytest.mark.parametrize("name", SERVERS)
def test_a_help_is_held_against_the_table(name: str) -> None:
    server = server_of(name)
    flags = sorted(set(launch_flags.table_flags(server, server.versions[-1])))
    assert launch_flags.missing(server, ", ".join(flags)) == []
    assert launch_flags.missing(server, ", ".join(flags[1:])) == flags[:1]
