"""Invalid input: exit status 2, one sentence on stderr, nothing on stdout, and no partial file."""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from roofline import RooflineError, Scenario, cli, load_hardware, load_model
from tests.cases import sampled
from tests.paths import ROOT

CONFIGS = ROOT / "tests" / "data" / "configs"
ON_A6000 = "analyze llama-2-7b --hw a6000"
JARGON = ("Traceback", "Usage:", "Value error", "instance of", "pydantic", "NoneType")
"""Words of programmers, and of the libraries below, that no message may have."""

Complain = Callable[..., str]


def listing(folder: Path) -> dict[Path, bytes | None]:
    return {
        path: path.read_bytes() if os.access(path, os.R_OK) and path.is_file() else None for path in folder.rglob("*")
    }


def check_message(status: object, out: str, err: str) -> str:
    """Checks that a run failed with a user error; the sentence on stderr."""
    assert (status, out) == (2, ""), err
    message = err.removesuffix("\n")
    assert message.startswith("roofline: ")
    assert message.isprintable(), "one line, and nothing that a terminal would obey"
    assert len(message) < 600
    assert [word for word in JARGON if word in message] == []
    return message


@pytest.fixture
def complain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Complain:
    """Runs `roofline ARGS` in a temporary folder, which must fail; the sentence on stderr."""
    monkeypatch.delenv("ROOFLINE_SPECS", raising=False)
    monkeypatch.chdir(tmp_path)

    def call(*args: str) -> str:
        before = listing(tmp_path)
        monkeypatch.setattr(sys, "argv", ["roofline", *args])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        assert listing(tmp_path) == before
        return check_message(stop.value.code, *capsys.readouterr())

    return call


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("", ["command", "--help"]),
        ("specs", ["command", "--help"]),
        ("anlyze", ["'anlyze'", "'analyze'"]),
        ("--verison", ["--verison", "--version"]),
        (
            "analyze llama-2-7b",
            ["hardware is missing", "(--hw)", "h100-sxm", "'roofline specs list hardware' lists all"],
        ),
        (f"{ON_A6000} gpt-j-6b", ["gpt-j-6b"]),
        (f"{ON_A6000} --engine vllm@foo", ["'foo' is not a version"]),
        (f"{ON_A6000} --engine vlm@0.11", ["engine 'vlm'", "did you mean 'vllm'?"]),
        ("analyze llama-2-7c --hw a6000", ["model 'llama-2-7c'", "did you mean 'llama-2-7b'?"]),
        ("analyze llama-2-7b --hw a60000", ["hardware 'a60000'", "did you mean 'a6000'?"]),
        ("analyze 'llama\n-2-7b' --hw a6000", [r"'llama\n-2-7b'", "'llama-2-7b'"]),
        ("analyze 'llama\x1b[31m' --hw a6000", [r"'llama\x1b[31m'"]),
        ("analyze none.yaml --hw a6000", ["'none.yaml'", "No such file"]),
        ("analyze .. --hw a6000", ["no config.json", "no folder of a Hugging Face model"]),
        (f"analyze llama-2-7b --hw {'n' * 5000}.yaml", ["nnn", "cannot be read", "name too long"]),
        (f"{ON_A6000} --btch 4", ["--btch", "--batch"]),
        (f"{ON_A6000} --batch", ["--batch"]),
        (f"{ON_A6000} --format jsn", ["--format", "'jsn'", "'json'"]),
        (f"{ON_A6000} --convention viewer", ["unknown convention", "'viewer'", "'llm-viewer'"]),
        (f"{ON_A6000} --fuse qkw", ["fusion 'qkw'", "did you mean 'qkv'?"]),
        (f"{ON_A6000} --quant awk", ["'awk'", "did you mean 'awq'?"]),
        (f"{ON_A6000} --quant W9", ["'W9'", "9-bit weights"]),
        (f"{ON_A6000} --quant KV{'9' * 5000}", ["'KV999", "KV cache"]),
        (f"{ON_A6000} --quant awq-g0", ["'awq_g0'", "group size"]),
        (f"{ON_A6000} --weights fp9", ["weight format 'fp9'", "did you mean 'fp8'?"]),
        ("specs list model", ["'model'", "'models'", "'hardware'"]),
        ("specs list", ["Missing argument", "models", "hardware"]),
        ("specs show", ["'NAME'"]),
        ("specs show lama-2-7b", ["model or hardware 'lama-2-7b'", "did you mean 'llama-2-7b'?"]),
        ("specs import", ["'CONFIG'"]),
        ("specs import .", ["folder"]),
        ("specs import config.json --name ''", ["'name'"]),
    ],
)
def test_command_lines(complain: Complain, command: str, words: list[str]) -> None:
    Path("config.json").write_text(json.dumps(CONFIG))
    message = complain(*shlex.split(command))
    assert [word for word in words if word not in message] == []


@pytest.mark.parametrize("flag", ["batch", "prompt", "generate", "context", "prefix"])
@pytest.mark.parametrize("value", ["-1", "9999999999", "9" * 30, "9" * 5000, "1.5", "1.5K", "nan", "many", "", "0x10"])
def test_workloads(complain: Complain, flag: str, value: str) -> None:
    assert flag in complain(*ON_A6000.split(), f"--{flag}", value)


@pytest.mark.parametrize("args", ["--batch 0", "--prompt 0", "--generate 0", "--convention llm-viewer --context 0"])
def test_invalid_zeros(complain: Complain, args: str) -> None:
    message = complain(*ON_A6000.split(), *args.split())
    assert args.split()[-2].removeprefix("--") in message
    assert "between 1 and" in message


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"batch": 0}, ["batch"]),
        ({"batch": True}, ["batch", "'True'"]),
        ({"batch": "many"}, ["batch", "'many'"]),
        ({"batch": [1, 0]}, ["batch", "between 1 and"]),
        ({"batch": []}, ["batch"]),
        ({"batch": [float("inf")]}, ["batch"]),
        ({"batch": [1, 2], "prompt": [1, 2, 3]}, ["batch", "prompt", "broadcast"]),
        ({"fusions": ["flash"]}, ["fusion 'flash'"]),
        ({"convention": "paper"}, ["convention 'paper'", "llm-viewer"]),
    ],
)
def test_scenarios(asked: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(RooflineError) as refusal:
        Scenario(load_model("llama-2-7b"), load_hardware("a6000"), **asked)
    assert [word for word in words if word not in str(refusal.value)] == []


# Files: a document that is fine, and what is wrong with it

HARDWARE: Mapping[str, Any] = {
    "name": "toy",
    "vendor": "ACME",
    "family": "toy",
    "kind": "gpu",
    "memory": {"kind": "HBM", "capacity": "80 GB [sheet]", "bandwidth": "2 TB/s"},
    "compute": {"units": 10, "clock": "1 GHz", "tensor": {"fp16": "100 TFLOP/s"}, "vector": {"fp32": "10 TFLOP/s"}},
    "cache": {"l2": "50 MB"},
    "interconnects": [{"kind": "wire", "scope": "node", "bandwidth": "1 GB/s", "latency": "1 us", "devices": 8}],
    "power": {"tdp": "100 W"},
    "price": {"rent": "1 USD/h", "date": "2025-01-01"},
    "released": 2020,
    "sources": {"sheet": "Toy datasheet"},
}
MODEL: Mapping[str, Any] = {
    "name": "toy",
    "hidden": 64,
    "vocabulary": 100,
    "layers": {"count": 2, "pattern": ["wide", "narrow"]},
    "attention": {"heads": 4, "kv_heads": 2},
    "mlp": {"width": 128, "gated": True, "activation": "silu"},
    "norm": {"kind": "rmsnorm", "placement": "pre"},
    "positions": {"kind": "rope"},
    "blocks": {"wide": {}, "narrow": {"attention": {"window": 16}}},
}
CONFIG: Mapping[str, Any] = json.loads((CONFIGS / "llama-2-7b.json").read_text("utf-8"))
GONE = object()
"""Stands for a key that is not there."""


def changed(document: Mapping[str, Any], path: str, value: object) -> dict[str, Any]:
    """`document` with another value at the dotted `path`, or without the key."""
    copy: dict[str, Any] = json.loads(json.dumps(document))
    *folders, key = path.split(".")
    place: Any = copy
    for folder in folders:
        place = place[int(folder) if isinstance(place, list) else folder]
    if value is GONE:
        del place[key]
    else:
        place[key] = value
    return copy


@pytest.fixture
def refused(complain: Complain) -> Callable[[str, str | bytes], str]:
    """Writes a file and analyzes it, which must fail; the message, which names the file."""

    def call(name: str, content: str | bytes) -> str:
        Path(name).write_bytes(content if isinstance(content, bytes) else content.encode())
        args = ("llama-2-7b", "--hw", name) if name == "hw.yaml" else (name, "--hw", "a6000")
        message = complain("analyze", *args)
        assert name in message
        return message

    return call


Refused = Callable[[str, str | bytes], str]


def test_unchanged_documents_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, document in (("hw.yaml", HARDWARE), ("model.yaml", MODEL), ("config.json", CONFIG)):
        (tmp_path / name).write_text(json.dumps(document) if name.endswith("json") else yaml.safe_dump(document))
        monkeypatch.setattr(sys, "argv", ["roofline", "specs", "check", str(tmp_path / name)])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        assert stop.value.code == 0, capsys.readouterr().err


QUANTITIES = [
    ("80", ["'80'", "no unit", "'80 GB'"]),
    ("80 GB/s", ["'GB/s'"]),
    ("-80 GB", ["'-80 GB'", "plausible"]),
    ("0 GB", ["'0 GB'", "plausible"]),
    ("nan GB", ["'nan GB'"]),
    ("1e30 GB", ["'1e30 GB'", "plausible"]),
    ("1__ GB", ["'1__ GB'"]),
    ("eighty GB", ["'eighty GB'"]),
    ("", ["''"]),
    ("80 GB [shet]", ["source 'shet'", "did you mean 'sheet'?"]),
    (None, []),
    ({"GB": 80}, ["'80 GB'"]),
    (GONE, ["missing"]),
]


@pytest.mark.parametrize(("value", "words"), QUANTITIES)
def test_quantities(refused: Refused, value: object, words: list[str]) -> None:
    message = refused("hw.yaml", yaml.safe_dump(changed(HARDWARE, "memory.capacity", value), allow_unicode=True))
    assert [word for word in ["'memory.capacity'", *words] if word not in message] == []


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        *((key, GONE, [f"'{key}' is missing"]) for key in ("name", "vendor", "family", "kind", "memory")),
        ("memory.bandwidth", GONE, ["'memory.bandwidth' is missing"]),
        ("interconnects.0.kind", GONE, ["'interconnects.0.kind' is missing"]),
        ("price.date", GONE, ["'price.date' is missing"]),
        ("compute", GONE, ["'compute'", "no peak"]),
        ("compute", {"tensor": {}, "vector": {}}, ["'compute'", "no peak"]),
        ("nme", "toy", ["'nme'", "did you mean 'name'?"]),
        ("memory.capcity", "1 GB", ["'capcity' in 'memory'", "did you mean 'capacity'?"]),
        ("compute.tensor.fp17", "1 TFLOP/s", ["'fp17' in 'compute.tensor'", "did you mean 'fp16'?"]),
        ("compute.tensor.fp16", None, ["'compute.tensor.fp16'", "'989.4 TFLOP/s'"]),
        ("compute.tensor.fp16", "100 TB/s", ["'compute.tensor.fp16'", "'TB/s'"]),
        ("compute.tensor.fp16", "-1 TFLOP/s", ["'compute.tensor.fp16'", "plausible"]),
        ("compute.units", 0, ["'compute.units'", "plausible"]),
        ("interconnects", {}, ["'interconnects'", "list"]),
        ("interconnects", ["wire"], ["'interconnects.0'", "mapping"]),
        ("interconnects.0.topology", "ring", ["'interconnects.0.topology'", "'mesh'", "'ring'"]),
        (
            "interconnects",
            [{"kind": "wire", "scope": "node", "bandwidth": "1 GB/s", "topology": "mesh"}],
            ["'interconnects.0'", "'devices'"],
        ),
        ("interconnects.0.reduction", "NVLink SHARP", ["'interconnects.0.reduction'", "source in brackets"]),
        ("interconnects.0.reduction", "SHARP [rumour]", ["'interconnects.0.reduction'", "'rumour'"]),
        ("interconnects.0.scope", "nodes", ["'interconnects.0.scope'", "'node'", "'nodes'"]),
        ("price.rent", "1 EUR/h", ["'price.rent'", "'EUR/h'"]),
        ("price.date", "soon", ["'price.date'"]),
        ("kind", "gpuu", ["'kind'", "'gpu'", "'gpuu'"]),
        ("name", "", ["'name'", "1 to 80"]),
        ("name", "n" * 81, ["'name'", "1 to 80"]),
        ("name", "two\nlines", ["'name'"]),
        ("title", ["a"], ["'title'"]),
        ("released", "soon", ["'released'", "'soon'"]),
        ("released", -5, ["'released'", "-5"]),
        ("sources", ["sheet"], ["'sources'"]),
    ],
)
def test_hardware(refused: Refused, path: str, value: object, words: list[str]) -> None:
    message = refused("hw.yaml", yaml.safe_dump(changed(HARDWARE, path, value)))
    assert [word for word in words if word not in message] == []


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        *((key, GONE, [f"'{key}' is missing"]) for key in ("name", "hidden", "vocabulary", "layers", "norm")),
        ("layers.pattern", GONE, ["'layers.pattern' is missing"]),
        ("hiden", 64, ["'hiden'", "did you mean 'hidden'?"]),
        ("x\x1b[31m", 1, [r"'x\x1b[31m'"]),
        ("attention.hedas", 4, ["'hedas'", "attention'", "did you mean 'heads'?"]),
        ("blocks.wide", {"attention": {"hedas": 1}}, ["'hedas'", "'blocks.wide.attention'", "did you mean 'heads'?"]),
        ("blocks.wide", {"attention": {"heads": 3}}, ["'blocks.wide.attention.heads'", "64", "divisible"]),
        ("layers.pattern", ["wide", "narow"], ["'layers.pattern'", "block 'narow'", "did you mean 'narrow'?"]),
        ("layers.pattern", ["0 x wide"], ["'layers.pattern'", "empty"]),
        ("layers.count", 0, ["'layers.count'", "'0'"]),
        ("layers.count", 10**9, ["'layers.count'", "'1000000000'"]),
        ("layers", "2", ["'layers'", "'2'"]),
        ("hidden", 0, ["'hidden'", "'0'"]),
        ("hidden", "64", ["'hidden'", "'64'"]),
        ("hidden", float("nan"), ["'hidden'", "'nan'"]),
        ("hidden", 65, ["attention.heads'", "65", "4", "divisible"]),
        ("attention.heads", 3, ["attention.heads'", "divisible by 3 heads"]),
        ("attention.kv_heads", 3, ["attention.kv_heads'", "4 heads", "divisible by 3 kv_heads"]),
        ("attention.window", 10**10, ["attention.window'"]),
        ("attention.qkv_bias", "yes", ["attention.qkv_bias'", "'yes'"]),
        ("mlp.activation", "sliu", ["mlp.activation'", "'silu'", "'sliu'"]),
        ("norm.kind", "rmsnrom", ["norm.kind'", "'rmsnorm'"]),
        ("positions", "learned", ["'positions'", "count"]),
        ("positions", {"kind": "rope", "count": 5}, ["'positions'", "count"]),
        ("dtype", "bf17", ["'dtype'", "'bf16'", "'bf17'"]),
        ("max_context", 0, ["'max_context'", "'0'"]),
        ("shared_norm", True, ["shared_norm'", "residual: parallel"]),
        ("parameters", 1.5, ["'parameters'", "'1.5'"]),
        ("name", "", ["'name'"]),
        ("name", "n" * 81, ["'name'", "80"]),
    ],
)
def test_models(refused: Refused, path: str, value: object, words: list[str]) -> None:
    message = refused("model.yaml", yaml.safe_dump(changed(MODEL, path, value)))
    assert [word for word in words if word not in message] == []


NEEDED = ("hidden_size", "intermediate_size", "num_attention_heads", "num_hidden_layers", "vocab_size", "model_type")


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        *((key, GONE, [f"'{key}' is missing"]) for key in NEEDED),
        *((key, None, [f"'{key}'"]) for key in NEEDED),
        ("hidden_size", "4096", ["'hidden_size'", "'4096'"]),
        ("hidden_size", 0, ["'hidden_size'", "0"]),
        ("hidden_size", float("nan"), ["'hidden_size'", "'nan'"]),
        ("hidden_size", 4097, ["4097", "32 heads", "divisible"]),
        *((key, 10**30, [f"'{key}'"]) for key in (*NEEDED[:5], "num_key_value_heads", "max_position_embeddings")),
        ("num_attention_heads", 33, ["4096", "33 heads", "divisible"]),
        ("num_key_value_heads", 5, ["32 heads", "5 kv_heads", "divisible"]),
        ("hidden_act", "gleu", ["'hidden_act'", "'gleu'", "did you mean 'gelu'?"]),
        ("torch_dtype", "bfloat17", ["'torch_dtype'", "did you mean 'bfloat16'?"]),
        ("tie_word_embeddings", "yes", ["'tie_word_embeddings'", "'yes'"]),
    ],
)
def test_configs(refused: Refused, path: str, value: object, words: list[str]) -> None:
    message = refused("config.json", json.dumps(changed(CONFIG, path, value)))
    assert [word for word in words if word not in message] == []
    assert f"did you mean '{path}'?" not in message


@pytest.mark.parametrize(
    ("family", "changes", "words"),
    [
        ("gemma-3-4b", {"text_config": [1]}, ["'text_config'", "mapping"]),
        ("gemma-3-4b", {"text_config": {"hidden_size": "x"}}, ["'hidden_size'", "'x'"]),
        ("gemma-3-4b", {"text_config": {"sliding_window_pattern": 0}}, ["'sliding_window_pattern'"]),
        ("gemma-3-1b", {"layer_types": ["sliding_attention"]}, ["'layer_types'", "26"]),
        ("gemma-3-1b", {"layer_types": ["linear_attention"] * 26}, ["'layer_types'", "sliding_attention"]),
        ("qwen2-7b", {"use_sliding_window": "no"}, ["'use_sliding_window'", "'no'"]),
        ("qwen2-7b", {"model_type": "qwne2", "architectures": None}, ["unsupported model_type 'qwne2'"]),
        ("qwen2-7b", {"model_type": "x\n\x1b[31m", "architectures": ["X"]}, [r"model_type 'x\n\x1b[31m'"]),
        ("phi-2", {"qk_layernorm": True}, ["'qk_layernorm'"]),
        ("opt-6.7b", {"activation_function": "gleu"}, ["'activation_function'", "'gelu'"]),
        ("bloom-176b", {"n_head": 113}, ["113 heads", "divisible"]),
    ],
)
def test_configs_of_other_families(refused: Refused, family: str, changes: dict[str, object], words: list[str]) -> None:
    config = json.loads((CONFIGS / f"{family}.json").read_text("utf-8"))
    message = refused("config.json", json.dumps({**config, **changes}))
    assert [word for word in words if word not in message] == []


# Files that are not even documents

TAGS = ("!!python/object/apply:os.system ['touch pwned']", "!!python/name:os.system", "!!python/object/new:dict {}")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", ["empty"]),
        ("- name\n- hidden\n", ["a list"]),
        ("name", ["text"]),
        ("name: [toy\n", ["line 2"]),
        ("name: 'toy\n", ["YAML"]),
        ("name: toy\nname: toy\n", ["'name' appears twice"]),
        ("1: toy\n", ["'1'", "not text"]),
        (b"\xff\xfename", ["UTF-8"]),
        (b"\x00\x00\x00\x00", ["YAML"]),
        ("name: \x1b[31m", ["YAML"]),
        *((tag, ["python/"]) for tag in TAGS),
        *((f"name: {tag}", ["python/"]) for tag in TAGS),
        ("name: !own toy", ["'!own'"]),
        ("name: !!bool maybe", ["YAML"]),
        (f"name: {'9' * 5000}", ["YAML"]),
        ("base: &base {a: 1}\nmemory: {<<: *base}\n", ["'<<'"]),
        ("name: *nowhere\n", ["alias"]),
        ("memory: &m {capacity: *m}\n", ["recursive"]),
        ("name: a\n---\nname: b\n", ["another document"]),
        (f"memory: {'[' * 1000}{']' * 1000}\n", ["nested too deeply"]),
        ("".join(f"{' ' * depth}memory:\n" for depth in range(1000)), ["nested too deeply"]),
        (b"#" * ((4 << 20) + 1), ["4 MiB"]),
    ],
)
@pytest.mark.parametrize("name", ["hw.yaml", "model.yaml"])
def test_yaml(refused: Refused, name: str, content: str | bytes, words: list[str]) -> None:
    message = refused(name, content)
    assert [word for word in words if word not in message] == []


HUGE = f"0x{'f' * 5000}"
"""An integer that Python refuses to print in decimals."""


@pytest.mark.parametrize(
    ("name", "document", "path"),
    [
        ("hw.yaml", HARDWARE, "memory.capacity"),
        ("hw.yaml", HARDWARE, "compute.units"),
        ("model.yaml", MODEL, "hidden"),
        ("model.yaml", MODEL, "attention.heads"),
    ],
)
def test_numbers_too_large_to_print(refused: Refused, name: str, document: Mapping[str, Any], path: str) -> None:
    message = refused(name, yaml.safe_dump(changed(document, path, "HUGE")).replace("HUGE", HUGE))
    assert path.rpartition(".")[2] in message


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", ["JSON", "line 1"]),
        (json.dumps(CONFIG, indent=2)[:300], ["JSON", "line"]),
        (json.dumps(CONFIG) + "}", ["JSON", "Extra data"]),
        ('"llama"', ["text"]),
        ("{}", ["'model_type' is missing"]),
        ('{"model_type": "llama", "model_type": "opt"}', ["'model_type' appears twice"]),
        (r'{"\u001b[31m": 1, "\u001b[31m": 2}', [r"'\x1b[31m' appears twice"]),
        (f'{{"hidden_size": {"9" * 5000}}}', ["JSON", "out of range"]),
        ("[" * 100_000, ["JSON", "nested too deeply"]),
        ('{"a":' * 100_000, ["JSON", "nested too deeply"]),
        (b'{"a": "\xff"}', ["UTF-8"]),
        (b'{"a": "\x00"}', ["JSON", "control character"]),
        (b" " * ((4 << 20) + 1), ["4 MiB"]),
    ],
)
def test_json(refused: Refused, content: str | bytes, words: list[str]) -> None:
    message = refused("config.json", content)
    assert [word for word in words if word not in message] == []


def laughs(levels: int) -> str:
    """Nested lists through YAML aliases: a small file that expands beyond memory."""
    text = "&a0 [ha, ha, ha, ha, ha, ha, ha, ha, ha]"
    for level in range(1, levels):
        text = f"&a{level} [{text}{f', *a{level - 1}' * 8}]"
    return text


def bomb(document: Mapping[str, Any], path: str, text: str) -> str:
    return yaml.safe_dump(changed(document, path, "BOMB")).replace("BOMB", text)


BOMBS = {
    "lists": ("hw.yaml", f"memory: {'[' * 100_000}"),
    "closed lists": ("model.yaml", f"hidden: {'[' * 100_000}{']' * 100_000}"),
    "mappings": ("hw.yaml", "{memory: " * 100_000),
    "dashes": ("model.yaml", f"hidden:\n  {'- ' * 100_000}5"),
    "keys": ("model.yaml", "? " * 100_000),
    "laughing quantity": ("hw.yaml", bomb(HARDWARE, "memory.capacity", laughs(12))),
    "laughing name": ("hw.yaml", bomb(HARDWARE, "name", laughs(12))),
    "laughing source": ("hw.yaml", bomb(HARDWARE, "sources.sheet", laughs(12))),
    "laughing links": ("hw.yaml", bomb(HARDWARE, "interconnects", laughs(12))),
    "laughing width": ("model.yaml", bomb(MODEL, "hidden", laughs(12))),
    "laughing pattern": ("model.yaml", bomb(MODEL, "layers.pattern", laughs(12))),
    "laughing block": ("model.yaml", bomb(MODEL, "blocks.wide", laughs(12))),
    "laughing key": ("model.yaml", f"name: {laughs(12)}\n? *a11\n: 1\n"),
    "repeats": (
        "model.yaml",
        bomb(changed(MODEL, "layers.count", 10**5), "layers.pattern", f"[{'100000 x wide, ' * 20_000}nothing]"),
    ),
    "many blocks": ("model.yaml", bomb(MODEL, "blocks", "{" + ", ".join(f"b{n}: {{}}" for n in range(10**5)) + "}")),
    "one twin": ("config.json", "{" + "".join(f'"{n}": 0, ' for n in range(200_000)) + '"199999": 0}'),
}
BOUNDED = (
    "import resource; resource.setrlimit(resource.RLIMIT_AS, (4 << 30,) * 2);"
    " resource.setrlimit(resource.RLIMIT_CPU, (15, 15)); import cli; cli.main()"
)


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux's limits")
@pytest.mark.parametrize("name", sampled(BOMBS, 1))
def test_yaml_and_json_bombs_fail_fast(tmp_path: Path, name: str) -> None:
    """Runs in its own process with limited memory and CPU time, so that a crash or a hang fails this test alone."""
    file, content = BOMBS[name]
    (tmp_path / file).write_text(content)
    args = (
        ["llama-2-7b", "--hw", str(tmp_path / file)] if file == "hw.yaml" else [str(tmp_path / file), "--hw", "a6000"]
    )
    done = subprocess.run(
        [sys.executable, "-c", BOUNDED, "analyze", *args],
        cwd=ROOT,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,  # generous, for a busy machine
        check=False,
    )
    assert file in check_message(done.returncode, done.stdout, done.stderr)


# Places


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("missing/answer.json", ["'missing/answer.json'", "No such file"]),
        ("folder", ["'folder'", "folder"]),
        ("", ["folder"]),
        ("file/answer.json", ["'file/answer.json'", "Not a directory"]),
        (f"{'n' * 255}.json", ["nnn", "name too long"]),
    ],
)
@pytest.mark.parametrize("command", [ON_A6000, "specs import config.json"])
def test_outputs_that_cannot_be_written(complain: Complain, command: str, target: str, words: list[str]) -> None:
    Path("config.json").write_text(json.dumps(CONFIG))
    Path("folder").mkdir()
    Path("file").write_text("mine")
    Path("loop").symlink_to("loop")
    message = complain(*command.split(), "--output", target)
    assert [word for word in ["cannot write", *words] if word not in message] == []


def test_user_error_keeps_the_output_file(complain: Complain) -> None:
    Path("answer.json").write_text("mine")
    complain(*ON_A6000.split(), "--batch", "0", "--output", "answer.json")
    complain("specs", "import", "none.json", "--output", "answer.json")
    assert Path("answer.json").read_text() == "mine"


def test_hardware_that_lacks_every_format(complain: Complain) -> None:
    Path("hw.yaml").write_text(yaml.safe_dump(changed(HARDWARE, "compute", {"tensor": {"int1": "1 TOP/s"}})))
    message = complain("analyze", "llama-2-7b", "--hw", "hw.yaml")
    assert [word for word in ("toy", "q_proj", "fp16", "int1") if word not in message] == []


@pytest.mark.parametrize("args", ["analyze hw.yaml --hw a6000", "analyze llama-2-7b --hw model.yaml"])
def test_a_spec_of_the_other_kind(complain: Complain, args: str) -> None:
    Path("hw.yaml").write_text(yaml.safe_dump(HARDWARE))
    Path("model.yaml").write_text(yaml.safe_dump(MODEL))
    message = complain(*args.split())
    assert "hw.yaml: " in message or "model.yaml: " in message
    assert "key" in message


@pytest.mark.parametrize("name", ["two\nlines.yaml", "\x1b[31mred.yaml", "\x1b[31mred.json"])
def test_file_names_are_not_interpreted(complain: Complain, name: str) -> None:
    Path(name).write_text("[]")
    assert name.encode("unicode_escape").decode() in complain("analyze", name, "--hw", "a6000")
    assert name.encode("unicode_escape").decode() in complain("analyze", "llama-2-7b", "--hw", f"./{name}")


def test_unreadable_files(complain: Complain) -> None:
    Path("sealed.yaml").write_text(yaml.safe_dump(MODEL))
    Path("sealed.yaml").chmod(0)
    Path("sealed").mkdir(mode=0o555)
    if os.access("sealed.yaml", os.R_OK) or os.access("sealed", os.W_OK):
        pytest.skip("nothing is forbidden to root")
    reading = complain("analyze", "sealed.yaml", "--hw", "a6000")
    writing = complain(*ON_A6000.split(), "--output", "sealed/answer.json")
    assert "'sealed.yaml': cannot be read (Permission denied)" in reading
    assert "cannot write 'sealed/answer.json': Permission denied" in writing


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("missing", ["ROOFLINE_SPECS", "'missing'", "does not exist"]),
        (f"good{os.pathsep}missing", ["ROOFLINE_SPECS", "'missing'", "does not exist"]),
        ("n" * 300, ["ROOFLINE_SPECS", "nnn"]),
        ("bad", ["broken.yaml", "YAML"]),
        (str(Path("bad", "broken.yaml")), ["broken.yaml", "YAML"]),
    ],
)
@pytest.mark.parametrize("command", ["analyze llama-2-7b --hw toy", "specs list hardware", "specs show toy"])
def test_roofline_specs(
    complain: Complain, monkeypatch: pytest.MonkeyPatch, command: str, value: str, words: list[str]
) -> None:
    Path("good").mkdir()
    Path("good", "toy.yaml").write_text(yaml.safe_dump(HARDWARE))
    Path("bad").mkdir()
    Path("bad", "broken.yaml").write_text("[")
    monkeypatch.setenv("ROOFLINE_SPECS", value)
    message = complain(*command.split())
    assert [word for word in words if word not in message] == []
