"""Round trips of requests through command lines."""

import shlex

import pytest

from roofline import RooflineError, Scenario, analyze
from roofline.cli.scenario_options import parse_scenarios
from roofline.whatif.command_line import command_line, command_words, rate_word

WRITTEN = [
    "llama-3.1-8b --hw h100-sxm",
    "llama-3.1-8b --hw h100-sxm --batch 8 --prompt 100 --generate 7 --context 50 --quant W4 --kv fp8 --fuse qkv",
    "llama-3.1-8b --hw h100-sxm --weights int8 --activations int8 --no-flash --tp 2 --pp 2 --micro-batches 2",
    "llama-3.1-8b --hw a6000 --offload weights=0.5,kv=0.25,bandwidth=7000000000.0B/s --engine llama.cpp",
    "llama-3.1-8b --hw h100-sxm --memory-reading static",
    "llama-3.1-8b --hw h100-sxm --gpu-memory-utilization 0.85",
    "mixtral-8x7b --hw h100-sxm --tp 2 --ep 2 --expert-skew 0.7 --with eagle:accept=2.5 --with awq",
    "llama-2-7b --hw a6000 --convention llm-viewer",
    "qwen2-vl-7b --hw l40s --images 2 --image-size 1024x768",
    "llama-2-7b --hw a6000 --price 0.5",
    "llama-2-7b --hw m4-max --engine vllm",
    "llama-2-7b --hw m4-max --quant q8_0",
    "llama-2-7b --hw a6000 --flash --convention llm-viewer --prefix 64",
    "llama-3.1-405b --hw h100-sxm --tp 16",
    "llama-3.1-405b --hw h100-sxm --tp 16 --nodes 1",
    "llama-3.1-405b --hw h100-sxm --tp 8 --nodes 2",
]


def totals(scenario: Scenario) -> list[float]:
    found = analyze(scenario)
    return [found.prefill.bound_time, found.decode.bound_time, found.memory.total]


@pytest.mark.parametrize("text", WRITTEN)
def test_command_line_round_trip(text: str) -> None:
    (request,) = parse_scenarios([text])
    assert shlex.split(command_line(request))[2:] == command_words(request)
    (again,) = parse_scenarios([shlex.join(command_words(request))])
    assert again.settings == request.settings
    assert again.fusions == request.fusions
    assert totals(again) == totals(request)
    assert command_words(again) == command_words(request)
    assert sorted(command_words(request)) == sorted(shlex.split(text))


def request(**options: object) -> Scenario:
    return Scenario("llama-3.1-8b", "h100-sxm", **options)


def test_default_number_of_nodes() -> None:
    """`h100-sxm` has 8 devices per node, an NVL72 rack is one node; the last node may be partial."""

    def nodes(hardware: str, **degrees: int) -> int | None:
        asked = Scenario("llama-3.1-405b", hardware, **degrees)
        return analyze(asked).parallel.nodes

    assert [nodes("h100-sxm", tp=count) for count in (1, 8, 16, 32)] == [1, 1, 2, 4]
    assert nodes("h100-sxm", dp=12) == 2
    assert nodes("h100-sxm", dp=9) == 2
    assert nodes("h100-sxm", tp=16, nodes=1) == 1
    assert nodes("gb200", tp=64) == 1
    request = Scenario("llama-3.1-405b", "rtx-4090", tp=16)
    with pytest.raises(RooflineError, match=r"has no interconnect across nodes, of 8 devices each"):
        analyze(request)


def test_other_hardware_is_named_and_a_path_is_kept(tmp_path) -> None:
    from roofline.specs.library import spec_files

    spec = tmp_path / "my gpu.yaml"
    spec.write_text(spec_files("hwspecs")["h100-sxm"].read_text())
    asked = Scenario("llama-3.1-8b", str(spec))
    assert command_words(asked) == ["llama-3.1-8b", "--hw", str(spec)]
    assert shlex.quote(str(spec)) in command_line(asked)
    assert command_words(asked.with_(hw="a6000"))[-1] == "a6000"


def test_parts_without_text_form_are_rejected() -> None:
    from msgspec.structs import replace

    from roofline.specs.engine import load_engine

    with pytest.raises(RooflineError, match="a grid"):
        command_line(request(batch=[1, 2]))
    with pytest.raises(RooflineError, match="engine made in Python"):
        command_line(request(engine=replace(load_engine("vllm"), name="own")))


@pytest.mark.parametrize(("rate", "text"), [(10.0, "10"), (0.3, "0.3"), (500 / 3, "166.666"), (1200.0, "1200")])
def test_a_rate_has_six_digits_and_never_exceeds_itself(rate: float, text: str) -> None:
    assert rate_word(rate) == text
