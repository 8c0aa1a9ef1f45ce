"""The table of engines' options, `servers.yaml`: which of its words set a setting, by its version."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache, cached_property
from typing import Any

from msgspec import Struct

from roofline.core.documents import bundled
from roofline.core.errors import RooflineError, UnknownNameError, quote
from roofline.specs.hardware import Hardware
from roofline.specs.records import record
from roofline.specs.schemes import GGUF_SCHEMES
from roofline.specs.version import Version, between

SERVERS = ("vllm", "sglang", "tensorrt-llm", "llama.cpp", "mlx", "ollama")
"""The engines that can be launched."""

TABLE = "servers.yaml"
"""The file of the table."""


class Row(Struct, frozen=True, forbid_unknown_fields=True):
    """The words that set a setting, in versions `since` one and `before` another; `source` is the file that has them.

    `values` are the engine's names of our values; None takes a value as it is. `less` is what the engine's count lacks
    of ours.
    """

    words: str
    values: Mapping[str, str] | None = None
    less: int = 0
    since: str = ""
    before: str = ""
    source: str = ""

    def holds(self, version: str) -> bool:
        """Whether a version has the words."""
        return between(version, self.since, self.before)


class Server(Struct, frozen=True, dict=True, forbid_unknown_fields=True):
    """An engine: how it is started.

    `command` is that of its server, with {model} where the model is an argument. `versions` are those whose definitions
    were read, oldest first; `images` the containers by vendor or kind of hardware, with the version as {}. `loads` are
    the schemes of checkpoints that it reads, and `drafts` the settings of each technique that drafts. `vendors` are
    those of its devices, () for any; `program` is the command's path in a container where that does not search for it.
    An engine that `allots` has the KV cache of all slots from its start. `file` is what a GGUF file has to be.
    `plugins` are the packages by family of devices without which the engine does not run on them. Settings in `totals`
    are those of all data-parallel ranks of attention together. `store` is the folder of the host that holds
    what it fetches, and that folder in its container.
    """

    title: str
    profile: str
    command: str
    port: int
    versions: tuple[str, ...]
    images: Mapping[str, str]
    loads: tuple[str, ...]
    benchmark: str
    repository: str
    settings: Mapping[str, Mapping[str, Any]]
    drafts: Mapping[str, Mapping[str, str | int]]
    name: str = ""
    vendors: tuple[str, ...] = ()
    program: str = ""
    allots: bool = False
    file: str = ""
    store: str = "${HF_HOME:-~/.cache/huggingface}:/root/.cache/huggingface"
    plugins: Mapping[str, str] = {}
    totals: tuple[str, ...] = ()

    @cached_property
    def rows(self) -> Mapping[str, tuple[Row, ...]]:
        """The rows of each setting."""
        found: dict[str, tuple[Row, ...]] = {}
        for source, settings in self.settings.items():
            for setting, given in settings.items():
                entries = given if isinstance(given, list) else [given]
                rows = ({"words": entry} if isinstance(entry, str) else entry for entry in entries)
                found[setting] = tuple(
                    record(Row, {**row, "source": source}, TABLE, f"{self.name}.settings") for row in rows
                )
        return found

    def plugin(self, hardware: Hardware) -> str:
        """The package that a device needs beside the engine; "" for none."""
        return self.plugins.get(hardware.family or "", "")

    def row(self, setting: str, version: str) -> Row:
        """The row of a setting; raises RooflineError where the engine has no option for it."""
        for row in self.rows.get(setting, ()):
            if row.holds(version):
                return row
        raise RooflineError(
            f"{self.title} {version}".rstrip()
            + f" has no option for {setting}"
            + (": another version has" if setting in self.rows else "")
        )

    def has(self, setting: str, version: str) -> bool:
        """Whether a version has an option for a setting."""
        return any(row.holds(version) for row in self.rows.get(setting, ()))

    def reads_file(self, scheme: str | None) -> bool:
        """Whether it loads weights of a scheme from a GGUF file."""
        return "gguf" in self.loads and (len(self.loads) == 1 or scheme in GGUF_SCHEMES)

    def takes(self, vendor: str | None) -> bool:
        """Whether it runs on a vendor's devices."""
        return not self.vendors or vendor in self.vendors

    def check_vendor(self, vendor: str | None) -> None:
        """Raise RooflineError where it does not run on a vendor's devices."""
        if not self.takes(vendor):
            raise RooflineError(f"{self.title} does not run on {vendor}'s devices", options=["engine"])

    def version_of(self, requested: str) -> str:
        """The version that is launched; raises RooflineError for one that is older than all whose options are known."""
        if not requested:
            return self.versions[-1]
        if len(self.versions) > 1 and Version(requested) < Version(self.versions[0]):
            raise RooflineError(f"the options of {self.title} before {self.versions[0]} are not known, got {requested}")
        return requested

    def newer(self, requested: str) -> str:
        """That a version is newer than all whose options are known, in words; "" for others."""
        known = self.versions[-1]
        if not requested or len(self.versions) == 1 or Version(requested) <= Version(known):
            return ""
        return f"{self.title} {requested} as {known}, the newest known"

    def words(self, setting: str, value: object, version: str) -> Iterator[str]:
        """The words that set a setting to a value; raises RooflineError for a value that the engine has not."""
        row = self.row(setting, version)
        value = value - row.less if isinstance(value, int) and row.less else value
        text = (
            str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)
        )
        if row.values is not None:
            if text not in row.values:
                server = f"{self.title} {version}".strip()
                raise RooflineError(f"{server} has no {setting} {quote(text)[1:-1]}; it has {', '.join(row.values)}")
            text = row.values[text]
        for word in row.words.split(" "):
            yield word.replace("{}", text)


@cache
def server_of(name: str) -> Server:
    """The engine of a name; raises UnknownNameError."""
    if name not in SERVERS:
        raise UnknownNameError("engine to launch", name, SERVERS)
    return _table()[name]


@cache
def _table() -> Mapping[str, Server]:
    rows = bundled(f"specs/{TABLE}").items()
    return {name: record(Server, {**entry, "name": name}, TABLE, name) for name, entry in rows}


def check_setting(engine: str, version: str, setting: str) -> None:
    """Raise RooflineError where a profile's engine is not known to have an option of a scenario."""
    server = next((each for each in _table().values() if each.profile == engine), None)
    if server is None:
        raise RooflineError(f"{engine} is not known to have {setting}: omit it", options=[setting])
    server.row(setting, version or server.versions[-1])
