"""Set-ups of the live page: the options of a scenario as texts, with the specs that a user dropped or edited.

Keys are the names of options; `model.spec` and `hw.spec` hold the text of a spec, `model.file` names a dropped
checkpoint that the server holds, `hw.memory.bandwidth` and the like change one quantity of a hardware spec. Other keys
with a dot belong to the page.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
import shlex
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from shutil import rmtree
from tempfile import TemporaryDirectory, gettempdir
from typing import Any

import numpy as np
import yaml
from msgspec import Struct

from roofline.advisor.chosen import plan_for
from roofline.core.documents import MAX_BYTES, read_mapping
from roofline.core.errors import RooflineError, SpecError, UnknownNameError, quote
from roofline.core.files import lock_folder, write_text
from roofline.core.inputs import opened, read_text, restricted
from roofline.scenario.options import OPTIONS, STATIC, read_options
from roofline.scenario.scenario import Scenario
from roofline.serving.curve import targets_of
from roofline.serving.options import LOAD_OPTIONS
from roofline.serving.sessions.options import SESSION_OPTIONS
from roofline.serving.sessions.profiles import PROFILES
from roofline.specs.hardware import Hardware, load_devices
from roofline.specs.library import folders, spec_path
from roofline.specs.model import Model
from roofline.specs.modelspec import load_any, load_model
from roofline.specs.written import to_spec
from roofline.verdict.asked import answer, load_of
from roofline.whatif.command_line import command_words, option_texts

Setup = Mapping[str, str]

TEXTS = (".json", ".yaml", ".yml")
CHECKPOINTS = (".gguf", ".safetensors")

MAX_CHECKPOINT = 4 << 40
"""Bytes of the largest checkpoint: larger than any single file of weights."""

PEAKS = ("bf16", "fp16", "tf32", "fp8", "int8", "fp6", "int4", "fp4", "nvfp4", "mxfp4")

LINKS = 4
"""Interconnects of a device whose bandwidths may be edited."""

EDITABLE = {
    "memory.capacity": "Memory",
    "memory.bandwidth": "Bandwidth",
    **{f"compute.tensor.{name}": f"{name} peak" for name in PEAKS},
    "compute.vector.fp32": "Vector peak",
    **{f"interconnects.{place}.bandwidth": "" for place in range(LINKS)},
    "power.tdp": "TDP",
    "price.rent": "Rent",
}
"""The quantities of a hardware spec that the page edits, with their titles; a link has that of its kind."""

ADDED = ("power.tdp",)
"""Those that the page offers where a spec lacks them; a price is an option of its own."""

_PREFIX = "roofline-view-"

_FOLDER = "my-model"
"""The folder of a file, which names the model of a `config.json` that has no name."""

_SOURCE = re.compile(r"\s*\[.*\]\s*", re.DOTALL)


class SpecFile(Struct, frozen=True):
    """A spec that no name stands for: commands need it as a file. A checkpoint has no text."""

    name: str
    text: str | None


class Read(Struct, frozen=True):
    """A set-up as a scenario, and the files that its commands need, by the option that names them."""

    scenario: Scenario
    files: Mapping[str, SpecFile]

    @property
    def names(self) -> dict[str, str]:
        """The bare names of the files, for commands, by the option that names them."""
        return {option: file.name for option, file in self.files.items()}

    def command(self, command: str = "analyze", *more: str) -> str:
        """The command line of a question, with further words behind it."""
        name, *rest = shlex.split(command)
        return shlex.join(["roofline", name, *rest, *command_words(self.scenario, self.names), *more])

    @property
    def values(self) -> dict[str, Any]:
        """The option values of the scenario, for Python."""
        return self.scenario.options | self.names


class Specs:
    """Files of the specs in set-ups, in a temporary folder that `close` deletes."""

    def __init__(self, folder: str | None = None, most: float = math.inf) -> None:
        """Made after the page's command has read its options: the page may read the files that they name.

        With a `folder`, which is another's, it may read none of them, and holds at most `most` bytes: the oldest go.
        """
        self._owned, self._most = ExitStack(), most
        if folder is None:
            _left()
            folder = self._owned.enter_context(TemporaryDirectory(prefix=_PREFIX))
            with suppress(OSError):  # no system of locks: its folder stays where it is killed
                self._owned.callback(os.close, lock_folder(Path(folder)))
        self.folder = folder
        named = opened() if most == math.inf else ()
        self._named = frozenset(os.path.realpath(path) for file in named for path in (file, file.parent))
        self._folders = tuple(path.resolve() for path in (Path(folder), *folders()))

    def close(self) -> None:
        self._owned.close()

    def _made(self, path: Path) -> None:
        """Make the folder of a new file, and room for it."""
        if self._most < math.inf:
            _trim(Path(self.folder), self._most)
        path.parent.mkdir(parents=True, exist_ok=True)

    def read(self, setup: Setup) -> Read:
        """The scenario of a set-up. Raises RooflineError."""
        options = {name: text for name, text in setup.items() if "." not in name and text.strip()}
        files = {}
        if held := setup.get("model.file"):
            checkpoint = self._held(held)
            options["model"], files["model"] = str(checkpoint), SpecFile(checkpoint.name, None)
        for option in ("model", "hw"):
            text = setup.get(f"{option}.spec")
            path = None if text is None else self.write(text, _file_name(text, option))
            edits = {key: value for key in EDITABLE if (value := setup.get(f"hw.{key}", "")).strip()}
            if option == "hw" and edits:
                text = _edited(path or _spec_of(options.get("hw", "")), edits)
                path = self.write(text, _file_name(text, option))
            if text is not None and path is not None:
                files[option] = SpecFile(path.name, text)
                options[option] = str(path)
        return Read(Scenario(**read_options(options)), files)

    def write(self, text: str, name: str) -> Path:
        """The file of a text, in a folder of its own."""
        if len(text) > MAX_BYTES:
            raise RooflineError(f"{quote(name)} is larger than {MAX_BYTES >> 20} MiB, too large for a spec")
        path = Path(self.folder, hashlib.sha256(text.encode()).hexdigest()[:16], _FOLDER, _safe(name))
        if not path.exists():
            self._made(path)
            write_text(path, text)  # whole at once: another question may read it
        return path

    def checkpoint(self, name: str, size: int, head: bytes) -> dict[str, str]:
        """The options of a dropped GGUF file of `size` bytes that begins with `head`. Raises RooflineError.

        A sparse file of that size stands for it: only the header is read.
        """
        if Path(name).suffix.lower() != ".gguf" or not len(head) <= size <= MAX_CHECKPOINT:
            raise RooflineError(f"{quote(name)} is no GGUF file")
        digest = hashlib.sha256(head + str(size).encode()).hexdigest()[:16]
        path = Path(self.folder, digest, _FOLDER, _safe(name))
        self._made(path)
        with _kept_if_read(path):
            path.write_bytes(head)
            os.truncate(path, size)
            return {"model": load_model(str(path)).name, "model.file": f"{digest}/{path.name}"}

    def _held(self, text: str) -> Path:
        """The checkpoint that `model.file` names."""
        found = re.fullmatch(r"([0-9a-f]{16})/([\w.+-]+)", text)
        path = None if found is None else Path(self.folder, found[1], _FOLDER, found[2])
        if path is None or not path.is_file():
            raise RooflineError(f"the server that held {quote(text.rpartition('/')[2])} has ended: drop the file again")
        return path

    def imported(self, name: str, text: str) -> tuple[str, SpecFile]:
        """The option (model or hw) and the spec of a dropped file: a spec or a `config.json`. Raises RooflineError."""
        ending = Path(name).suffix.lower()
        if ending in CHECKPOINTS:
            raise RooflineError(f"{quote(name)} is opened with its folder, from the command line: roofline view FOLDER")
        if ending not in TEXTS:
            raise RooflineError(f"a spec is a .json or .yaml file, and {quote(name)} is neither")
        path = self.write(text, name)
        with _kept_if_read(path):
            spec = load_any(str(path))
        return "hw" if isinstance(spec, Hardware) else "model", SpecFile(spec.name, _text(path, spec))

    def plain(self, message: str) -> str:
        """A message with the bare names of the files."""
        return re.sub(rf"{re.escape(self.folder)}/\w+/{_FOLDER}/", "", message)

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Within the block the page's texts open only bundled specs, those of set-ups, and what its command read."""
        with restricted(self._check):
            yield

    def _check(self, path: Path) -> None:
        # Options, parameters of techniques and keys of specs can all be paths: checked where files are opened.
        found = os.path.realpath(path) if "\0" not in str(path) else ""
        if found not in self._named and not any(map(Path(found).is_relative_to, self._folders)):
            raise RooflineError(f"the page reads no files of this machine: drop {quote(path.name)} on it")


KEYS_OF_LOADS = {
    "rate": "asked.rate",
    "sessions": "asked.sessions",
    "ttft": "goal.ttft",
    "tpot": "goal.tpot",
    "prefix_hits": "load.hits",
    "profile": "load.profile",
    "tiers": "load.tiers",
    "disaggregation": "deploy.pools",
}
"""The keys of a set-up by the option of the command that sets them; users are the batch."""


def opening(options: Mapping[str, Any], load: Mapping[str, Any]) -> dict[str, str]:
    """The set-up that answers `roofline MODEL HW` with these options and this load. Raises RooflineError.

    Users are its batch, as far as these run at once, and what is not said is chosen, as there; what does not fit stays
    as it was asked.
    """
    given = dict(options)
    users = load.get("concurrency")
    if users is not None and (given.get("batch") is not None or load.get("rate") is not None):
        raise RooflineError("users, a batch and a rate are three loads: give one of them")
    static = {name: given.pop(name) for name in STATIC if name in given}
    static |= {} if users is None else {"batch": LOAD_OPTIONS["concurrency"].number(users)}
    asked = Scenario(**given)
    rate, sessions, apart = (load.get(name) for name in ("rate", "sessions", "disaggregation"))
    targets = {name: load.get(name) for name in ("ttft", "tpot")}
    if sessions is not None and (rate is not None or "batch" in static or load.get("prefix_hits") is not None):
        raise RooflineError("sessions are a load of their own: omit users, batch, rate and hits", options=["sessions"])
    if sessions is None and (names := [name for name in ("profile", "tiers") if load.get(name) is not None]):
        raise RooflineError(f"{names[0]} is of sessions: say how many with --sessions", options=names)
    if (profile := load.get("profile")) is not None and profile not in PROFILES:
        raise UnknownNameError("profile of sessions", profile, PROFILES)
    own = int(np.max(static.get("batch", 1)))
    batch = own if sessions is None else int(SESSION_OPTIONS["sessions"].number(sessions))
    if apart:  # the devices are divided among the replicas
        plan = answer(asked, users=None if rate else batch, rate=rate, disaggregation=apart, **targets).plan
    else:
        asked_load = load_of(None if rate or batch == 1 else batch, rate, load.get("prefix_hits"))  # one is no load
        plan = plan_for(asked, asked_load, targets_of(**targets))
    scenario = plan.scenario if plan.fits else asked
    told = {key: str(load[name]) for name, key in KEYS_OF_LOADS.items() if load.get(name) is not None}
    if users is not None and static["batch"] > scenario.max_batch:  # others wait
        told["asked.users"] = str(static["batch"])
        static["batch"] = scenario.max_batch
    return setup_of(scenario.with_(**static)) | told


def setup_of(scenario: Scenario) -> dict[str, str]:
    """The set-up of a scenario, with the text of its spec files; a checkpoint stays a path. Raises RooflineError."""
    found = option_texts(scenario)
    for option, package in (("model", "modelspecs"), ("hw", "hwspecs")):
        path = spec_path(found[option], package)
        if path is not None and path == Path(found[option]) and path.suffix.lower() in TEXTS:
            spec = scenario.model if option == "model" else scenario.hardware
            found |= {option: spec.name, f"{option}.spec": _text(path, spec)}
    return found


MOST_HELD = 2000
"""Files that a folder with a limit holds at most."""


def _trim(folder: Path, most: float) -> None:
    """Delete the oldest files of a folder until it has room for another: half of `most` bytes, and of their number."""
    found = []
    for own in folder.iterdir():
        with suppress(OSError):  # another process deletes too
            sizes = [file.stat().st_blocks * 512 for file in own.glob(f"{_FOLDER}/*")]  # those of a sparse file's data
            found.append((own.stat().st_mtime, own, sum(sizes)))
    total, count = sum(size for _, _, size in found), len(found)
    if total < most and count < MOST_HELD:
        return
    for _, own, size in sorted(found):
        if total < most / 2 and count < MOST_HELD / 2:
            return
        rmtree(own, ignore_errors=True)
        total, count = total - size, count - 1


@contextmanager
def _kept_if_read(path: Path) -> Iterator[None]:
    """Delete a dropped file, with its folder, where the block fails."""
    try:
        yield
    except BaseException:
        rmtree(path.parents[1], ignore_errors=True)
        raise


def _left() -> None:
    """Delete the folders of servers that were killed: those that no process has locked."""
    for folder in Path(gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(OSError, RooflineError):
            owned = lock_folder(folder)
            rmtree(folder, ignore_errors=True)
            os.close(owned)


def _text(path: Path, spec: Model | Hardware) -> str:
    """The text of a spec; a `config.json` as the spec that it becomes."""
    if isinstance(spec, Hardware):
        return read_text(path, MAX_BYTES)
    return str(yaml.safe_dump(to_spec(spec), sort_keys=False, allow_unicode=True))


def changes(before: Scenario, after: Scenario) -> dict[str, str | None]:
    """The options of `after` that differ from `before`; None for one that is at its default again."""
    old, new = option_texts(before), option_texts(after)
    return {name: new.get(name) for name in OPTIONS if old.get(name) != new.get(name)}


def quantities(scenario: Scenario) -> Iterator[dict[str, str]]:
    """The editable quantities of the hardware: key, title and text."""
    path = spec_path(scenario.hardware_name, "hwspecs")
    content = {} if path is None else read_mapping(path)
    for key, title in EDITABLE.items():
        *sections, last = key.split(".")
        holder: Any = content
        for section in sections:
            holder = _inner(holder, section)
        value = _inner(holder, last)
        if isinstance(value, str) or key in ADDED:
            text = _SOURCE.sub("", value) if isinstance(value, str) else ""
            yield {"key": f"hw.{key}", "title": title or str(_inner(holder, "kind")), "text": text}


def _inner(holder: Any, key: str) -> Any:
    """What a mapping or a list holds under a key or a place; None if it holds nothing there."""
    if isinstance(holder, list) and key.isdigit():
        return holder[int(key)] if int(key) < len(holder) else None
    return holder.get(key) if isinstance(holder, Mapping) else None


def _spec_of(name: str) -> Path:
    """The spec file of the hardware of that name. Raises RooflineError."""
    hardware, _ = load_devices(name)
    path = spec_path(hardware.name, "hwspecs")
    assert path is not None, "it was loaded"
    return path


def _edited(path: Path, edits: Mapping[str, str]) -> str:
    """The text of a hardware spec with other quantities, which have no source then."""
    content = read_mapping(path)
    for key, value in edits.items():
        *sections, last = key.split(".")
        inner = content
        for section in sections:
            found = _inner(inner, section)
            inner = inner.setdefault(section, {}) if found is None and isinstance(inner, dict) else found
            if isinstance(inner, list):
                continue
            if not isinstance(inner, dict):
                raise SpecError(path.name, f"it has no {quote(key)}")
        inner[last] = _SOURCE.sub("", value)
    return yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=200)


def _file_name(text: str, option: str) -> str:
    found = re.search(r"^name:\s*['\"]?([\w.+ -]+)", text, re.MULTILINE)
    return f"my-{found[1].strip() if found else option}.yaml"


def _safe(name: str) -> str:
    """A file name without separators and control characters."""
    return re.sub(r"[^\w.+-]", "_", Path(name.replace("\\", "/")).name)[-80:].lstrip(".") or "spec.yaml"
