"""What people type: other names of models and hardware, and what the command line says it took them for."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from roofline import Scenario
from roofline.cli.scenario_options import parse_scenarios
from tests.cases import sampled

Run = Callable[..., tuple[int, str, str]]


def scenario(run: Run, *args: object) -> tuple[dict[str, Any], str]:
    """The JSON document of `roofline analyze ARGS`, and what it said on stderr."""
    status, out, err = run("analyze", *args, "--format", "json")
    assert status == 0, err
    document: dict[str, Any] = json.loads(out)
    return document, err


def test_names_are_told_on_stderr_and_the_answer_is_the_same(run: Run) -> None:
    plain, silent = scenario(run, "llama-3.1-8b", "--hw", "h200-sxm")
    other, told = scenario(run, "meta-llama/Llama-3.1-8B-Instruct", "--hw", "H200")
    assert (other, silent) == (plain, "")
    assert told == (
        "roofline: 'meta-llama/Llama-3.1-8B-Instruct' is taken as llama-3.1-8b\nroofline: 'H200' is taken as h200-sxm\n"
    )


@pytest.mark.parametrize("name", ["bartowski/Llama-3.3-70B-Instruct-GGUF:Q4_K_M", "llama3.3:70b-instruct-q4_K_M"])
def test_gguf_on_two_consumer_gpus_fits_in_llama_cpp(run: Run, name: str) -> None:
    found, _ = scenario(run, name, "--hw", "2x4090")
    assert found["scenario"]["engine"] == "llama.cpp"
    assert found["memory"]["fits"]
    assert found["phases"] == scenario(run, name, "--hw", "2x4090", "--engine", "llama.cpp")[0]["phases"]
    asked, _ = scenario(run, name, "--hw", "2x4090", "--engine", "vllm")
    assert asked["scenario"]["engine"] == "vllm"


def test_a_gguf_repository_of_unquantized_weights_is_run_by_llama_cpp(run: Run) -> None:
    found, told = scenario(run, "unsloth/Qwen3-8B-GGUF:BF16", "--hw", "rtx-4090")
    assert found["scenario"]["engine"] == "llama.cpp"
    assert "gguf" not in told.rpartition("taken as")[2]
    assert scenario(run, "Qwen/Qwen3-8B", "--hw", "rtx-4090")[0]["scenario"]["engine"] == "vllm"


@pytest.mark.parametrize(
    ("words", "more"),
    [(("serve",), ("--concurrency", 2)), (("solve", "max-batch"), ("--tpot", "50ms")), (("explain", "tpot"), ())],
)
def test_gguf_is_run_by_llama_cpp_in_every_question(run: Run, words: tuple[str, ...], more: tuple[object, ...]) -> None:
    asked = (*words, "unsloth/Qwen3-8B-GGUF:Q8_0", "--hw", "rtx-4090", *more, "--format", "json")
    default, named = run(*asked), run(*asked, "--engine", "llama.cpp")
    assert default[0] == 0
    assert json.loads(default[1]) == json.loads(named[1])


@pytest.mark.parametrize(
    ("words", "more"),
    [(("explain", "tpot"), ()), (("sweep",), ("--over", "batch=1,2"))],
)
def test_hardware_follows_the_model_in_every_question(run: Run, words: tuple[str, ...], more: tuple[str, ...]) -> None:
    said, named = (run(*words, "llama-3.2-1b", *hardware, *more) for hardware in (("l4",), ("--hw", "l4")))
    assert (said[0], said[1]) == (named[0], named[1])
    assert said[0] == 0


def test_the_quantization_of_a_name_is_the_checkpoints(run: Run) -> None:
    named, told = scenario(run, "Qwen/Qwen3-32B-AWQ", "--hw", "h100-sxm")
    asked, _ = scenario(run, "qwen3-32b", "--hw", "h100-sxm", "--quant", "awq")
    assert "(quantization awq)" in told
    assert named["phases"] == asked["phases"]
    overridden, _ = scenario(run, "Qwen/Qwen3-32B-AWQ", "--hw", "h100-sxm", "--quant", "fp8")
    assert overridden["scenario"]["weights"] == "fp8"
    local, _ = scenario(run, "llama3.1:8b-instruct-q4_K_M", "--hw", "m4-max")
    assert local["scenario"]["weights"] == "q4_k_m"


def test_hardware_with_a_count_spreads_the_model(run: Run) -> None:
    counted, told = scenario(run, "llama-3.1-70b", "--hw", "8xH200")
    assert told == "roofline: '8xH200' is taken as 8 x h200-sxm\n"
    assert counted["phases"] == scenario(run, "llama-3.1-70b", "--hw", "h200-sxm", "--tp", 8)[0]["phases"]
    pipelined, _ = scenario(run, "llama-3.1-70b", "--hw", "8xH200", "--tp", 4, "--pp", 2)
    assert pipelined["phases"] == scenario(run, "llama-3.1-70b", "--hw", "h200-sxm", "--tp", 4, "--pp", 2)[0]["phases"]
    status, out, err = run("analyze", "llama-3.1-70b", "--hw", "8xH200", "--tp", 3)
    assert (status, out) == (2, "")
    assert "is 8 devices, and the degrees of parallelism need 3" in err


def test_axes_and_lists_take_other_names(run: Run, tmp_path: Path) -> None:
    axes = ("--over", "hw=H200,4xH200,4090", "--metrics", "gpus", "--format", "csv")
    status, out, err = run("sweep", "meta-llama/Llama-3.2-1B", *axes)
    assert status == 0
    assert out.splitlines() == ["hw,gpus", "H200,1", "4xH200,4", "4090,1"]
    assert "'4090' is taken as rtx-4090" in err
    assert "'meta-llama/Llama-3.2-1B' is taken as llama-3.2-1b" in err
    found = tmp_path / "answer.json"
    status, _, err = run(
        *("size", "llama-3.2-1b", "--rate", 1, "--hw", "L4,H200", "--price", "H200=3", "--quality", "lossless"),
        *("--format", "json", "-o", found),
    )
    assert (status, err) == (0, "roofline: 'H200' is taken as h200-sxm\n")
    assert '"h200-sxm"' in found.read_text() or '"l4"' in found.read_text()
    assert '"H200"' not in found.read_text()


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--hw", "xeon"), "unknown hardware 'xeon'; did you mean 'xeon-6980p', 'xeon-gold-6454s'"),
        (("--hw", "p9.48xlarge"), "'roofline specs list hardware' lists all"),
    ],
)
def test_hardware_that_is_asked_for(run: Run, args: tuple[str, ...], said: str) -> None:
    status, out, err = run("analyze", "llama-3.1-8b", *args)
    assert (status, out) == (2, "")
    assert said in err
    assert err.count("\n") == 1


def test_later_scenarios_change_the_first_as_with_does() -> None:
    """Two names of one option and a count of devices are replaced; what is not given is not said to be given."""
    eight, two = parse_scenarios(["llama-3.1-8b --hw 8xh100-sxm --quant fp8", "--quantization awq --tp 2"])
    assert two == eight.with_(quantization="awq", tp=2) == Scenario("llama-3.1-8b", "h100-sxm", quant="awq", tp=2)
    assert [eight.given(name) for name in ("generate", "batch", "context")] == [None, None, None]


@pytest.mark.parametrize(
    ("model", "words", "technique"),
    [
        (
            "llama-3.1-8b",
            "--speculative-algorithm EAGLE3 --speculative-draft-model-path d --speculative-num-steps 3"
            " --speculative-eagle-topk 4 --speculative-num-draft-tokens 16",
            "eagle-3:length=3,topk=4,tree=15",
        ),
        ("deepseek-r1", "--speculative-algo EAGLE --speculative-num-steps 3", "multi-token-prediction:length=3"),
        ("llama-3.1-8b", "--speculative-algo EAGLE --speculative-draft-model-path=d", "eagle"),
        (
            "deepseek-r1",
            '--speculative-config {"method":"mtp","num_speculative_tokens":2}',
            "multi-token-prediction:length=2",
        ),
    ],
)
def test_options_of_drafts_are_a_technique(run: Run, model: str, words: str, technique: str) -> None:
    ours = run("analyze", model, "--hw", "8xb200-sxm", "--format", "json", "--with", technique)
    assert run("analyze", model, "--hw", "8xb200-sxm", "--format", "json", *words.split()) == ours
    assert ours[0] == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--max-concurrency 4", "analyze does not take --max-concurrency (--concurrency)"),
        ("--rate 4", "analyze does not take --rate;"),
        ("-ctk q8_0 -ctv q8_0", "no such option: -ctv; keys and values have one format here: --kv"),
        ("--gpus 2", "no such option: --gpus; --tp is the number of devices"),
        ("--speculative-config {}", "unknown speculative method"),
        ("--speculative-config [", "--speculative-config takes a JSON object"),
        ("--speculative-num-steps 3", "--speculative-num-steps needs --speculative-algorithm"),
        ("--speculative-algo EAGLE3 --speculative-num-steps 3 --speculative-eagle-topk 4", "a tree takes"),
        (
            "--speculative-algorithm EAGLE3 --speculative-num-steps 3 --speculative-num-draft-tokens 9",
            "verifies 4 tokens",
        ),
        ("--port --tp 2", "--port takes a value"),
        ("--port", "--port takes a value"),
        ("--batchs 2", "no such option: --batchs; did you mean --batch"),
        ("--xyzzy", "no such option: --xyzzy; 'roofline analyze --help' lists the options"),
    ],
)
def test_options_that_a_command_has_not_are_explained(run: Run, words: str, message: str) -> None:
    status, out, err = run("analyze", "llama-3.1-8b", "--hw", "h100-sxm", *words.split())
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert message in err


def test_engines_flags_are_read_as_engines_write_them(run: Run) -> None:
    found, told = scenario(run, *["llama-3.1-8b", "--hw", "h100-sxm", "-fa", "off", "--load_format", "dummy"])
    assert found == scenario(run, *["llama-3.1-8b", "--hw", "h100-sxm", "--no-flash"])[0]
    assert told == "roofline: --load_format changes neither speed nor memory, and is left out\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("techniques eagle --level data", "eagle is of level system, not data"),
        (
            "sweep llama-3.1-8b --hw h100-sxm --over tp=1,2 -o x.foo",
            "'x.foo' must end in .csv, .jsonl, .ndjson or .parq",
        ),
        ("techniques zzzzqqq", "others"),
        (
            "answer llama-3.1-8b 4090 --quant 4bit",
            "of 4 bits are awq or gptq (GPUs), nf4, q4_k_m (llama.cpp)",
        ),
        ("answer llama-3.1-8b 4090 --user 4", "did you mean --users"),
        ("sweep nope.yaml", "'nope.yaml': cannot be read"),
    ],
)
def test_nothing_is_shown_only_with_a_reason(run: Run, words: str, message: str) -> None:
    status, out, err = run(*words.split())
    assert (status, out) == (2, "")
    assert message in err


def test_a_varied_degree_replaces_the_count_of_devices(run: Run) -> None:
    words = ["llama-3.1-8b", "--hw", "8xh100-sxm", "--over", "tp=1,8", "--metrics", "gpus", "--format", "csv"]
    status, out, err = run("sweep", *words)
    assert (status, out.split()) == (0, ["tp,gpus", "1,1", "8,8"]), err


def test_a_model_on_hardware_in_one_sentence(run: Run) -> None:
    status, out, err = run("llama-3.2-1b on 4090")
    assert (status, out.startswith("Yes: llama-3.2-1b runs on rtx-4090")) == (0, True), err


def test_two_cards_of_different_kinds_are_named_and_counted_or_refused(run: Run) -> None:
    both = "rtx-4090+rtx-3090"
    status, _, err = run("size", "llama-3.2-1b", "--hw", both, "--rate", "1")
    assert (status, "cards of different kinds are for analyze, serve and the answer" in err) == (2, True)
    status, out, err = run("serve", "llama-3.2-1b", "--hw", both, "--rate", "1", "--format", "json")
    document = json.loads(out)
    (point,) = document["points"]
    assert (document["hardware"], document["devices"]) == (both, 2), err
    assert point["output_tokens_per_s_per_device"] == pytest.approx(point["output_tokens_per_s"] / 2)
    assert Scenario("llama-3.2-1b", both).with_(hw="rtx-4090").techniques == ()


def test_a_placeholder_in_the_command_is_explained(run: Run) -> None:
    _, out, _ = run("llama-3.2-1b", "4090", "--quant", "awq")
    assert out.splitlines()[-1].endswith("# MODEL: a checkpoint in awq")


@pytest.mark.parametrize(
    "name",
    sampled(
        [
            *("FlightLLM", "DFX", "ALLO", "SambaNova", "Cerebras", "Graphcore", "Groq", "S-LoRA", "Punica", "HexGen"),
            *(
                "FlexFlow-Serve",
                "FastServe",
                "VTC",
                "Llumnix",
                "AlpaServe",
                "SpotServe",
                "Petals",
                "S4",
                "GAU",
                "FLASH",
            ),
            *(
                "BST",
                "h3-1.3b",
                "retnet-6.7b",
                "rwkv-5-7b",
                "LoRAX",
                "XGrammar",
                "H3",
                "RetNet",
                "RWKV",
                "U280",
                "VHK158",
            ),
            *("Cloud AI 100", "wormhole", "blackhole", "Ascend 910B", "MIG", "power cap", "time slicing", "rollouts"),
            *("structured output", "carbon", "priority classes"),
        ],
        10,
    ),
)
def test_techniques_answers_for_systems_models_and_hardware(run: Run, name: str) -> None:
    status, out, _ = run("techniques", name)
    assert status == 0
    assert any(word in out for word in ("published", "GB", "parameters", "simulated by", "roofline analyze"))


def test_options_of_adapters_are_a_technique(run: Run) -> None:
    words = ("analyze", "llama-3.2-1b", "--hw", "h100-sxm")
    given = (
        (("--adapters", "100", "--ranks", "8,16,64"), "lora:rank=29,largest=64,adapters=100"),
        (("--enable-lora", "--max-loras", "8", "--max-lora-rank=16"), "lora:rank=16,adapters=8,slots=8"),
        (("--enable-lora",), "lora:rank=16,adapters=1"),
    )
    for options, technique in given:
        assert run(*words, *options, "--format", "json")[1] == run(*words, "--with", technique, "--format", "json")[1]
    assert run(*words, "--adapters", "x")[0] == 2


@pytest.mark.slow
def test_a_family_names_its_models(run: Run) -> None:
    assert "rwkv-7-0.1b" in run("techniques", "RWKV")[1]
    assert [each["name"] for each in json.loads(run("techniques", "U280", "--format", "json")[1])["hardware"]] == [
        "allo",
        "dfx",
    ]
    both = json.loads(run("techniques", "Cerebras", "--format", "json")[1])
    assert [each["name"] for each in both["models"] + both["hardware"]] == ["cerebras-gpt-13b", "wse-3"]


def test_a_device_without_published_figures_says_what_is_known(run: Run) -> None:
    status, _, err = run("llama-3.1-8b", "Intel Crescent Island")
    assert status == 2
    assert "LPDDR5X" in err


def test_a_context_under_load_is_the_prompt_of_each_request(run: Run) -> None:
    words = ("serve", "llama-3.1-8b", "h100-sxm", "--concurrency", "4", "--format", "json")
    assert run(*words, "--context", "2k")[1] == run(*words, "--prompt", "2k")[1]
    assert "name the same" in run(*words, "--context", "2k", "--prompt", "1k")[2]


def test_options_of_other_commands_are_named_with_them(run: Run) -> None:
    status, _, err = run("launch", "llama-3.1-8b", "h100-sxm", "--objective", "cost")
    assert (status, "roofline advise" in err) == (2, True)
    assert "--as" in run("launch", "llama-3.1-8b", "h100-sxm", "--format", "json")[2]
    assert "roofline size" in run("choose", "hardware", "llama-3.1-8b")[2]


def test_two_formats_of_the_weights_are_refused(run: Run) -> None:
    status, _, err = run("llama-3.1-8b", "h100-sxm", "--quant", "awq", "--weights", "int8")
    assert (status, "--weights" in err) == (2, True)


def test_a_revision_that_is_not_known_is_said(run: Run) -> None:
    _, _, err = run("qwen3-8b-thinking", "h100-sxm")
    assert "thinking" in err
    assert run("qwen3-next-80b-a3b-thinking", "h100-sxm")[2] == ""


def test_a_number_of_users_has_no_unit_of_time(run: Run) -> None:
    status, _, err = run("serve", "llama-3.1-8b", "h100-sxm", "--concurrency", "600/min")
    assert (status, "600/min" in err) == (2, True)
