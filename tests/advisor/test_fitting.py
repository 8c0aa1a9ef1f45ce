"""What would make a scenario fit: added to the command, each answer makes it fit, and a lesser change does not."""

from __future__ import annotations

import pytest

from roofline import Scenario, analyze, answer, serve
from roofline.advisor.fitting import in_cpu_memory, remedy, what_fits
from roofline.cli.scenario_options import parse_scenarios
from roofline.core.errors import RooflineError
from roofline.serving.replica import DoesNotFitError
from tests.cases import sampled
from tests.conftest import Run

CASES = {
    "qwen2.5-32b --hw rtx-4090": ("--quant awq", "--tp 4"),
    "llama-3.1-405b --hw h100-sxm --tp 8": ("--quant fp8", "--tp 16"),
    "deepseek-v3 --hw h200-sxm": ("--tp 8",),
    "glm-5.2 --hw b200-sxm --tp 8 --prompt 1000000": ("--quant fp8 --kv fp8", "--tp 32"),
    "llama-3.1-8b --hw rtx-4090 --batch 64 --prompt 4096": ("--tp 4",),
    "llama-3.1-8b --hw l4 --prompt 60000": ("--quant fp8", "--tp 2"),
    "llama-3.1-8b --hw l4 --engine llama.cpp --prompt 65536": ("--kv q8_0", "--pp 2"),
    "gpt-oss-120b --hw h100-sxm": ("--gpu-memory-utilization 0.95",),
    "mixtral-8x7b --hw a100-sxm-40gb --with awq --batch 400": ("--tp 2",),
}


def fits(command: str) -> bool:
    return bool(analyze(parse_scenarios([command])[0]).memory.fits)


@pytest.mark.parametrize(("command", "expected"), sampled(CASES.items(), 3), ids=CASES)
def test_every_proposal_fits_when_it_is_run(command: str, expected: tuple[str, ...]) -> None:
    assert not fits(command)
    found = tuple(map(str, what_fits(parse_scenarios([command])[0])))
    assert set(expected) <= set(found)
    assert all(fits(f"{command} {option}") for option in found)


@pytest.mark.parametrize(
    ("command", "less"),
    [
        ("qwen2.5-32b --hw rtx-4090", ("--quant fp8 --kv fp8", "--tp 2")),
        ("glm-5.2 --hw b200-sxm --tp 8 --prompt 1000000", ("--quant fp8", "--kv fp8", "--tp 16")),
        ("llama-3.1-8b --hw rtx-4090 --batch 64 --prompt 4096", ("--quant awq --kv fp8", "--tp 2")),
        ("llama-3.1-8b --hw l4 --prompt 60000", ("--kv fp8",)),
    ],
)
def test_lesser_changes_do_not_fit(command: str, less: tuple[str, ...]) -> None:
    assert not any(fits(f"{command} {option}") for option in less)


@pytest.mark.parametrize(
    ("model", "hw"),
    sampled(
        [
            *(("llama-3.3-70b", hw) for hw in ("rtx-4090", "2xh100-sxm", "h100-sxm")),
            *(("deepseek-r1", hw) for hw in ("rtx-4090", "gb200", "dgx-spark")),
            ("kimi-k3", "gb200"),
        ],
        2,
    ),
)
def test_what_a_cpu_keeps_has_room_and_a_reason(model: str, hw: str) -> None:
    asked = Scenario(model, hw, batch=8)
    assert not analyze(asked).memory.fits
    for fit in what_fits(asked):
        changed = fit.scenario
        if (offload := changed.given("offload")) is not None:
            assert changed.hardware.kind == "gpu"
            assert not analyze(changed.without("offload")).memory.fits, (fit, offload)
        if (host := changed.settings.host) is not None:
            assert 0 < in_cpu_memory(changed) <= host.hardware.memory_capacity
        if changed.profile.split_layers:  # one process
            assert changed.hardware.machines(changed.settings.parallel.devices) == 1


@pytest.mark.parametrize("hw", ["dgx-spark", "m4-max", "ryzen-ai-max-395", "epyc-9654"])
def test_unified_memory_offloads_nothing(hw: str) -> None:
    with pytest.raises(RooflineError, match="shares the memory of its CPU"):
        analyze(Scenario("qwen3-8b", hw, offload="weights=0.5"))


@pytest.mark.parametrize(
    "command", ["llama-3.1-8b --hw rtx-4090 --batch 64 --prompt 4096", "llama-3.1-8b --hw l4 --prompt 60000"]
)
def test_the_largest_batch_or_the_longest_prompt_that_fits(command: str) -> None:
    name = "--batch" if "--batch" in command else "--prompt"
    value = next(str(fit) for fit in what_fits(parse_scenarios([command])[0]) if str(fit).startswith(name)).split()[1]
    assert [fits(f"{command} {name} {int(value) + more}") for more in (0, 1)] == [True, False]


@pytest.mark.parametrize(("model", "option"), [("llama-3.1-70b", "--quant"), ("gpt-oss-120b", "--gpu-memory-util")])
def test_a_deployment_that_does_not_fit_is_served_as_an_answer_chooses_and_has_a_remedy(
    run: Run, model: str, option: str
) -> None:
    asked = Scenario(model, "h100-sxm")
    status, _, said = run("serve", model, "--hw", "h100-sxm", "--rate", "1")
    assert status == 0
    assert f"chosen: {option}" in said
    with pytest.raises(DoesNotFitError) as error:
        serve(asked, rate=1)
    changed = remedy(error.value).split()
    assert changed[0].startswith(option)
    assert run("serve", model, "--hw", "h100-sxm", "--rate", "1", *changed)[0] == 0
    command = ("solve", "max-rate", model, "--hw", "h100-sxm")
    assert f"chosen: {option}" in run(*command)[2]


def test_lengths_that_are_distributions_have_remedies_too() -> None:
    found = answer("qwen3-235b-a22b", "2x4090", users=16, prompt="uniform:100:900")
    assert "No" in str(found)
    assert found.plan.fits_with
    with pytest.raises(DoesNotFitError) as error:
        serve(Scenario("llama-3.1-70b", "h100-sxm", prompt="uniform:100:900"), rate=1)
    assert remedy(error.value)


def test_a_remedy_that_the_engine_is_known_to_run_comes_first() -> None:
    """vLLM has no kernels of MXFP4 on a B580, also on two of them; llama.cpp has."""
    with pytest.raises(DoesNotFitError) as error:
        serve(Scenario("gpt-oss-20b", "arc-b580", engine="vllm"), rate=0.1)
    assert "--engine llama.cpp" in remedy(error.value)


def test_the_remedy_of_a_load_holds_its_longest_request(run: Run) -> None:
    """In FP8 one short sequence of it fits; its sessions grow to a million tokens, which take an FP8 cache, too."""
    question = ("serve", "glm-5.2", "--hw", "8xb200-sxm", "--sessions", "2", "--profile", "coding-agent")
    assert run(*question)[2].endswith("; --quant fp8 --kv fp8 would do\n")


def test_what_is_chosen_for_pools_keeps_the_devices_of_a_replica(run: Run) -> None:
    """`serve` has the devices that were counted in each replica, also where their format is chosen."""
    status, out, said = run("serve", "llama-3.1-405b", "8xh100", "--disaggregation", "1:1", "--users", 4)
    assert (status, "chosen: --quant fp8" in said) == (0, True)
    assert "on 16 h100-sxm" in out


def test_replicas_with_drafts_that_do_not_fit_are_refused_in_one_sentence(run: Run) -> None:
    """The replica of which a server is told is changed after its techniques, so that no option of it is known."""
    question = ("serve", "deepseek-v4-pro", "--hw", "8xb300-sxm", "--dp", "8", "--engine", "sglang", "--with", "mtp")
    status, printed, said = run(*question, "--concurrency", "1")
    assert (status, printed) == (2, "")
    assert len(said.splitlines()) == 1
