"""vLLM's options beside ours: each is the option that it stands for, and limits are those that vLLM enforces."""

from __future__ import annotations

from pathlib import Path

import pytest

from roofline import RooflineError
from roofline.cli.scenario_options import parse_scenarios
from roofline.scenario.analysis import analyze
from roofline.scenario.options import OPTIONS, find_option
from roofline.scenario.scenario import Scenario
from roofline.whatif.command_line import command_words
from roofline.whatif.solve import Targets, break_even, max_batch, max_concurrency, max_context, max_rate
from roofline.whatif.study import assemble, make_study
from roofline.whatif.sweeps import sweep
from tests.cases import sampled

DENSE = "llama-3.1-8b --hw h100-sxm"
MOE = "qwen3-30b-a3b --hw h100-sxm"


def request(text: str) -> Scenario:
    (found,) = parse_scenarios([text])
    return found


@pytest.mark.parametrize(
    ("scenario", "vllm", "ours"),
    [
        (DENSE, "--tensor-parallel-size 4", "--tp 4"),
        (DENSE, "-tp 4 -pp 2", "--tp 4 --pp 2"),
        (DENSE, "--pipeline-parallel-size 2", "--pp 2"),
        (DENSE, "--data-parallel-size 2 --batch 4", "--dp 2 --batch 4"),
        (DENSE, "--kv-cache-dtype fp8_e4m3", "--kv fp8"),
        (DENSE, "--kv-cache-dtype auto --dtype auto", ""),
        (DENSE, "--quantization awq_marlin", "--quant awq"),
        (DENSE, "--quantization gptq", "--quant gptq"),
        (DENSE, "--quantization modelopt_fp4", "--quant nvfp4"),
        (DENSE, "--quantization bitsandbytes", "--quant nf4"),
        (DENSE, "--dtype half", "--quant fp16"),
        (DENSE, "--dtype bfloat16", ""),
        (MOE, "-tp 4 --enable-expert-parallel", "--tp 4 --ep 4"),
        (MOE, "--dp 4 -ep", "--ep 4 --dp 4"),
        (MOE, "--tp 4 --dp-attention", "--ep 4 --dp 4"),
        (MOE, "--tp 4 --ep 4 --enable-dp-attention", "--ep 4 --dp 4"),
        (MOE, "--tp 2 --dp 2 -ep", "--tp 2 --ep 4"),
        ("qwen3-30b-a3b --hw 8xH200", "-ep", "--tp 8 --ep 8"),
        ("deepseek-v3 --hw h200-sxm --tp 8", "--quantization fp8", ""),  # its own FP8, in blocks
        (DENSE, "--max-model-len 8K", ""),
    ],
)
def test_an_option_of_vllm_is_what_it_stands_for(scenario: str, vllm: str, ours: str) -> None:
    theirs, own = (analyze(request(f"{scenario} {options}")) for options in (vllm, ours))
    assert theirs.precision == own.precision
    assert theirs.parallel == own.parallel
    assert theirs.expected.total.mid == own.expected.total.mid
    assert theirs.memory.total == own.memory.total


def test_dtype_keeps_a_quantized_checkpoint() -> None:
    """As vLLM does: the dtype is that of what the checkpoint leaves unquantized."""
    precision = request("deepseek-v3 --hw h200-sxm --tp 8 --dtype half").precision
    assert precision is not None
    assert (precision.base.name, precision.weights.name, precision.kv.name) == ("fp16", "fp8_block", "fp16")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (f"{DENSE} --max-model-len 1M", "exceeds the maximum context of llama-3.1-8b, 131072 tokens"),
        (
            "llama-3.1-8b --hw l4 --max-model-len 128K",
            "vllm does not start: a sequence of max_model_len 131072 does not fit",
        ),
        (f"{DENSE} --enable-expert-parallel", "llama-3.1-8b has no experts"),
        (f"{MOE} --tp 4 --ep 2 --dp-attention", "dp_attention divides experts among 4 ranks, not 2 (ep)"),
        (f"{DENSE} --quantization fp8 --quant awq", "give one of them"),
        (f"{DENSE} --dtype int8", "unknown dtype 'int8'"),
        (f"{DENSE} --kv-cache-dtype fp8_ds_mla", "'fp8_ds_mla'"),
    ],
)
def test_what_vllm_refuses(options: str, said: str) -> None:
    with pytest.raises(RooflineError) as refusal:
        analyze(request(options))
    assert said in str(refusal.value)


def test_limits_hold_in_every_answer() -> None:
    limited = request(f"{DENSE} --max-num-seqs 20 --max-model-len 4K")
    assert max_batch(limited, Targets()).value == 20
    assert "max_num_seqs" in max_batch(limited, Targets()).note
    assert max_context(limited, Targets()).value == 4096 - 128
    assert request(f"{DENSE} --max-model-len 4K --prompt {4096 - 128}")
    assert break_even(limited.with_(techniques="prompt-lookup:accept=2"), limited, Targets()).value == 20
    assert request(f"{MOE} --dp 2 --max-num-seqs 8").max_batch == 16  # a limit of each engine core
    study = make_study({"batch": "1,16,32", "prompt": "2K,4K"}, model="llama-3.1-8b", hw="h100-sxm", max_num_seqs="16")
    assert sweep(study).columns["batch"].tolist() == [1, 1, 16, 16]


def test_commands_name_the_limits() -> None:
    words = command_words(request(f"{DENSE} --max-model-len 8K --max-num-seqs 4 --dtype half --quantization fp8"))
    assert " ".join(words) == (
        "llama-3.1-8b --hw h100-sxm --dtype fp16 --quantization fp8 --max-model-len 8192 --max-num-seqs 4"
    )
    again = request(" ".join(words))
    assert (again.given("max_model_len"), again.given("max_num_seqs")) == (8192, 4)


def test_study_files_know_the_names(tmp_path: Path) -> None:
    path = tmp_path / "study.yaml"
    path.write_text("model: llama-3.1-8b\nhw: h100-sxm\ntensor-parallel-size: 2\nover: {batch: '1,1K'}\n")
    study = assemble(str(path), (), {}, {})
    assert study.question.fixed["tp"] == 2
    assert study.axes[0].values.tolist() == [1, 1024]
    assert assemble(str(path), ["tensor_parallel_size=1,4"], {}, {}).axes[1].values == (1, 4)


def test_studies_and_axes_know_the_names() -> None:
    for name, own in (
        ("tensor_parallel_size", "tp"),
        ("--pipeline-parallel-size", "pp"),
        ("data_parallel_size", "dp"),
        ("kv-cache-dtype", "kv"),
    ):
        assert find_option(name) is OPTIONS[own]
    study = make_study({"tensor_parallel_size": "1,2"}, model="llama-3.1-8b", hw="h100-sxm", kv_cache_dtype="auto")
    assert [axis.name for axis in study.axes] == ["tp"]


@pytest.mark.parametrize("limit", sampled(["--max-num-seqs 4", "--gpu-memory-utilization 0.28"], 1))
def test_limits_hold_under_load(limit) -> None:
    targets = Targets(tpot=50e-3)
    for question, wait in ((max_rate, "ttft"), (max_concurrency, "saturation")):  # for one of few slots
        free, limited = question(request(DENSE), targets), question(request(f"{DENSE} {limit}"), targets)
        assert 0 < limited.value < free.value / 2
        assert limited.limited_by == (wait,)
    assert max_concurrency(request(f"{DENSE} --max-num-seqs 4"), targets).value == 4
    with pytest.raises(RooflineError, match="longer than max_model_len 500"):
        max_rate(request(f"{DENSE} --max-model-len 500"), targets)
