"""Manifests of a launch: Docker Compose, Kubernetes, llm-d and Dynamo, as documents for YAML.

Schemas: compose-spec/compose-spec (schema/compose-spec.json), Kubernetes 1.33 (apps/v1, v1), LeaderWorkerSet v1
(kubernetes-sigs/lws), the values of llm-d-incubation/llm-d-modelservice (examples/values-pd.yaml), and
DynamoGraphDeployment v1alpha1 (ai-dynamo/dynamo, examples/backends/vllm/deploy/disagg.yaml).
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from roofline.core.errors import RooflineError, alternatives
from roofline.core.units import GIB
from roofline.launch.command import CONFIG_FILE, Command
from roofline.specs.hardware import Hardware
from roofline.specs.servers import Server
from roofline.specs.states import slice_of

Document = dict[str, Any]

RESOURCES = {"NVIDIA": "nvidia.com/gpu", "AMD": "amd.com/gpu"}
"""The extended resource of a vendor's device plugin."""

VISIBLE = {"NVIDIA": "CUDA_VISIBLE_DEVICES", "AMD": "HIP_VISIBLE_DEVICES", "Intel": "ZE_AFFINITY_MASK"}
"""The variable of the devices that a process sees, by their numbers (llama.cpp, docs/build.md, of CUDA and HIP; the
core programming guide of the Level Zero specification, of Intel)."""

TOKEN = {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hf-token", "key": "token", "optional": True}}}
"""The variable of the Hub's token, from a secret that the user may create."""

SHARED_MEMORY = "16Gi"
"""Shared memory of a pod: NCCL and the workers of a server exchange through it (vLLM's documentation of Docker)."""


FOLDER = "/models"
"""Where containers have the files of models that are named without a folder."""

CLAIM = "models"
"""The volume claim of pods that holds these files, which the user makes."""


class Place(NamedTuple):
    """A server of a manifest: its commands by node (the leader's first), on `devices` of each node's hardware.

    `copies`: the replicas of it, among which its Service divides the requests; `device_sets`: the device numbers of
    each, such as "0,1", where they share one machine. `model` is what it loads: a repository, or the path of a file.
    """

    name: str
    server: Server
    version: str
    commands: Sequence[Command]
    hardware: Hardware
    devices: int
    nodes: int
    model: str = ""
    copies: int = 1
    device_sets: Sequence[str] = ()

    @property
    def folder(self) -> str:
        """The folder of a model's file in the container, which a volume holds; "" for a repository."""
        path = Path(self.model)
        return str(path.parent) if path.is_absolute() else FOLDER if path.suffix == ".gguf" else ""

    @property
    def program(self) -> str:
        """The program in the container."""
        return self.server.program or self.commands[0].words[0]

    @property
    def port(self) -> int:
        """The server's port."""
        return self.server.port

    @property
    def image(self) -> str:
        """The container. Raises RooflineError where none is known for the hardware."""
        images, hardware = self.server.images, self.hardware
        found = images.get(hardware.vendor) if hardware.kind == "gpu" else images.get(hardware.kind)
        if found is None:
            raise RooflineError(
                f"no container of {self.server.title} is known for {hardware.vendor}: launch it in a shell"
            )
        return found.format(self.version)

    @property
    def resources(self) -> Document:
        """The devices of a pod."""
        name = RESOURCES.get(self.hardware.vendor)
        if name and (part := slice_of(self.hardware)):
            name = f"nvidia.com/mig-{part}"  # of the device plugin's strategy "mixed"
        return {"limits": {name: self.devices}} if name and self.hardware.kind == "gpu" else {}


def safe_name(text: str) -> str:
    """A name of Kubernetes objects and Compose services: RFC 1123 label, at most 50 characters."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:50].strip("-") or "model"


ROUTER_FILE = "nginx.conf"
"""The settings of the router of several servers of one machine."""

ROUTER_IMAGE = "nginx:stable"
"""The container of the router (hub.docker.com/_/nginx)."""


def router(port: int, addresses: Sequence[str]) -> str:
    """The settings of nginx that sends each request to the server with the fewest (ngx_http_upstream_module).

    Answers are streamed as they come, prompts may be long, and a request may wait for an hour. What nginx writes is
    below its prefix, since packages keep it in folders of root's (nginx.org/en/docs, ngx_core_module).
    """
    servers = "".join(f"    server {address};\n" for address in addresses)
    upstream = f"  upstream servers {{\n    least_conn;\n{servers}  }}\n"
    passed = "proxy_pass http://servers; proxy_buffering off; proxy_read_timeout 1h; client_max_body_size 64m;"
    own = f"  server {{\n    listen {port};\n    location / {{ {passed} }}\n  }}\n"
    folders = " ".join(f"{part}_temp_path {part};" for part in ("client_body", "proxy", "fastcgi", "scgi", "uwsgi"))
    written = f"  access_log off; {folders}\n"
    return f"error_log stderr; pid nginx.pid;\nevents {{}}\nhttp {{\n{written}{upstream}{own}}}\n"


def compose(place: Place) -> Document:
    """A Docker Compose project of one service; of several servers one each on its own devices, behind a router."""
    if place.nodes > 1:
        raise RooflineError("Docker Compose has one node: launch as kubernetes")
    if place.copies > 1 and not place.device_sets:
        among = f"share one machine, with devices of {alternatives([*VISIBLE])}"
        raise RooflineError(f"the servers of a Docker Compose project {among}: launch one server, or as kubernetes")
    document = _composed(place)
    if not place.device_sets:
        return document
    (entry,) = document["services"].values()
    ports, names = entry.pop("ports"), [f"{place.name}-{index}" for index in range(place.copies)]
    services: Document = {
        name: _pinned(entry, place, only) for name, only in zip(names, place.device_sets, strict=True)
    }
    config = [{"source": "router", "target": "/etc/nginx/nginx.conf"}]
    services["router"] = {"image": ROUTER_IMAGE, "ports": ports, "configs": config, "depends_on": names}
    route = router(place.port, [f"{name}:{place.port}" for name in names])
    return {"services": services, "configs": {**document.get("configs", {}), "router": {"content": route}}}


def _pinned(entry: Document, place: Place, only: str) -> Document:
    """A service that has some devices alone: those that Docker gives it, or that its process may see."""
    if place.hardware.vendor == "NVIDIA":
        device = {"driver": "nvidia", "device_ids": only.split(","), "capabilities": ["gpu"]}
        return {**entry, "deploy": {"resources": {"reservations": {"devices": [device]}}}}
    return {**entry, "environment": {**entry["environment"], VISIBLE[place.hardware.vendor]: only}}


def _composed(place: Place) -> Document:
    """A Docker Compose project of one server."""
    command = place.commands[0]
    entry: Document = {
        "image": place.image,
        "entrypoint": [place.program],
        "command": list(map(_no_variables, command.words[1:])),
        "ports": [f"{place.port}:{place.port}"],
        "ipc": "host",
        "volumes": [place.server.store],
        "environment": {"HF_TOKEN": "${HF_TOKEN:-}", **command.variables},
    }
    if place.folder:
        source = _no_variables(place.folder) if place.folder != FOLDER else "."
        entry["volumes"] = [
            {"type": "bind", "source": source, "target": _no_variables(place.folder), "read_only": True}
        ]
        entry["working_dir"] = _no_variables(place.folder)
    document: Document = {"services": {place.name: entry}}
    if command.config:
        entry["configs"] = [{"source": "config", "target": f"/{CONFIG_FILE}"}]
        entry["working_dir"] = "/"
        document["configs"] = {"config": {"content": _no_variables(command.config_text)}}
    if place.hardware.vendor == "NVIDIA":
        device = {"driver": "nvidia", "count": place.devices, "capabilities": ["gpu"]}
        entry["deploy"] = {"resources": {"reservations": {"devices": [device]}}}
    elif place.hardware.vendor == "AMD" and place.hardware.kind == "gpu":
        entry["devices"] = ["/dev/kfd", "/dev/dri"]
        entry["group_add"] = ["video"]
        entry["security_opt"] = ["seccomp=unconfined"]
    return document


def _no_variables(text: str) -> str:
    """Text in which Compose replaces nothing."""
    return text.replace("$", "$$")


def kubernetes(place: Place) -> list[Document]:
    """A Deployment, or a LeaderWorkerSet over several nodes, and its Service."""
    labels = {"app": place.name}
    meta: Document = {"name": place.name, "labels": labels}
    documents: list[Document] = []
    if place.commands[0].config:
        data = {CONFIG_FILE: place.commands[0].config_text}
        documents.append({"apiVersion": "v1", "kind": "ConfigMap", "metadata": dict(meta), "data": data})
    if place.nodes == 1:
        template = {"metadata": {"labels": labels}, "spec": _pod(place, place.commands[0])}
        spec: Document = {"replicas": place.copies, "selector": {"matchLabels": labels}, "template": template}
        documents.append({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta, "spec": spec})
        selector = labels
    else:
        leader, worker = (_pod(place, command, through_shell=True) for command in place.commands)
        worker["containers"][0].pop("readinessProbe", None)
        group: Document = {
            "size": place.nodes,
            "restartPolicy": "RecreateGroupOnPodRestart",
            "leaderTemplate": {"metadata": {"labels": {**labels, "role": "leader"}}, "spec": leader},
            "workerTemplate": {"metadata": {"labels": labels}, "spec": worker},
        }
        spec = {"replicas": place.copies, "leaderWorkerTemplate": group}
        kind = {"apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet"}
        documents.append({**kind, "metadata": meta, "spec": spec})
        selector = {**labels, "role": "leader"}
    ports = [{"name": "http", "port": place.port, "targetPort": place.port}]
    service = {"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": {"selector": selector, "ports": ports}}
    return [*documents, service]


def _pod(place: Place, command: Command, through_shell: bool = False) -> Document:
    """The spec of a pod that runs a command, `through_shell` where it has variables of its node's rank and leader."""
    container: Document = {
        "name": "server",
        "image": place.image,
        "command": [place.program],
        "args": [_no_expansion(word) for word in command.words[1:]],
        "env": [TOKEN, *_variables(command)],
        "ports": [{"name": "http", "containerPort": place.port}],
        "resources": place.resources,
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],  # noqa: S108 - the name of a mount
        "readinessProbe": {"tcpSocket": {"port": place.port}, "periodSeconds": 10, "failureThreshold": 360},
    }
    if through_shell:
        node = "NODE_RANK=$LWS_WORKER_INDEX LEADER=$LWS_LEADER_ADDRESS; "
        container |= {"command": ["sh", "-c"], "args": [_no_expansion(f"{node}exec {command.line}")]}
    volumes: list[Document] = [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": SHARED_MEMORY}}]
    if place.folder:
        container["volumeMounts"].append({"name": "models", "mountPath": place.folder, "readOnly": True})
        container["workingDir"] = place.folder
        volumes.append({"name": "models", "persistentVolumeClaim": {"claimName": CLAIM}})
    if command.config:
        container["volumeMounts"].append({"name": "config", "mountPath": "/launch"})
        container["workingDir"] = "/launch"
        volumes.append({"name": "config", "configMap": {"name": place.name}})
    return {"containers": [container], "volumes": volumes}


def _variables(command: Command) -> list[Document]:
    """The environment of a container whose server has a command."""
    return [{"name": name, "value": value} for name, value in command.variables.items()]


def _no_expansion(text: str) -> str:
    """Text in which Kubernetes replaces nothing."""
    return text.replace("$(", "$$(")


TRANSFER = '{"kv_connector":"NixlConnector","kv_role":"kv_both"}'
"""vLLM's transfer of the KV cache between prefill and decode (vllm/config/kv_transfer.py, NIXL)."""

VOLUME = 1.25
"""The volume of a model over its weights: files are downloaded beside those that are complete."""

SIDE_CHANNEL = 5557
"""The port of NIXL's side channel, as in llm-d's values."""


def llm_d(prefill: Place, decode: Place, replicas: tuple[int, int], model: str, size: float) -> Document:
    """The values of llm-d's chart `llm-d-modelservice` for prefill and decode apart; `size`: bytes of the weights."""
    if decode.server.name != "vllm":
        raise RooflineError("llm-d's chart starts vLLM: launch another engine as dynamo")
    if max(prefill.nodes, decode.nodes) > 1:
        raise RooflineError("a replica over several nodes is not launched on llm-d: lower its layout")
    volume = f"{math.ceil(VOLUME * size / GIB)}Gi"
    pools = {
        name: {"create": True, "replicas": count, "containers": [_vllm_container(place)]}
        for name, place, count in (("decode", decode, replicas[1]), ("prefill", prefill, replicas[0]))
    }
    return {
        "multinode": False,
        "modelArtifacts": {"name": model, "uri": f"hf://{model}", "size": volume, "authSecretName": "hf-token"},
        "routing": {"servicePort": decode.port, "proxy": {"secure": False}},
        **pools,
    }


def _vllm_container(place: Place) -> Document:
    """A container whose command the chart makes: the words after `vllm serve MODEL`, but for the port."""
    words = [str(word) for word in place.commands[0].words[3:]]
    channel = {"name": "VLLM_NIXL_SIDE_CHANNEL_PORT", "value": str(SIDE_CHANNEL)}
    host = {"name": "VLLM_NIXL_SIDE_CHANNEL_HOST", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    return {
        "name": "vllm",
        "image": place.image,
        "modelCommand": "vllmServe",
        "args": [*map(_no_expansion, words), "--kv-transfer-config", TRANSFER],
        "env": [host, channel, *_variables(place.commands[0])],
        "ports": [{"containerPort": SIDE_CHANNEL, "protocol": "TCP"}],
        "resources": place.resources,
        "mountModelVolume": True,
    }


DYNAMO_MODULES = {"vllm": "dynamo.vllm", "sglang": "dynamo.sglang", "tensorrt-llm": "dynamo.trtllm"}
DYNAMO_IMAGES = {name: f"nvcr.io/nvidia/ai-dynamo/{name}-runtime" for name in ("vllm", "sglang")}
DYNAMO_VERSION = "1.4.0"
"""The version of Dynamo's images and of its option --disaggregation-mode (its documentation of rolling updates)."""


def dynamo(prefill: Place, decode: Place, replicas: tuple[int, int], model: str) -> Document:
    """A DynamoGraphDeployment of a frontend, and of workers of prefill and decode."""
    name = decode.server.name
    if name not in DYNAMO_IMAGES:
        raise RooflineError("prefill and decode apart are launched on Dynamo with vllm or sglang", options=["engine"])
    if decode.hardware.vendor != "NVIDIA" or prefill.hardware.vendor != "NVIDIA":
        raise RooflineError("Dynamo's containers are for NVIDIA's devices")
    if max(prefill.nodes, decode.nodes) > 1:
        raise RooflineError("a replica over several nodes is not launched on Dynamo: lower its layout")
    image = f"{DYNAMO_IMAGES[name]}:{DYNAMO_VERSION}"
    services: Document = {
        "Frontend": {"componentType": "frontend", "replicas": 1, "extraPodSpec": {"mainContainer": {"image": image}}}
    }
    for role, place, count in (("decode", decode, replicas[1]), ("prefill", prefill, replicas[0])):
        words = [str(word) for word in place.commands[0].words[3:]]
        model_words = ["--model", model] if name == "vllm" else []
        main: Document = {
            "image": image,
            "command": ["python3", "-m", DYNAMO_MODULES[name]],
            "args": [*model_words, *map(_no_expansion, words), "--disaggregation-mode", role],
        }
        if environment := _variables(place.commands[0]):
            main["env"] = environment
        services[f"{role.capitalize()}Worker"] = {
            "envFromSecret": "hf-token-secret",
            "componentType": "worker",
            "subComponentType": role,
            "replicas": count,
            "resources": {"limits": {"gpu": str(place.devices)}},
            "extraPodSpec": {"mainContainer": main},
        }
    kind = {"apiVersion": "nvidia.com/v1alpha1", "kind": "DynamoGraphDeployment"}
    return {**kind, "metadata": {"name": decode.name}, "spec": {"services": services}}
