"""A launch in the making: a server with its version, model, slots and context, and its command on each node."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from functools import cached_property
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from roofline.core.errors import RooflineError
from roofline.launch.command import (
    UNNAMED_DRAFT,
    Command,
    Drafted,
    Shell,
    checkpoint,
    drafted_of,
    needed,
    needs_of,
    server_command,
)
from roofline.launch.manifests import VISIBLE
from roofline.launch.memory import Room, room_of
from roofline.launch.repository import name_of, repository_of
from roofline.launch.settings import Wanted, has_projector, machines_of, scheme_of, server_settings, tier_settings
from roofline.scenario.kv_capacity import startable
from roofline.scenario.scenario import Scenario
from roofline.serving.sessions.tiers import split_tiers
from roofline.specs.servers import Server, server_of
from roofline.techniques.unsupported import not_started

MASTER_PORT = 5000
"""The port on which SGLang's nodes meet (its documentation of several nodes)."""

EVERYWHERE = "0.0.0.0"  # noqa: S104 - in a container, of which only its port is published
"""The address of a server that its container's port reaches."""


class Listen(Enum):
    """What a command says of where its server listens: nothing, the port, or every address and the port."""

    UNSAID = 0
    PORT = 1
    EVERYWHERE = 2


class Plan(Struct, frozen=True, dict=True):
    """A server of a scenario: `slots` requests at once, with `room` in memory; `hits`: prompts are partly cached.

    `trusted`: it may run code from the model's repository. `copies` are such servers, each on devices of its own, among
    which a router divides the requests. `tiers` of its KV cache are as `--tiers` writes them.
    """

    scenario: Scenario
    server: Server
    version: str
    slots: int
    room: Room
    hits: bool = False
    trusted: bool = False
    copies: int = 1
    tiers: str = ""

    @cached_property
    def settings(self) -> list[Wanted]:
        """The settings of the server; raises RooflineError for what it has no option for."""
        room = self.room
        found = server_settings(self.scenario, self.server, self.version, self.slots, room.context, room.limited)
        if self.hits:
            found.append(Wanted("prefix_cache", True, pinned=True))
        found += tier_settings(self.tiers, self.scenario, self.server) if self.tiers else []
        repository = repository_of(self.scenario)
        if repository and self.server.reads_file(self.scheme) and "tokenizer" in self.server.rows:
            found.append(Wanted("tokenizer", repository))  # a file's own is converted slowly, and not always right
        return found

    @property
    def scheme(self) -> str | None:
        """The scheme of weights that are not as released, or those of a GGUF file."""
        return scheme_of(self.scenario) or (
            self.scenario.precision.weights.name if self.scenario.model.in_gguf else None
        )

    @cached_property
    def checkpoint(self) -> tuple[str, str]:
        """What the server loads, and a sentence where that is a placeholder."""
        online = any(setting == "quant" for setting, _, _ in self.settings)
        return checkpoint(self.scenario, self.server, self.scheme, online)

    @cached_property
    def drafted(self) -> Drafted:
        """The technique that drafts."""
        return drafted_of(self.scenario, self.server)

    @property
    def nodes(self) -> int:
        """The machines of the server."""
        return machines_of(self.scenario)

    @property
    def devices(self) -> int:
        """The devices of each node."""
        return -(-self.scenario.settings.parallel.devices // self.nodes)

    def notes(self) -> Iterator[str]:
        """What the user has to replace, or to know."""
        server, needs = self.server, needs_of(repository_of(self.scenario))
        if self.copies > 1:
            one_of = "" if self.device_sets else "One of "  # one script starts all servers of a machine
            yield f"{one_of}{self.copies} servers, each on its own devices, behind a router that the benchmark asks"
        if newer := server.newer(self.scenario.profile.version):
            yield newer
        if plugin := server.plugin(self.scenario.hardware):
            yield f"{server.title} runs on {self.scenario.hardware.name} with its plugin {plugin}"
        if self.checkpoint[1]:
            yield self.checkpoint[1]
        if has_projector(self.scenario, server):
            yield f"mmproj-{name_of(self.scenario)}.gguf: the path of your file of its image encoder"
        needs_draft = self.drafted.technique and "$draft" in server.drafts[self.drafted.technique].values()
        if needs_draft and self.drafted.path == UNNAMED_DRAFT:
            yield f"{self.drafted.path}: the path of the draft of {self.drafted.technique}"
        connector = split_tiers(self.tiers, self.scenario)[0] if self.tiers else None
        if connector is not None and connector.note:
            yield connector.note
        if any(one.setting == "lora_rank" for one in self.settings):
            yield "your adapters: load them, and name them in the benchmark, whose requests are for the base model"
        if needs is not None and needs.remote_code and not self.trusted and "trust_remote_code" in server.rows:
            yield f"vLLM's recipe of {needs.recipe} adds --trust-remote-code, to run the repository's code: say it here"

    @property
    def device_sets(self) -> list[str]:
        """The device numbers of each server, such as "0,1", where several share one machine; otherwise none."""
        whole = self.devices * self.copies
        hardware = self.scenario.hardware
        if self.copies == 1 or self.nodes > 1 or whole > hardware.machine_devices or hardware.vendor not in VISIBLE:
            return []
        numbers = [str(number) for number in range(whole)]
        return [",".join(numbers[first : first + self.devices]) for first in range(0, whole, self.devices)]

    def command(
        self,
        *,
        pinned: bool = True,
        needs: bool = True,
        node: int = 0,
        listen: Listen = Listen.PORT,
        port: int | None = None,
        only: str = "",
    ) -> Command:
        """The server's command on a node, 0 the leader and 1 each of the others.

        Without `pinned` settings it has those alone that differ from the engine's, without `needs` no parsers. `port`
        is another than the engine's own, and `only` the numbers of the devices that it may see.
        """
        settings = [one for one in self.settings if (pinned or not one.pinned) and one.setting != "nodes"]
        settings += self._of_node(node)
        settings += [Wanted("draft", self.drafted)] if self.drafted.technique else []
        settings += needed(needs_of(repository_of(self.scenario)), self.server, self.scenario.hardware, needs)
        settings += [Wanted("trust_remote_code", True)] if self.trusted else []
        host = EVERYWHERE if listen is Listen.EVERYWHERE else "127.0.0.1" if port is not None else ""
        port = port or self.server.port
        if host:
            own = "address" in self.server.rows
            settings.append(Wanted("address", f"{host}:{port}") if own else Wanted("host", host))
        if listen is not Listen.UNSAID:
            settings.append(Wanted("port", port, pinned=True))
        found = server_command(self.server, self.version, settings, self.checkpoint[0], self.drafted)
        if only:
            seen = {VISIBLE[self.scenario.hardware.vendor]: only}
            found = found._replace(variables={**seen, **found.variables})
        return found

    def _of_node(self, node: int) -> list[Wanted]:
        """What a node of several is told: its rank, and the address of the leader."""
        if self.nodes == 1:
            return []
        data = self.scenario.settings.parallel.data
        headless = [Wanted("headless", True)] if node and "headless" in self.server.rows else []
        if self.server.name == "vllm" and data > 1:
            local = data // self.nodes
            start = Shell(f"$((NODE_RANK * {local}))")
            return [
                Wanted("dp_local", local),
                Wanted("dp_start", start),
                Wanted("dp_address", Shell("$LEADER")),
                *headless,
            ]
        rank = Shell("$NODE_RANK") if node else 0
        leader = Shell(f"$LEADER:{MASTER_PORT}" if self.server.name == "sglang" else "$LEADER")
        return [Wanted("nodes", self.nodes), Wanted("node_rank", rank), Wanted("leader", leader), *headless]

    def pool(self, replica: Scenario) -> Plan:
        """The plan of replicas of prefill or of decode, which may have other hardware and another layout."""
        own, spread = self.scenario, replica.settings.parallel.on(replica.hardware)
        if (replica.hardware, spread) == (own.hardware, own.settings.parallel.on(own.hardware)):
            return self
        layout: dict[str, Any] = dict.fromkeys(("enable_expert_parallel", "dp_attention", "nodes"))
        layout |= {"tp": spread.tensor, "pp": spread.pipeline, "dp": spread.data, "ep": spread.expert}
        return replace(self, scenario=own.with_(hw=replica.hardware, **layout))


def plan_of(
    scenario: Scenario, name: str | None, slots: int, needed: int, hits: bool = False, trusted: bool = False
) -> Plan:
    """The plan of a scenario's server for requests of at most `needed` tokens, by default of the scenario's engine.

    Raises RooflineError where the engine cannot run it, or does not start.
    """
    profile = scenario.profile
    server = server_of(profile.name if name is None else name)
    if server.profile != profile.name:
        raise RooflineError(
            f"{server.title} is predicted as {server.profile}, not as {profile.name}", options=["engine"]
        )
    server.check_vendor(scenario.hardware.vendor)
    for part in not_started(scenario):
        raise RooflineError(f"{server.title} is not known to run {part}: no command starts it", options=["engine"])
    version = server.version_of(profile.version)
    given, total = scenario.plain.settings.sequences, scenario.given("ctx_size")
    slots = given or slots
    if server.allots and total is not None and needed * slots > total:
        raise RooflineError(f"{total} tokens have no room for {slots} requests of {needed}", options=["ctx_size"])
    scenario = startable(scenario) if total is None else scenario.with_(max_num_seqs=slots)  # which share the tokens
    return Plan(scenario, server, version, slots, room_of(scenario, slots, needed, server.allots), hits, trusted)
