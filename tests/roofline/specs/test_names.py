"""Names that people type: repositories, tags and market names are the right spec, or the candidates are named."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import yaml
from hypothesis import assume, given
from hypothesis import strategies as st
from msgspec.structs import replace

from roofline import (
    RooflineError,
    Scenario,
    UnknownNameError,
    analyze,
    list_models,
    load_hardware,
    load_model,
)
from roofline.core.documents import read_mapping
from roofline.core.errors import UnsupportedError
from roofline.specs.engine import default_engine
from roofline.specs.hardware import load_devices
from roofline.specs.library import spec_files
from roofline.specs.modelspec import load_any
from roofline.specs.names import taken
from tests.cases import HARDWARE, sampled

SOURCES = {
    name: found[1]
    for name, path in spec_files("modelspecs").items()
    if (found := re.search(r"^source: https://huggingface\.co/(\S+?)/blob/", path.read_text("utf-8"), re.MULTILINE))
}
REPOSITORIES = {
    repository: name
    for name, path in spec_files("modelspecs").items()
    if "\nrepositories:" in path.read_text("utf-8")
    for repository in read_mapping(path)["repositories"]
}


@pytest.mark.parametrize("name", sampled(list(SOURCES)))
def test_the_repository_of_a_source_is_its_model(name: str) -> None:
    assert load_model(SOURCES[name]) == load_model(name)
    assert load_model(f"https://huggingface.co/{SOURCES[name]}") == load_model(name)


@pytest.mark.parametrize("repository", sampled(list(REPOSITORIES)))
def test_a_listed_repository_is_its_model_with_what_differs(repository: str) -> None:
    model, own = load_model(repository), load_model(REPOSITORIES[repository])
    assert (model.name, model.groups, model.vocabulary) == (own.name, own.groups, own.vocabulary)
    assert load_model(repository.split("/")[1].lower()) == model
    assert load_model("Qwen/Qwen3-8B-FP8").quantization == "fp8_block"
    assert load_model("Qwen/Qwen3-30B-A3B-Instruct-2507").max_context == 262144


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("meta-llama/Meta-Llama-3.1-8B", "llama-3.1-8b"),
        ("Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("unsloth/Llama-3.2-1B-Instruct", "llama-3.2-1b"),
        ("mistralai/Mistral-7B-Instruct-v0.3", "mistral-7b-v0.3"),
        ("mistralai/Mistral-Nemo-Instruct-2407", "mistral-nemo-12b"),
        ("google/gemma-3-27b-it", "gemma-3-27b"),
        ("gpt-oss:120b", "gpt-oss-120b"),
        ("command r+", "command-r-plus"),
        ("exaone 4 32b", "exaone-4.0-32b"),
    ],
)
def test_other_spellings_of_a_model(text: str, name: str) -> None:
    assert load_model(text) == load_model(name)


@pytest.mark.parametrize(
    ("text", "name", "scheme"),
    sampled(
        [
            ("Qwen/Qwen3-32B-AWQ", "qwen3-32b", "awq"),
            ("TheBloke/Llama-2-7B-Chat-GPTQ", "llama-2-7b", "gptq"),
            ("Qwen/Qwen2.5-7B-Instruct-GPTQ-Int4", "qwen2.5-7b", "gptq"),
            ("Qwen/Qwen2.5-7B-Instruct-GPTQ-Int8", "qwen2.5-7b", "int8_g128"),
            ("hugging-quants/Meta-Llama-3.1-70B-Instruct-AWQ-INT4", "llama-3.1-70b", "awq"),
            ("RedHatAI/Meta-Llama-3.1-8B-Instruct-quantized.w4a16", "llama-3.1-8b", "w4a16"),
            ("RedHatAI/Meta-Llama-3.1-8B-Instruct-FP8-dynamic", "llama-3.1-8b", "fp8"),
            ("nvidia/Llama-3.1-405B-Instruct-FP4", "llama-3.1-405b", "nvfp4"),
            ("unsloth/Llama-3.2-1B-Instruct-bnb-4bit", "llama-3.2-1b", "nf4"),
            ("llama3.1:8b-instruct-q4_K_M", "llama-3.1-8b", "q4_k_m"),
            ("llama3.1:8b", "llama-3.1-8b", "q4_k_m"),  # what Ollama stores a tag in that names no scheme
            ("qwen3:14b", "qwen3-14b", "q4_k_m"),
            ("TheBloke/Llama-2-7B-Chat-GGUF", "llama-2-7b", "q4_k_m"),  # what llama.cpp's -hf takes from a repository
            ("qwen3-coder:480b-cloud", "qwen3-coder-480b-a35b", "q4_k_m"),
            ("google/gemma-4-31b-it:free", "gemma-4-31b", None),  # OpenRouter's variants, and its names
            ("https://openrouter.ai/deepseek/deepseek-v3.1:thinking", "deepseek-v3", "fp8_block"),
            ("Tencent: Hy3 preview (free)", "hy3", None),
            ("Google Gemma 3 27B", "gemma-3-27b", None),  # after its maker, or the beginning of the maker's name
            ("Moonshot Kimi K2.6", "kimi-k2.5", "int4-g32"),
            ("Z.AI GLM-4.6-FP8", "glm-4.6", "fp8"),
            ("minicpm-v:8b", "qwen2-7b", "q4_k_m"),
            ("llama3.1: 8b", "llama-3.1-8b", "q4_k_m"),  # a family and its size, no maker
            ("mistral-small-4", "mistral-small-4-119b", "fp8"),  # the only one of its name
            ("llama-3.3", "llama-3.3-70b", None),  # Nemotron's are others
            ("qwq", "qwen2.5-32b", None),
            ("qwen3-coder:30b", "qwen3-30b-a3b", "q4_k_m"),
            ("devstral small 2", "mistral-small-3.2-24b", "fp8"),
            ("bartowski/Qwen_Qwen3.6-27B-GGUF:Q5_K_M", "qwen3.5-27b", "q5_k_m"),
            ("Kimi-K2.6-UD-Q2_K_XL-00001-of-00008.gguf", "kimi-k2.5", "q2_k"),  # a file that is not here
            ("Intel/Qwen3.5-122B-A10B-int4-AutoRound", "qwen3.5-122b-a10b", "gptq"),
            ("qwen2.5-coder-7b-instruct-awq", "qwen2.5-7b", "awq"),
            ("qwen3:30b", "qwen3-30b-a3b", "q4_k_m"),
            ("llama4:scout", "llama-4-scout", "q4_k_m"),
            ("deepseek-r1:671b", "deepseek-r1", "q4_k_m"),
            ("https://ollama.com/library/gemma3:27b", "gemma-3-27b", "q4_k_m"),
            ("gpt-oss:20b", "gpt-oss-20b", "mxfp4"),
            ("gpt-oss:latest", "gpt-oss-20b", "mxfp4"),
            ("llama3:latest", "llama-3-8b", "q4_k_m"),
            ("deepseek-r1:32b", "qwen2.5-32b", "q4_k_m"),  # a distillate
            ("mlx-community/Llama-3.1-8B-Instruct-4bit", "llama-3.1-8b", "affine4_g64"),
            ("qwen3:14b-q8_0", "qwen3-14b", "q8_0"),
            ("llama3.1:8b-instruct-fp16", "llama-3.1-8b", None),
            ("https://huggingface.co/Qwen/Qwen3-14B", "qwen3-14b", None),
            ("hf.co/bartowski/Llama-3.2-3B-Instruct-GGUF:Q4_K_M", "llama-3.2-3b", "q4_k_m"),
            ("unsloth/DeepSeek-R1-BF16", "deepseek-r1", None),
            ("someone/DeepSeek-R1-FP8", "deepseek-r1", "fp8_block"),
            ("nvidia/MiniMax-M2.5-NVFP4", "minimax-m2", "nvfp4"),
            ("zai-org/GLM-4.7-FP8", "glm-4.6", "fp8"),
            ("nvidia/DeepSeek-V3.1-NVFP4", "deepseek-v3", "nvfp4"),
            ("nvidia/DeepSeek-R1-NVFP4-v2", "deepseek-r1", "nvfp4"),
            ("nvidia/Kimi-K2-Instruct-0905-NVFP4", "kimi-k2", "nvfp4"),
            ("amd/DeepSeek-R1-0528-MXFP4-Preview", "deepseek-r1", "mxfp4"),
            ("amd/Llama-3.1-405B-Instruct-FP8-KV", "llama-3.1-405b", "fp8"),
            ("RedHatAI/Qwen3-32B-quantized.w8a8", "qwen3-32b", "w8a8"),
            ("RedHatAI/Qwen3-30B-A3B-Instruct-2507-FP8-dynamic", "qwen3-30b-a3b", "fp8"),
            ("lmsys/gpt-oss-120b-bf16", "gpt-oss-120b", None),
            ("unsloth/Qwen3.5-35B-A3B-GGUF:UD-Q4_K_XL", "qwen3.5-35b-a3b", "q4_k_m"),  # nearest of llama.cpp's own
            ("unsloth/GLM-4.7-GGUF:UD-Q2_K_XL", "glm-4.6", "q2_k"),
            ("unsloth/DeepSeek-R1-GGUF:UD-IQ1_S", "deepseek-r1", "iq1_s"),
            ("unsloth/Qwen3-14B-unsloth-bnb-4bit", "qwen3-14b", "nf4"),
            ("mlx-community/Qwen3-30B-A3B-4bit-DWQ", "qwen3-30b-a3b", "affine4_g64"),
            ("ggml-org/gpt-oss-120b-GGUF", "gpt-oss-120b", "mxfp4"),
            ("unsloth/gpt-oss-20b-GGUF:F16", "gpt-oss-20b", "mxfp4"),
            ("someone/Qwen3-32B-Thinking-2601", "qwen3-32b", None),  # a revision of the weights
            ("nous-hermes2", "solar-10.7b", "q4_k_m"),  # its smaller one is the default
            ("nemotron-3-nano", "nemotron-3-nano-30b-a3b", None),  # the maker's name, too
            ("nemotron-3-nano:30b", "nemotron-3-nano-30b-a3b", "q4_k_m"),
            ("mistral-nemo", "mistral-nemo-12b", None),
            ("gemma3:27b-it-qat", "gemma-3-27b", "q4_0"),  # https://ollama.com/library/gemma3/tags
            ("mlx-community/gemma-3-27b-it-qat-4bit", "gemma-3-27b", "affine4_g64"),
        ],
        12,
    ),
)
def test_a_quantization_in_a_models_name(text: str, name: str, scheme: str | None) -> None:
    model = load_model(text)
    assert (model.name, model.quantization) == (name, scheme)


def test_a_quantized_listed_repository_keeps_what_differs() -> None:
    assert load_model("nvidia/Kimi-K2-Instruct-0905-NVFP4").max_context == 262144
    assert load_model("qwen2.5-coder-32b").max_context == 32768  # of Qwen2.5-Coder-32B-Instruct
    assert load_model("RedHatAI/Qwen3-4B-Thinking-2507-quantized.w4a16").max_context == 262144


@pytest.mark.parametrize(
    ("text", "candidates"),
    sampled(
        [
            ("llama3.1", ["llama-3.1-405b", "llama-3.1-70b", "llama-3.1-8b"]),
            ("openai-community/gpt2-tiny", ["gpt2"]),  # another model of the family
            ("deepseek-r1:671m", ["deepseek-r1"]),  # a distillate into another architecture
            ("NousResearch/Hermes-9-Llama-3.1-8B", ["llama-3.1-8b"]),
            ("Qwen/Qwen2.5-Poet-7B-Instruct", ["qwen2.5-7b"]),
            ("qwen3-coder", ["qwen3-coder-480b-a35b"]),  # there is a smaller one, which a spec lists
            ("meta-llama/Llama-3.2-90B-Vision-Instruct", ["llama-3.2-3b"]),
            ("deepseek-r1:newest", ["deepseek-r1"]),
            ("Llama-3.1-8B-Instruct-4bit", ["llama-3.1-8b"]),  # four bits in an unnamed scheme
            ("CohereLabs/command-r-08-2024", ["command-r"]),  # a date with other KV heads
            ("mistralai/Mistral-Small-Instruct-2409-FP8", ["mistral"]),  # another size
            ("nvidia/Llama-3_1-Nemotron-51B-Instruct-FP8", ["llama-3.1"]),  # other layers
            ("deepseek-ai/DeepSeek-V2-NVFP4-v3", ["deepseek-v2"]),
            ("devstral", ["devstral-small-2507"]),
            ("deepseek", ["deepseek-v4-flash", "deepseek-v4-pro", "deepseek-v3.2"]),  # the newest
            ("qwen2.5-coder", ["qwen2.5-coder-32b-instruct"]),
            ("nemotron super 49b", ["llama-3.3-nemotron-super-49b"]),  # with other words between
            ("Qwen 9 8B", ["qwen3-8b"]),  # a size of another model behind the beginning of an owner
            ("some-model-Q4_K_M.gguf", ["cannot be read"]),
            ("x/y", ["config.json"]),
        ],
        6,
    ),
)
def test_other_models_are_not_read_but_the_nearest_named(text: str, candidates: list[str]) -> None:
    with pytest.raises(RooflineError) as refusal:
        load_model(text)
    assert [name for name in candidates if name not in str(refusal.value)] == []


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("H200", "h200-sxm"),
        ("h100sxm", "h100-sxm"),
        ("H100", "h100-sxm"),  # its usual variant
        ("A100", "a100-sxm-80gb"),  # what most clouds rent
        ("V100", "v100-sxm2-16gb"),
        ("MI300", "mi300x"),
        ("MI325", "mi325x"),
        ("A100-80GB", "a100-sxm-80gb"),
        ("A100 80GB SXM", "a100-sxm-80gb"),
        ("NVIDIA A100-SXM4-40GB", "a100-sxm-40gb"),
        ("NVIDIA H100 80GB HBM3", "h100-sxm"),  # as nvidia-smi prints it; the PCIe card has HBM2e
        ("4090", "rtx-4090"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("RTX 4090 24GB", "rtx-4090"),
        ("3090", "rtx-3090"),
        ("Tesla T4", "t4"),
        ("RTX A6000", "a6000"),
        ("AMD Instinct MI300X", "mi300x"),
        ("Apple M3", "m3"),
        ("M3 Max", "m3-max"),
        ("trainium2", "trainium-2"),
        ("GH200 96GB", "gh200"),
        ("groq", "groq-lpu"),  # the one of its vendor
        ("Cerebras", "wse-3"),
        ("macbook pro m3", "m3"),
        ("M3 Max MacBook Pro", "m3-max"),
        ("Ryzen AI Max+ 395", "ryzen-ai-max-395"),  # the plus is of the name, and joins no devices
        ("ryzen-ai-max+-395", "ryzen-ai-max-395"),
    ],
)
def test_other_names_of_hardware(text: str, name: str) -> None:
    assert load_hardware(text).name == name


@pytest.mark.parametrize(
    ("text", "gigabytes", "bandwidth"),  # Apple sells 36 GB, and 96 GB of M3 Max, with fewer cores and channels only
    [
        ("M4 Max 36GB", 36, 410e9),
        ("m4-max-48gb", 48, 546e9),
        ("MacBook Pro M3 Max 36GB", 36, 300e9),
        ("m3-max-96gb", 96, 300e9),
        ("m3-max-64gb", 64, 400e9),
        ("Mac Studio M5 Ultra 256GB", 256, 1228e9),
    ],
)
def test_memory_that_is_sold_with_fewer_cores(text: str, gigabytes: int, bandwidth: float) -> None:
    chip = load_hardware(text)
    assert (chip.memory_capacity, chip.memory_bandwidth) == (gigabytes * 1e9, bandwidth)


@pytest.mark.parametrize("name", HARDWARE)
def test_a_title_names_its_hardware_alone(name: str) -> None:
    if name in ("tpu-v7", "trainium-1", "vr200", "gb200", "gb300"):
        pytest.skip("its title is a prefix of others, or has the name of a rack")
    title = load_hardware(name).title.replace("8480+", "8480plus")
    assert load_hardware(title).name == name


@pytest.mark.parametrize(
    ("text", "candidates"),
    [
        ("RTX 6000", ["quadro-rtx-6000", "rtx-6000-ada", "rtx-pro-6000-server"]),
        ("4060 Ti", ["rtx-4060-ti-16gb", "rtx-4060-ti-8gb"]),
        ("MI30", ["'mi300a' or 'mi300x'"]),
        ("Ada", ["rtx-6000-ada"]),
        ("0xh100-sxm", ["h100-sxm"]),
        ("mac studio", ["m5-max", "m4-max", "m3-ultra"]),
        ("2x Mac Studio", ["2xm5-max", "2xm4-max", "2xm3-ultra"]),
        ("MacBook Pro", ["m5-pro", "m5-max", "m5"]),
        ("AMD", ["mi300x", "mi325x", "mi355x"]),
        ("m4 ultra", ["m4-max"]),
    ],
)
def test_hardware_that_could_be_several_or_another(text: str, candidates: list[str]) -> None:
    for load in (load_hardware, load_any):
        with pytest.raises(UnknownNameError) as refusal:
            load(text)
        assert [name for name in candidates if name not in str(refusal.value)] == []


@pytest.mark.parametrize(
    "text", ["8xH200", "8x H200", "8 x h200-sxm", "H200 x8", "h200:8", "8*H200", "8 H200", "eight H200s"]
)
def test_hardware_with_its_count(text: str) -> None:
    assert load_devices(text) == (load_hardware("h200-sxm"), 8)
    with pytest.raises(RooflineError, match="is 8 devices: name one, h200-sxm"):
        load_hardware(text)


@pytest.mark.parametrize(
    ("text", "name", "count"),
    [
        ("2x4090", "rtx-4090", 2),
        ("2x 4090", "rtx-4090", 2),
        ("2 × 4090", "rtx-4090", 2),
        ("4090x2", "rtx-4090", 2),
        ("4090:100", "rtx-4090", 100),
        ("1x4090", "rtx-4090", 1),
        ("dual 3090", "rtx-3090", 2),
        ("8*3090", "rtx-3090", 8),
        ("4xL40S", "l40s", 4),
        ("2x7900 XTX", "radeon-rx-7900-xtx", 2),
        ("2x gaudi 2", "gaudi-2", 2),
        ("7900xtx", "radeon-rx-7900-xtx", 1),
        ("DGX H100", "h100-sxm", 8),
        ("2x DGX H100", "h100-sxm", 16),
        ("NVIDIA DGX B200", "b200-sxm", 8),
        ("DGX Spark", "dgx-spark", 1),
        ("p5.48xlarge", "h100-sxm", 8),
        ("ml.p5.48xlarge", "h100-sxm", 8),
        ("2x p5en.48xlarge", "h200-sxm", 16),
        ("2x8xh200", "h200-sxm", 16),
        ("tpu-v6e-8", "tpu-v6e", 8),
        ("v5p-8", "tpu-v5p", 4),
        ("a3-highgpu-8g", "h100-sxm", 8),
        ("Standard_ND96isr_H200_v5", "h200-sxm", 8),
        ("nd96isr-mi300x-v5", "mi300x", 8),
        ("BM.GPU.L40S.4", "l40s", 4),
        ("g6.xlarge", "l4", 1),
        ("GB200 NVL72", "gb200", 72),
        ("gb300-nvl72", "gb300", 72),
        ("Vera Rubin NVL144", "vr200", 72),
        ("8x GB200 NVL72", "gb200", 8),
        ("H200 NVL", "h200-nvl", 1),
        ("8x1xh100-sxm", "h100-sxm", 8),
        ("g7e.24xlarge", "rtx-pro-6000-server", 4),
        ("tpu7x-16", "tpu-v7", 8),
    ],
)
def test_a_count_before_a_name_of_digits(text: str, name: str, count: int) -> None:
    assert load_devices(text) == (load_hardware(name), count)


def test_every_instance_of_a_cloud_has_bundled_devices() -> None:
    text = spec_files("hwspecs")["h100-sxm"].parent.joinpath("instances", "instances.yaml").read_text("utf-8")
    for cloud in yaml.safe_load(text)["clouds"].values():
        for device, counts in cloud["devices"].items():
            for count, names in counts.items():
                assert [name for name in names if load_devices(name) != (load_hardware(device), int(count))] == []


@pytest.mark.parametrize("text", ["4xMI30", "4x MI30", "MI30 x4"])
def test_the_candidates_of_a_count_are_counted(text: str) -> None:
    with pytest.raises(UnknownNameError) as refusal:
        load_devices(text)
    assert set(refusal.value.candidates) == {"4xmi300a", "4xmi300x"}


@given(st.sampled_from(list_models()), st.sampled_from(["-", ":", " "]), st.booleans())
def test_separators_and_case_do_not_count(name: str, separator: str, upper: bool) -> None:
    first, _, rest = name.partition("-")
    text = f"{first}{separator}{rest}" if rest else first
    found, model = load_model(text.upper() if upper else text), load_model(name)
    tag = separator == ":" and rest and model.task == "generate" and model.quantization != "mxfp4"
    # Ollama's tag qwen:7b is Qwen1.5, and Q4_K_M keeps the formats that parts were released in.
    assume(not tag or (found.name == name and model.formats is None and not model.unquantized))
    assert found == (replace(model, quantization="q4_k_m") if tag else model)


@given(st.text(max_size=30), st.sampled_from([load_model, load_hardware, load_devices]))
def test_any_text_is_a_name_or_refused(text: str, load: Callable[[str], object]) -> None:
    with suppress(RooflineError):
        assert load(text)


def test_what_was_read_is_told_once() -> None:
    taken()
    load_model("llama-3.1-8b")
    load_hardware("H100-SXM")
    assert taken() == ()
    for _ in range(2):
        load_model("Qwen/Qwen3-32B-AWQ")
        load_devices("2xH200")
    told = ("'Qwen/Qwen3-32B-AWQ' is taken as qwen3-32b (quantization awq)", "'2xH200' is taken as 2 x h200-sxm")
    assert taken() == told
    assert taken() == ()


def test_ones_own_specs_are_found_by_their_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = Path(spec_files("modelspecs")["llama-3.2-1b"]).read_text("utf-8")
    own = text.replace("name: llama-3.2-1b", "name: tiny").replace("meta-llama/Llama-3.2-1B", "me/Tiny-Model")
    (tmp_path / "tiny.yaml").write_text(own)
    monkeypatch.setenv("ROOFLINE_SPECS", str(tmp_path))
    assert load_model("me/tiny-model-instruct").name == "tiny"


@pytest.mark.parametrize("load", [load_model, load_hardware])
@pytest.mark.parametrize("name", ["llama-3" * 10_000, "qwen/" + "a1 " * 30_000, "8x" + "h100 " * 20_000, "x" * 10**6])
def test_endless_names_are_refused_at_once(load: Callable[[str], object], name: str) -> None:
    start = time.process_time()
    with pytest.raises(RooflineError):
        load(name)
    assert time.process_time() - start < 2


@pytest.mark.parametrize("name", ["K40", "b100", "rtx-4909", "K80", "iphone 16", "surface"])
def test_a_card_of_another_number_is_not_suggested(name: str) -> None:
    with pytest.raises(UnknownNameError, match=f"unknown hardware '{name}'; 'roofline specs list hardware'"):
        load_hardware(name)


def test_the_mix_of_a_repository() -> None:
    """vLLM loads 57.752 GiB a GPU of eight (vllm-project/vllm, issue 6746), where this makes 56.7."""
    model = load_model("meta-llama/Meta-Llama-3.1-405B-Instruct-FP8")
    mlp, attention = 3 * 16384 * 53248, 2 * 16384 * (16384 + 1024)
    rest = 2 * 128256 * 16384 + (2 * 126 + 1) * 16384
    weights = analyze(Scenario(model, load_hardware("h100-sxm"))).memory.weights
    assert weights == pytest.approx(124 * mlp + 2 * (2 * mlp + 126 * attention + rest), rel=1e-12)
    assert load_model("Qwen/Qwen3-8B-FP8").quantization == "fp8_block"
    assert load_model("RedHatAI/Qwen3-8B-FP8-dynamic").quantization == "fp8"


def test_a_kind_of_hardware_asks_for_a_name() -> None:
    with pytest.raises(RooflineError, match="'cpu' is a kind of hardware: name one, such as "):
        load_hardware("cpu")


def test_mlx_runs_its_own_formats_on_apple_silicon() -> None:
    model = load_model("mlx-community/Llama-3.1-8B-Instruct-4bit")
    assert default_engine(load_hardware("m3-max"), model) == "mlx"
    assert default_engine(load_hardware("m3-max"), load_model("llama-3.1-8b")) == "llama.cpp"


@pytest.mark.parametrize(
    "name",
    [
        "IFM/K2-Horizon-MoVA-36B-A4B",
        "Qwen/Qwen-Image",
        "microsoft/Phi-4-mini-flash-reasoning",
        "unsloth/DeepSeek-R1-0528-GGUF:UD-TQ1_0",  # Unsloth's ternary mix
    ],
)
def test_a_model_that_no_spec_expresses_is_not_answered_with_another(name: str) -> None:
    with pytest.raises(UnsupportedError):
        load_model(name)


def test_repositories_for_mlx_quantize_embeddings_and_the_head_too() -> None:
    """8,307,783,680 bytes in the index of Qwen3-14B-MLX-4bit."""
    model, device = "mlx-community/Qwen3-14B-4bit", "m4-max"
    assert analyze(Scenario(model, device)).memory.weights == pytest.approx(8_307_783_680, rel=1e-3)
    converted = analyze(Scenario("qwen3-14b", device, quant="affine4_g64")).memory.weights
    assert converted == pytest.approx(8_307_783_680, rel=1e-3)


@pytest.mark.parametrize(
    ("text", "scheme"),
    [
        ("Q4_K_M", "q4_k_m"),
        ("UD-Q4_K_XL", "q4_k_m"),
        ("FP8-dynamic", "fp8"),
        ("bnb-4bit", "nf4"),
        ("half", "fp16"),
        ("gptq_marlin", "gptq"),
        ("W4A16", "W4A16"),
    ],
)
def test_a_quantization_as_repositories_and_engines_spell_it(text: str, scheme: str) -> None:
    asked = Scenario("llama-3.1-8b", "rtx-4090", quant=text)
    assert asked.given("quant") == scheme


@pytest.mark.parametrize("text", ["exl2", "gguf", "6bit"])
def test_a_quantization_that_names_no_format_is_refused(text: str) -> None:
    with pytest.raises(RooflineError, match=text):
        Scenario("llama-3.1-8b", "rtx-4090", quant=text)
