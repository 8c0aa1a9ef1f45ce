"""The words of a server's command, from its settings: arguments, variables, and the keys of its file of settings."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from msgspec import Struct

from roofline.core.documents import bundled
from roofline.core.errors import RooflineError
from roofline.launch.repository import HUB, maker, name_of, published, quantized, repository_of
from roofline.launch.settings import Wanted
from roofline.scenario.scenario import Scenario
from roofline.specs.hardware import Hardware
from roofline.specs.modelspec import load_model
from roofline.specs.records import record
from roofline.specs.servers import Server
from roofline.techniques import check_request

WIDTH = 80
"""Columns at which a command is continued on the next line."""

ROOM = 12
"""Columns left for the value of an option."""


class Shell(str):
    """A word with variables that the shell replaces; made by this package alone, never from a file."""

    __slots__ = ()


class Command(NamedTuple):
    """A command: its words, the variables before it, and the keys of the file that its `config` option names."""

    words: tuple[str, ...]
    variables: Mapping[str, str] = {}
    config: Mapping[str, Any] = {}

    @property
    def quoted(self) -> list[str]:
        """The variables and words as a shell reads them."""
        variables = [f"{name}={shlex.quote(value)}" for name, value in self.variables.items()]
        return variables + [f'"{word}"' if isinstance(word, Shell) else shlex.quote(word) for word in self.words]

    @property
    def line(self) -> str:
        """The command for a shell, on one line."""
        return " ".join(self.quoted)

    @property
    def text(self) -> str:
        """The command for a shell, continued on lines of at most 80 columns where values allow it."""
        first, *rest = self.quoted
        lines = [first]
        for word in rest:
            if word.startswith("-") and len(lines[-1]) + 1 + len(word) + ROOM > WIDTH - 2:
                lines.append(word)
            else:
                lines[-1] += f" {word}"
        return " \\\n  ".join(lines)

    @property
    def config_text(self) -> str:
        """The file of settings as YAML; "" without one."""
        return yaml.safe_dump(dict(self.config), sort_keys=False) if self.config else ""


UNNAMED_DRAFT = "DRAFT"
"""What stands for the path of a draft that the user finds."""

CONFIG_FILE = "config.yml"
"""The file of settings of a bundle."""


def server_command(server: Server, version: str, wanted: Iterable[Wanted], model: str, drafted: Drafted) -> Command:
    """The command of a server for its settings. Raises RooflineError for one that it has no option for."""
    words = shlex.split(server.command.replace("{model}", shlex.quote(model)))
    variables: dict[str, str] = {}
    config: dict[str, Any] = {}
    if "{model}" not in server.command and "model" in server.rows:
        words += server.words("model", model, version)
    for setting, value, pinned in wanted:
        if pinned and not server.has(setting, version):
            continue
        row = server.row(setting, version).words
        if setting == "draft":
            drafted.set(server, version, words, config)
        elif ": " in row:
            _put(config, " ".join(server.words(setting, value, version)))
        elif "=" in row:
            variables |= dict(word.split("=", 1) for word in server.words(setting, value, version))
        else:
            given_words = server.words(setting, value, version)
            words += [Shell(word) if isinstance(value, Shell) and value in word else word for word in given_words]
    if config:
        words += server.words("config", CONFIG_FILE, version)
    return Command(tuple(words), variables, config)


def _put(config: dict[str, Any], line: str) -> None:
    """Set `a.b: value` in nested keys."""
    path, _, value = line.partition(": ")
    *outer, last = path.split(".")
    for key in outer:
        config = config.setdefault(key, {})
    config[last] = yaml.safe_load(value)


class Drafted(NamedTuple):
    """A technique that drafts: its name, the depth, width and size of its tree, and the path of the draft."""

    technique: str = ""
    tokens: int = 0
    topk: int = 1
    verified: int = 1
    path: str = ""

    def set(self, server: Server, version: str, words: list[str], config: dict[str, Any]) -> None:
        """Add the engine's settings of the draft."""
        values = {"$draft": self.path, "$tokens": self.tokens, "$topk": self.topk, "$verified": self.verified + 1}
        keys = {key: values.get(str(value), value) for key, value in server.drafts[self.technique].items()}
        row = server.row("draft", version).words
        if ": " in row:
            config[row.partition(": ")[0]] = keys
        elif row:
            words += [row.split(" ")[0], json.dumps(keys)]
        else:
            words += [str(part) for entry in keys.items() for part in entry]


def drafted_of(scenario: Scenario, server: Server) -> Drafted:
    """The technique of a scenario that drafts; one without a name for no speculation."""
    speculation = scenario.settings.speculation
    if speculation is None:
        return Drafted()
    if scenario.model.tower_kind == "encoder":
        raise RooflineError(f"{server.title} drafts for no encoder-decoder models", options=["with"])
    for written in scenario.techniques:
        name = check_request(written).name
        if name in server.drafts:
            if speculation.verified != speculation.length and "$topk" not in server.drafts[name].values():
                raise RooflineError(
                    f"{server.title} is launched with chains of draft tokens, not with trees", options=["with"]
                )
            path = UNNAMED_DRAFT if server.reads_file(None) else _draft_of(written)
            return Drafted(name, speculation.length, speculation.draft_width, speculation.verified, path)
    raise RooflineError(f"{server.title} has no option for this speculation: omit it", options=["with"])


def _draft_of(written: str) -> str:
    """The repository of the draft model that a request of a technique names; DRAFT for one that the user finds."""
    named = re.search(r"[:,]draft=([^,]+)", written)
    found = None if named is None else HUB.fullmatch(load_model(named[1]).source or "")
    return UNNAMED_DRAFT if found is None else found[1]


def checkpoint(scenario: Scenario, server: Server, scheme: str | None, online: bool) -> tuple[str, str]:
    """What the server loads, and a sentence where that is a placeholder, or is published in such a format."""
    given, repository = Path(scenario.model_name), repository_of(scenario)
    if given.suffix == ".gguf" and given.exists():
        return str(given), ""
    if server.reads_file(scheme):
        tensors = scenario.precision.weights.name
        if server.name == "ollama":
            return "", f"the model: 'ollama pull' a tag of {name_of(scenario)} in {tensors}, or 'ollama create' it"
        file, form = f"{name_of(scenario)}-{tensors}.gguf", f", {server.file}" if server.file else ""
        return file, f"{file}: the path of your file{form}"
    if given.exists():
        return str(given.parent if given.name == "config.json" else given), ""
    needs = needs_of(repository)
    if needs is not None and not needs.loads:
        return "MODEL", f"MODEL: {name_of(scenario)} converted for Transformers, which {repository} is not"
    if server.name != "mlx" or str(scenario.model.quantization).startswith("affine"):
        if repository and (scheme is None or online):
            found = published(scenario, scheme) if online and scheme else None
            return repository, "" if found is None else f"{found[1]} is published in {found[0]}: --quant {found[0]}"
        if listed := quantized(scenario, scheme or scenario.precision.weights.name):
            return listed, ""
    form = f"in {scheme}" if scheme else "converted to MLX" if server.name == "mlx" else "of it"
    made = f", which {made} makes" if (made := maker(scenario, scheme or "")) else ""
    return "MODEL", f"MODEL: a checkpoint of {name_of(scenario)} {form}{made}; its spec names none"


class Needs(Struct, frozen=True, forbid_unknown_fields=True):
    """What a model needs of a server: an entry of `models.yaml`."""

    match: str
    recipe: str
    vllm: Mapping[str, str] = {}
    sglang: Mapping[str, str] = {}
    start: Mapping[str, str] = {}
    amd: Mapping[str, str] = {}
    remote_code: bool = False
    tokenizer: bool = False
    loads: bool = True
    scores: bool = False


@cache
def _needs() -> Sequence[Needs]:
    rows = bundled("launch/models.yaml").items()
    return [record(Needs, {**entry, "recipe": recipe}, "models.yaml", recipe) for recipe, entry in rows]


def needs_of(repository: str) -> Needs | None:
    """What the model of a repository needs; None where nothing is known."""
    return next((needs for needs in _needs() if re.fullmatch(needs.match, repository, re.IGNORECASE)), None)


AITER = ("cdna3", "cdna4")
"""The families of devices for which AMD's kernels are compiled, which vLLM uses only where it is told so.

All recipes of vLLM for MI300X to MI355X say it, but that of one model (vllm-project/recipes, 2026: `models.yaml`).
"""


def needed(needs: Needs | None, server: Server, hardware: Hardware, parsers: bool) -> list[Wanted]:
    """What a model needs to start on devices, and its `parsers`."""
    if server.name not in ("vllm", "sglang"):
        return []
    found: dict[str, str] = {}
    if server.name == "vllm":
        found |= {"aiter": "1"} if str(hardware.family).startswith(AITER) else {}
        found |= {} if needs is None else {**needs.start, **(needs.amd if hardware.vendor == "AMD" else {})}
    return [Wanted(*each) for each in {**found, **(getattr(needs, server.name) if needs and parsers else {})}.items()]
