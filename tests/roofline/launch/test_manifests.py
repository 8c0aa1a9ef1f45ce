"""Manifests of launches, held against published schemas."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from lab.llama_cpp.random_model import write_random_model
from roofline import load_model
from roofline.core.errors import RooflineError
from roofline.launch import launch
from roofline.techniques import Scenario
from tests.paths import DATA

SCENARIO = Scenario("llama-3.1-8b", "h100-sxm", tp=2)
TANDEM = {"disaggregation": "prefills=2,decodes=1,tp=4", "concurrency": 8}
VERSION = "1.33"


SCHEMAS = yaml.safe_load((DATA / "manifests.yaml").read_text(encoding="utf-8"))


def documents(scenario: Scenario, target: str, **load: Any) -> list[dict[str, Any]]:
    bundle = launch(scenario, target=target, **load)
    text = next(text for name, text in bundle.files.items() if name.endswith(".yaml"))
    return list(yaml.safe_load_all(text))


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm"])
def test_kubernetes(engine: str) -> None:
    found = documents(SCENARIO.with_(engine=engine, kv="fp8"), "kubernetes")
    for document in found:
        kubernetes_validate.validate(document, VERSION, strict=True)
    deployment = next(document for document in found if document["kind"] == "Deployment")
    pod = deployment["spec"]["template"]
    assert pod["metadata"]["labels"].items() >= deployment["spec"]["selector"]["matchLabels"].items()
    container = pod["spec"]["containers"][0]
    assert container["resources"] == {"limits": {"nvidia.com/gpu": 2}}
    assert {mount["name"] for mount in container["volumeMounts"]} == {
        volume["name"] for volume in pod["spec"]["volumes"]
    }
    service = found[-1]
    assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    assert service["spec"]["ports"][0]["targetPort"] == container["ports"][0]["containerPort"]


@pytest.mark.parametrize(("engine", "folder"), [("vllm", "/root/.cache/huggingface"), ("ollama", "/root/.ollama")])
def test_a_container_keeps_what_its_engine_fetches(engine: str, folder: str) -> None:
    """Ollama's documentation of its container has a volume at /root/.ollama, where it stores models."""
    (found,) = documents(Scenario("llama-3.1-8b", "h100-sxm", engine=engine), "compose")
    (service,) = found["services"].values()
    assert [volume.rpartition(":")[2] for volume in service["volumes"]] == [folder]


def test_workers_apart_have_the_variables_of_their_command() -> None:
    """AMD's own kernels run where a variable says so."""
    (values,) = documents(Scenario("llama-3.1-8b", "mi300x"), "llm-d", disaggregation="1:1", concurrency=8)
    for pool in (values["prefill"], values["decode"]):
        assert {"name": "VLLM_ROCM_USE_AITER", "value": "1"} in pool["containers"][0]["env"]


def test_several_nodes_are_a_leader_worker_set() -> None:
    """LeaderWorkerSet v1 (kubernetes-sigs/lws): its pods are Kubernetes' own, checked as those of Deployments."""
    found = documents(Scenario("deepseek-r1", "h100-sxm", tp=16, enable_expert_parallel=True), "kubernetes")
    group = found[0]
    jsonschema.validate(group, SCHEMAS["LeaderWorkerSet"])
    assert group["spec"]["leaderWorkerTemplate"]["size"] == 2
    for role in ("leaderTemplate", "workerTemplate"):
        template = group["spec"]["leaderWorkerTemplate"][role]
        labels = {"matchLabels": template["metadata"]["labels"]}
        stand_in = {"metadata": {"name": "x"}, "spec": {"selector": labels, "template": template}}
        kubernetes_validate.validate({"apiVersion": "apps/v1", "kind": "Deployment", **stand_in}, VERSION, strict=True)
        script = template["spec"]["containers"][0]["args"][0]
        assert "--nnodes 2" in script
        assert '--master-addr "$LEADER"' in script
        assert ("--headless" in script) is (role == "workerTemplate")


@pytest.mark.parametrize(("device", "gpu"), [("h100-sxm", True), ("mi300x", False)])
def test_compose(device: str, gpu: bool) -> None:
    """The keys of compose-spec's schema, by hand: no package that is kept up carries it."""
    (project,) = documents(Scenario("llama-3.1-8b", device), "compose")
    assert set(project) <= {"services", "configs"}
    (name, service), *_ = project["services"].items()
    assert re.fullmatch(r"[a-zA-Z0-9._-]+", name)
    keys = {"image", "entrypoint", "command", "ports", "ipc", "volumes", "environment", "configs", "working_dir"}
    assert set(service) <= keys | {"deploy", "devices", "group_add", "security_opt"}
    assert all(isinstance(word, str) for word in service["command"])
    assert ("deploy" in service) is gpu
    assert ("devices" in service) is not gpu


def test_files_of_models_are_in_a_volume(tmp_path: Path) -> None:
    """Compose replaces $HOME, and Kubernetes $(HOME), in all words: a path has these characters doubled."""
    folder = tmp_path / "a$HOME $(HOME)"
    folder.mkdir()
    file = write_random_model(load_model("llama-68m"), "q8_0", folder / "model.gguf")
    scenario = Scenario(str(file), "rtx-4090")
    (project,) = documents(scenario, "compose")
    (service,) = project["services"].values()
    doubled = str(folder).replace("$", "$$")
    assert service["volumes"] == [{"type": "bind", "source": doubled, "target": doubled, "read_only": True}]
    assert f"{doubled}/model.gguf" in service["command"]
    found = documents(scenario, "kubernetes")
    for document in found:
        kubernetes_validate.validate(document, VERSION, strict=True)
    pod = found[0]["spec"]["template"]["spec"]
    assert {"name": "models", "mountPath": str(folder), "readOnly": True} in pod["containers"][0]["volumeMounts"]
    assert str(file).replace("$(", "$$(") in pod["containers"][0]["args"]


def test_llm_d() -> None:
    (values,) = documents(SCENARIO, "llm-d", **TANDEM)
    jsonschema.validate(values, SCHEMAS["llm-d"])
    assert (values["prefill"]["replicas"], values["decode"]["replicas"]) == (2, 1)
    for role, devices in (("prefill", "2"), ("decode", "4")):
        container = values[role]["containers"][0]
        words = container["args"]
        assert words[words.index("--tensor-parallel-size") + 1] == devices
        assert container["modelCommand"] == "vllmServe"
        assert "NixlConnector" in words[words.index("--kv-transfer-config") + 1]


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_dynamo(engine: str) -> None:
    (graph,) = documents(SCENARIO.with_(engine=engine), "dynamo", **TANDEM)
    jsonschema.validate(graph, SCHEMAS["DynamoGraphDeployment"])
    services = graph["spec"]["services"]
    assert {service.get("subComponentType") for service in services.values()} == {None, "prefill", "decode"}
    worker = services["PrefillWorker"]
    words = worker["extraPodSpec"]["mainContainer"]["args"]
    assert words[-2:] == ["--disaggregation-mode", "prefill"]
    assert words[0] == ("--model" if engine == "vllm" else "--model-path")
    assert worker["resources"]["limits"]["gpu"] == "2"


@pytest.mark.parametrize(
    ("scenario", "target", "load", "message"),
    [
        (SCENARIO, "shell", TANDEM, "launched as llm-d or dynamo"),
        (SCENARIO, "dynamo", {}, "has prefill and decode apart"),
        (SCENARIO.with_(engine="sglang"), "llm-d", TANDEM, "starts vLLM"),
        (Scenario("llama-3.1-8b", "m4-max"), "compose", {}, "no container"),
        (Scenario("deepseek-r1", "h100-sxm", tp=16), "compose", {}, "one node"),
    ],
)
def test_refusals(scenario: Scenario, target: str, load: dict[str, Any], message: str) -> None:
    with pytest.raises(RooflineError, match=message):
        launch(scenario, target=target, **load)


LLAMA = Scenario("llama-3.1-8b", "rtx-4090", engine="llama.cpp", quant="q4_k_m", prompt=256, generate=64)


@pytest.mark.parametrize(("stages", "copies"), [(1, 4), (2, 2)])
def test_servers_of_one_machine_have_devices_of_their_own_behind_a_router(stages: int, copies: int) -> None:
    scenario = LLAMA.with_(hw="4xrtx-4090", pp=stages, dp=copies)
    shell = launch(scenario, concurrency=8)
    script, route = shell.files["serve.sh"], shell.files["nginx.conf"]
    seen = [one.split(",") for one in re.findall(r"CUDA_VISIBLE_DEVICES=(\S+) ", script)]
    assert sorted(device for each in seen for device in each) == ["0", "1", "2", "3"]
    assert len(seen) == copies
    ports = re.findall(r"--port (\d+)", script)
    assert len(set(ports)) == copies
    assert re.findall(r"server 127\.0\.0\.1:(\d+);", route) == ports
    (asked,) = re.findall(r"listen (\d+);", route)
    assert re.search(r"^nginx -p ", script, re.MULTILINE)  # a folder of the user's: its own are of root
    assert not re.search(r"(pid|_path) /", route)
    assert asked not in ports
    assert f"localhost:{asked}/" in shell.benchmark
    assert f"--dp {copies}" in shell.benchmark  # which compares with the prediction of all of them
    (project,) = documents(scenario, "compose", concurrency=8)
    router = project["services"].pop("router")
    devices = [
        each["deploy"]["resources"]["reservations"]["devices"][0]["device_ids"] for each in project["services"].values()
    ]
    assert sorted(device for each in devices for device in each) == ["0", "1", "2", "3"]
    assert sorted(router["depends_on"]) == sorted(project["services"])
    assert all(f"server {name}:" in project["configs"]["router"]["content"] for name in project["services"])
    deployment, _ = documents(scenario, "kubernetes", concurrency=8)
    assert deployment["spec"]["replicas"] == copies
    limits = deployment["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]
    assert limits == {"nvidia.com/gpu": 4 // copies}


def test_servers_whose_devices_no_variable_divides_are_started_one_by_one() -> None:
    scenario = Scenario("qwen3-30b-a3b", "8xtpu-v6e", tp=4, dp=2, ep=1, prompt=256, generate=64)
    shell = launch(scenario, concurrency=8).files["serve.sh"]
    assert "One of 2 servers" in shell
    assert shell.count("vllm serve") == 1
    with pytest.raises(RooflineError, match="AMD"):
        launch(scenario, target="compose", concurrency=8)
