"""Repositories of the Hugging Face hub, against a local server that speaks its protocol, well and badly."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from roofline import load_model
from roofline.bound.memory import parameters
from roofline.core.errors import RooflineError, UnknownNameError
from roofline.specs import hub
from tests.conftest import Run
from tests.paths import ROOT

pytest.importorskip("huggingface_hub")
COMMIT = "0123456789abcdef0123456789abcdef01234567"
CONFIG = json.loads((ROOT / "tests/data/configs/qwen2-7b.json").read_text())
SMALL = CONFIG | {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1, "vocab_size": 100,
                  "num_attention_heads": 4, "num_key_value_heads": 2}  # fmt: skip


def safetensors(tensors: dict[str, list[int]], kind: str = "BF16", bits: int = 16) -> bytes:
    """The header of a file with these tensors, one behind another, and its size: the weights are not made."""
    header, end = {}, 0
    for name, shape in tensors.items():
        size = bits // 8
        for length in shape:
            size *= length
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + bytes(end)


FILE = safetensors({"model.embed_tokens.weight": [100, 64], "lm_head.weight": [100, 64]})


class Hub(ThreadingHTTPServer):
    """A hub with files by path; `asked` are the requests, with their ranges and tokens."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, Any] = {}
        self.asked: list[tuple[str, str | None, str | None]] = []
        self.sent = 0


class Handler(BaseHTTPRequestHandler):
    server: Hub

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        self.server.asked.append((self.path, self.headers["Range"], self.headers["Authorization"]))
        owner, name, _, revision, *rest = self.path.lstrip("/").split("/")
        found = self.server.files.get(f"{owner}/{name}/{'/'.join(rest)}", 404)
        if callable(found):
            found(self)
        elif isinstance(found, int):
            self.answer(found, b"", {"X-Error-Code": "EntryNotFound"} if found == 404 else {})
        elif "elsewhere" not in self.path and rest[-1].endswith(".safetensors"):
            self.answer(
                302, b"", {"Location": f"/{owner}/{name}/elsewhere/{revision}/{rest[-1]}", "X-Repo-Commit": COMMIT}
            )
        else:
            self.ranged(found)

    def ranged(self, content: bytes) -> None:
        wanted = self.headers["Range"]
        if wanted is None:
            self.answer(200, content, {"X-Repo-Commit": COMMIT})
            return
        last = min(int(wanted.rpartition("-")[2]), len(content) - 1)
        about = {"Content-Range": f"bytes 0-{last}/{len(content)}", "X-Repo-Commit": COMMIT}
        self.answer(206, content[: last + 1], about)

    def answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)
        self.server.sent += len(body)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    from huggingface_hub import constants

    made = Hub()
    threading.Thread(target=made.serve_forever, args=(0.02,), daemon=True).start()
    address = f"http://127.0.0.1:{made.server_port}"
    monkeypatch.setattr(constants, "ENDPOINT", address)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", address + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr(constants, "HF_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("ROOFLINE_HUB", "1")
    made.files = {"someone/new-7b/config.json": json.dumps(SMALL).encode(), "someone/new-7b/model.safetensors": FILE}
    yield made
    made.shutdown()
    made.server_close()


def refusal(name: str = "someone/new-7b") -> str:
    with pytest.raises(RooflineError) as error:
        load_model(name)
    assert len(str(error.value)) < 400
    return str(error.value)


def test_a_repository_is_its_config_and_the_headers_of_its_weights(server: Hub) -> None:
    model = load_model("someone/new-7b")
    assert (model.name, model.hidden, model.layers) == ("new-7b", 64, 1)
    assert model.stored is not None
    assert model.stored.bytes == 2 * 2 * 100 * 64
    assert (model.stored.size, model.stored.where) == (len(FILE), "someone/new-7b")
    assert all(wanted for path, wanted, _ in server.asked if path.endswith(".safetensors"))
    assert any("elsewhere" in path for path, _, _ in server.asked)
    assert {token for _, _, token in server.asked} == {"Bearer hf_secret"}


def test_what_was_read_is_read_once_and_without_the_network(server: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    load_model("someone/new-7b")
    before = len(server.asked)
    load_model("https://huggingface.co/someone/new-7b/tree/main")
    assert len(server.asked) == before + 1  # whether the branch has moved
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert load_model("someone/new-7b").hidden == 64
    assert "was not read from the hub before" in refusal("someone/other-7b")
    assert len(server.asked) == before + 1


def test_files_of_an_index_are_read_in_parts(server: Hub) -> None:
    index = {"weight_map": {"model.embed_tokens.weight": "a.safetensors", "lm_head.weight": "b.safetensors"}}
    padding = {f"x{place}.{'y' * 200}": [1] for place in range(1000)}  # a header longer than the first request
    server.files |= {
        "someone/new-7b/model.safetensors.index.json": json.dumps(index).encode(),
        "someone/new-7b/a.safetensors": safetensors({"model.embed_tokens.weight": [100, 64], **padding}),
        "someone/new-7b/b.safetensors": safetensors({"lm_head.weight": [100, 64]}),
    }
    stored = load_model("someone/new-7b").stored
    assert stored is not None
    assert (stored.files, stored.bytes) == (2, 2 * (2 * 6400 + 1000))
    del server.files["someone/new-7b/b.safetensors"]
    server.files["someone/other/config.json"] = server.files["someone/new-7b/config.json"]
    server.files["someone/other/model.safetensors.index.json"] = json.dumps(index).encode()
    assert "names 'a.safetensors', which the hub does not have" in refusal("someone/other")


def test_a_repository_without_safetensors_is_its_config(server: Hub) -> None:
    del server.files["someone/new-7b/model.safetensors"]
    model = load_model("someone/new-7b@v1.0")
    assert model.stored is None
    assert parameters(model) > 0
    assert "/someone/new-7b/resolve/v1.0/config.json" in server.asked[0][0]


def test_an_adapter_names_the_model_it_comes_on_top_of(server: Hub) -> None:
    adapter = {"peft_type": "LORA", "r": 16, "base_model_name_or_path": "meta-llama/Llama-3.1-8B"}
    server.files = {"someone/new-7b/adapter_config.json": json.dumps(adapter).encode()}
    assert "'meta-llama/Llama-3.1-8B': name that model, with --with lora:rank=16" in refusal()
    server.files = {"someone/new-7b/adapter_config.json": b"[]"}
    assert "no config.json" in refusal()


def test_errors_name_the_repository_and_no_cache(server: Hub, tmp_path: Path) -> None:
    server.files = {"someone/new-7b/config.json": json.dumps(SMALL | {"hidden_size": "64"}).encode()}
    assert refusal().startswith("someone/new-7b/config.json: 'hidden_size'")


def test_modelopt_beside_the_configuration_counts(server: Hub) -> None:
    del server.files["someone/new-7b/model.safetensors"]
    formats = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8", "exclude_modules": ["lm_head"]}}
    server.files["someone/new-7b/hf_quant_config.json"] = json.dumps(formats).encode()
    assert load_model("someone/new-7b").quantization == "fp8"


def test_a_file_of_formats_beside_the_configuration_counts(server: Hub) -> None:
    del server.files["someone/new-7b/model.safetensors"]
    formats = {"zero_point": True, "q_group_size": 128, "w_bit": 4, "version": "GEMM"}
    server.files["someone/new-7b/quant_config.json"] = json.dumps(formats).encode()
    assert load_model("someone/new-7b").quantization == "awq"


def test_bundled_specs_come_first_and_nothing_is_asked_without_leave(
    server: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert load_model("Qwen/Qwen3-8B@main").name == "qwen3-8b"
    monkeypatch.setenv("ROOFLINE_HUB", "0")
    assert "--hub reads it from the Hugging Face hub" in refusal()
    with pytest.raises(UnknownNameError):
        load_model("no-such-model")
    assert server.asked == []


def test_the_flag_stands_anywhere(server: Hub, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROOFLINE_HUB", "0")
    status, output, _ = run("someone/new-7b", "h100-sxm", "--hub")
    assert status == 0
    assert "new-7b" in output


@pytest.mark.parametrize(
    ("status", "code", "expected"),
    [
        (401, "RepoNotFound", "does not exist, or is private"),
        (404, "RepoNotFound", "does not exist, or is private"),
        (403, "GatedRepo", "it is gated"),
        (404, "EntryNotFound", "the hub has no config.json"),
        (429, "", "too many requests"),
        (503, "", "status 503"),
    ],
)
def test_what_the_hub_does_not_open(server: Hub, status: int, code: str, expected: str) -> None:
    server.files["someone/new-7b/config.json"] = lambda handler: handler.answer(status, b"no", {"X-Error-Code": code})
    assert expected in refusal()


def endless(handler: Handler) -> None:
    handler.send_response(200)
    handler.send_header("X-Repo-Commit", COMMIT)
    handler.end_headers()
    try:
        while True:
            handler.wfile.write(b" " * (1 << 20))
    except OSError:
        pass


def test_bodies_without_end(server: Hub) -> None:
    server.files["someone/new-7b/config.json"] = endless
    assert "is larger than" in refusal()
    server.files["someone/new-7b/config.json"] = json.dumps(SMALL).encode()
    server.files["someone/new-7b/model.safetensors"] = endless
    assert "does not say how large" in refusal()


def test_a_server_that_is_slow(server: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    def dripping(handler: Handler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", "1000")
        handler.end_headers()
        for _ in range(100):
            handler.wfile.write(b" ")
            time.sleep(0.02)

    monkeypatch.setattr(hub, "SECONDS", 0.1)
    server.files["someone/new-7b/config.json"] = dripping
    assert "took longer than" in refusal()
    monkeypatch.setattr(hub, "SILENCE", 0.05)
    server.files["someone/new-7b/config.json"] = lambda handler: time.sleep(0.5)
    assert "cannot be read from the hub" in refusal()


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"{", "JSON"),
        (b"\xff\xfe", "not UTF-8"),
        (b"[1]", "mapping"),
        (b'{"model_type": "qwen2"}', "is missing"),
    ],
)
def test_configurations_that_are_none(server: Hub, content: bytes, expected: str) -> None:
    server.files["someone/new-7b/config.json"] = content
    assert expected in refusal()


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ((1 << 60).to_bytes(8, "little") + b"x" * 100, "no complete safetensors file"),
        (b"abc", "no complete safetensors file"),
        ((50).to_bytes(8, "little") + b"{" * 100, "JSON"),
        (FILE + b"more", "incomplete"),
    ],
)
def test_weights_that_are_none(server: Hub, content: bytes, expected: str) -> None:
    server.files["someone/new-7b/model.safetensors"] = content
    assert expected in refusal()


@pytest.mark.parametrize("name", ["../../escaped.safetensors", "/etc/passwd", "a\0b", ".."])
def test_an_index_names_files_of_its_folder_alone(server: Hub, name: str, tmp_path: Path) -> None:
    index = {"weight_map": {"lm_head.weight": name}}
    server.files["someone/new-7b/model.safetensors.index.json"] = json.dumps(index).encode()
    assert "no file of its folder" in refusal()
    assert not list(tmp_path.rglob("*.safetensors"))


def test_a_server_that_is_no_hub(server: Hub) -> None:
    server.files["someone/new-7b/config.json"] = lambda handler: handler.answer(200, b"{}", {})
    assert "which commit" in refusal()
