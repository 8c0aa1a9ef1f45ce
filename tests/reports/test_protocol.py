"""The tools of the Model Context Protocol, asked by the SDK's own client."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

mcp = pytest.importorskip("mcp")

from mcp.client.stdio import StdioServerParameters  # noqa: E402

from roofline.reports.protocol import TOOLS, server  # noqa: E402
from tests.cases import sampled  # noqa: E402

LLAMA = {"model": "llama-3.2-1b", "hw": "h100-sxm"}


def call(tool: str, **arguments: Any) -> Any:
    """The result of a tool of the server in this process."""

    async def asked() -> Any:
        async with mcp.Client(server()) as client:
            return await client.call_tool(tool, arguments)

    return asyncio.run(asked())


def answer(tool: str, **arguments: Any) -> Any:
    found = call(tool, **arguments)
    assert not found.is_error, found.content
    return json.loads(found.content[0].text)


def test_a_client_over_standard_input_and_output_gets_the_answer() -> None:
    async def asked() -> tuple[Any, Any]:
        here = StdioServerParameters(command=sys.executable, args=["-m", "roofline", "mcp"], env=dict(os.environ))
        async with mcp.Client(here) as client:
            return await client.list_tools(), await client.call_tool("analyze", LLAMA)

    tools, found = asyncio.run(asked())
    assert [tool.name for tool in tools.tools] == [tool.__name__ for tool in TOOLS]
    assert all(tool.description for tool in tools.tools)
    times = json.loads(found.content[0].text)["answer"]["generation"]
    assert times["expected_tpot_s"]["low"] < times["expected_tpot_s"]["mid"] < times["expected_tpot_s"]["high"]
    assert times["source"]


@pytest.mark.slow
def test_choices_carry_intervals_doubts_and_the_sources_of_prices() -> None:
    found = answer("choose", what="format", users=8, **LLAMA)
    assert found["rows"][0]["ttft_s"]["mean"]["low"] < found["rows"][0]["ttft_s"]["mean"]["high"]
    assert 0.5 <= found["verdict"]["probability"] <= 1
    assert "RunPod" in found["prices"][0]["source"]


@pytest.mark.slow
def test_load_sizes_explanations_and_names() -> None:
    assert answer("analyze", users=4, **LLAMA)["under_load"]["points"][0]["concurrency"] == 4
    sized = answer("size", model="llama-3.2-1b", hw="l4,h100-sxm", users=4, tpot="50ms")
    assert sized["choices"][0]["best"]["tpot_s"]["p95"]["mid"] < 0.05
    assert answer("explain", metric="memory", **LLAMA)
    assert "llama-3.2-1b" in answer("names")["models"]


def test_the_answer_ends_in_a_command_and_launch_has_its_files() -> None:
    found = answer("answer", users=4, **LLAMA)
    assert found["fits"]
    assert found["run"].startswith("vllm serve")
    bundle = answer("launch", users=4, **LLAMA)
    assert bundle["command"].startswith("vllm serve")
    assert {"serve.sh", "benchmark.sh", "prediction.json"} == set(bundle["files"])
    assert "--max-concurrency 4" in bundle["benchmark"]


@pytest.fixture
def spec(tmp_path: Path) -> str:
    """A readable spec of the machine that the program was not given."""
    path = tmp_path / "secret.yaml"
    path.write_text("name: secret\n", encoding="utf-8")
    return str(path)


@pytest.mark.parametrize("option", sampled(["model", "hw", "engine", "host", "with", "quant"], 2))
def test_paths_are_refused(spec: str, option: str) -> None:
    """A path in any argument is refused like a name that is unknown, without the file's content."""
    for path in (spec, "/etc/passwd", "../../../../etc/passwd", "/proc/self/environ"):
        asked: dict[str, Any] = dict(LLAMA)
        if option in asked:
            asked[option] = path
        else:
            asked["options"] = {option: [path] if option == "with" else path}
        found = call("analyze", **asked)
        assert found.is_error
        text = found.content[0].text
        assert "root:" not in text
        assert "Traceback" not in text


def test_user_errors_are_sentences() -> None:
    for tool, asked, said in (
        ("analyze", {**LLAMA, "options": {"quantt": "fp8"}}, "quant"),
        ("choose", {**LLAMA, "what": "colour"}, "unknown choice 'colour'"),
        ("choose", {**LLAMA, "what": "api"}, "compares with a price"),
        ("size", {"model": "llama-3.2-1b", "hw": "nothing"}, "nothing"),
    ):
        found = call(tool, **asked)
        assert found.is_error
        assert said in found.content[0].text
