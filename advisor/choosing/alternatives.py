"""The alternatives of a decision: deployments of one model that differ in one thing.

Each function takes the scenario as it was asked and yields an `Alternative` for every choice; whether it runs and fits
is for the decision to find out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from enum import StrEnum
from types import MappingProxyType

from msgspec import Struct
from msgspec.structs import replace

from roofline.advisor.fitting import cpu_memory, of_means
from roofline.advisor.search.goal import Quality
from roofline.advisor.search.moves import context_parallel, is_consumer
from roofline.advisor.sizing.configurations import TENSOR, formats_for
from roofline.core.errors import RooflineError
from roofline.launch.bundle import refused
from roofline.launch.repository import repository_of
from roofline.scenario.analysis import static_batch
from roofline.scenario.parts import Part
from roofline.scenario.scenario import Scenario
from roofline.serving.layouts import Layout, laid_out, layouts_on, linked_devices, replicated, wide_exchange
from roofline.serving.load import Load
from roofline.serving.outcome import Targets
from roofline.serving.pools import Pools
from roofline.serving.ratios import ratios_on
from roofline.specs.engine import GGUF_ENGINE, list_engines
from roofline.specs.model_names import quantized_repositories
from roofline.specs.precision import Precision
from roofline.specs.servers import SERVERS, server_of
from roofline.techniques import techniques
from roofline.techniques.acceptance import is_superseded
from roofline.techniques.support import is_documented, runs, runs_gguf, runs_on


class Decided(StrEnum):
    """What may be chosen."""

    LAYOUT = "layout"
    FORMAT = "format"
    ENGINE = "engine"
    HARDWARE = "hardware"
    SPECULATION = "speculation"
    DISAGGREGATION = "disaggregation"
    OFFLOAD = "offload"
    API = "api"


class Alternative(Struct, frozen=True):
    """One choice: a deployment with its label, of which `copies` share the load, with prefill apart where it has pools.

    An API has no scenario.
    """

    label: str
    scenario: Scenario | None
    copies: int = 1
    pools: Pools | None = None


OFFLOADED = (0.25, 0.5, 0.75, 1.0)
"""Fractions of the weights in CPU memory that are compared."""

NOT_SERVED = ("hf-eager", "ideal", "gpt-fast", "deepspeed-mii", "llama-cpp-python")
"""Profiles without a server of their own that is compared: kernels alone, an eager loop, scripts and wrappers."""


PERSONAL = ("mlx", "ollama")
"""Engines of one's own computer."""


def layouts(scenario: Scenario) -> Iterator[Alternative]:
    """Tensor, pipeline, data and expert parallelism and replicas over the scenario's devices (`roofline.serving`).

    Of a scenario on one device: tensor parallelism over 1 to 8 devices of a node, as far as its links reach. With the
    cache divided among tensor ranks that copy it, and wide experts with the exchange that people run, beside them.
    """
    devices, linked = scenario.settings.parallel.devices, linked_devices(scenario.hardware)
    single = (Layout(tensor=count) for count in TENSOR if count <= linked)
    for layout, server in _laid_out(scenario, layouts_on(scenario, devices) if devices > 1 else single):
        yield Alternative(layout.label, server, layout.copies)
        if layout.degrees.keys() == {"tensor"} and devices > 1 and (divided := context_parallel(server)):
            label = f"TP {layout.tensor} DCP {divided.settings.parallel.context}"
            yield Alternative(replicated(label, layout.copies), divided, layout.copies)
        elif (name := wide_exchange(server)) is not None:
            yield Alternative(f"{layout.label}, {name}", server.with_(all_to_all=name), layout.copies)


def _laid_out(scenario: Scenario, layouts: Iterable[Layout]) -> Iterator[tuple[Layout, Scenario]]:
    """The layouts with the scenario of one server, without those that the scenario's other options rule out."""
    for layout in layouts:
        with suppress(RooflineError):
            yield layout, layout.on(scenario)


def formats(scenario: Scenario) -> Iterator[Alternative]:
    """As released, and formats of weights and KV cache that documents say the engine runs here, or a repository has."""
    plain, found = scenario.without("quant", "weights", "activations", "kv", "quantization"), set[Precision]()
    offered = [
        entry[:2] for entry in formats_for(scenario.model, scenario.hardware, scenario.profile, Quality.CALIBRATED)
    ]
    if is_documented(scenario.profile.name) and not runs_gguf(scenario.profile.name):
        caches, known = dict.fromkeys(kv for _, kv in offered), dict(offered)
        listed = quantized_repositories(scenario.model.name, repository_of(scenario))
        offered += [(scheme, kv) for scheme in sorted(listed.keys() - known.keys()) for kv in caches]
    for scheme, kv in offered:
        changed = plain.with_(quant=scheme or None, kv=kv or None)
        if changed.precision in found:  # a cache that is the engine's only one
            continue
        found.add(changed.precision)
        released = f"as released ({plain.run_precision.weights.name})"
        yield Alternative((scheme or released) + (f", KV {kv}" if kv else ""), changed)


def engines(scenario: Scenario) -> Iterator[Alternative]:
    """The engines with a server and documents; those of one's own computer where the hardware is one."""
    for name in list_engines():
        elsewhere = name in PERSONAL and not (is_consumer(scenario.hardware) and runs_on(name, scenario.hardware))
        elsewhere |= name in SERVERS and not server_of(name).takes(scenario.hardware.vendor)
        if is_documented(name) and name not in NOT_SERVED and not elsewhere:
            found = scenario.with_(engine=name)
            if found.library_format is not None:  # in the formats of the others, not in those of its library
                found = found.with_(dtype=scenario.precision.base.name)
            yield Alternative(name, found)


SEVERAL: Mapping[str, tuple[int, ...]] = MappingProxyType({"multi-token-prediction": (1, 2, 3), "eagle-3": (2, 3, 5)})
"""Draft tokens of methods that are compared with several numbers of them."""


def speculations(scenario: Scenario) -> Iterator[Alternative]:
    """No speculation, and each method that documents say the engine runs on this hardware, if its server has it."""
    slot = "speculative decoding"
    found = {entry.name: entry for entry in techniques().values() if entry.slot == slot}
    kept = [name for name in scenario.techniques if name.partition(":")[0] not in found]
    plain = scenario.with_(**{"with": kept or None})  # type: ignore[arg-type]
    yield Alternative("none", plain)
    told = not refused(plain)
    for name in found:
        if not runs(name, scenario.profile.name, scenario.hardware):
            continue
        if is_superseded(name, scenario.model):
            continue
        for written in (f"{name}:length={length}" for length in SEVERAL[name]) if name in SEVERAL else (name,):
            try:
                changed = plain.with_(**{"with": [*kept, written]})  # type: ignore[arg-type]
                if not told or not refused(changed):
                    yield Alternative(written, changed)
            except RooflineError:  # the model has no such head, or the method needs a draft that is not named
                break


RATIOS = 4
"""Layouts of prefill and decode apart that are compared, each with its best ratio."""


def disaggregations(scenario: Scenario, load: Load, limits: Targets) -> Iterator[Alternative]:
    """Prefill and decode together, and apart in the best ratio of the best layouts, on the same number of devices."""
    devices = scenario.settings.parallel.devices
    if devices < 2:
        raise RooflineError(
            "prefill and decode apart take at least two devices: name them, as in 8xh200", options=["hw"]
        )
    for layout, server in _laid_out(scenario, layouts_on(scenario, devices)):
        if not layout.is_mixed and layout.pipeline == 1 and layout.devices <= scenario.hardware.node_devices:
            yield Alternative(layout.label, server, layout.copies)
    link = "node" if devices <= scenario.hardware.node_devices else "network"
    scopes = {entry.scope for entry in scenario.hardware.interconnects}
    for ratio in ratios_on(scenario, load, devices, limits)[:RATIOS]:
        part = laid_out(scenario, tensor=ratio.prefill.tensor)
        pools = replace(ratio.pools, link=link if link in scopes else "host")
        yield Alternative(f"apart: {ratio.written}", part, 1, pools)


def offloads(scenario: Scenario) -> Iterator[Alternative]:
    """All on the devices, and parts of the weights, or the KV cache, in CPU memory; what llama.cpp's CPU computes."""
    plain = scenario.without("offload", "n_gpu_layers")
    yield Alternative("all on the device", plain)
    yield Alternative("KV cache in CPU memory", plain.with_(offload="kv=1"))
    for fraction in OFFLOADED:
        yield Alternative(f"{fraction:.0%} of the weights in CPU memory", plain.with_(offload=f"weights={fraction}"))
    named = scenario.given("engine") is not None and scenario.profile.name != GGUF_ENGINE
    if not named and not static_batch(plain, 1).memory.fits:
        with suppress(RooflineError):
            engine = plain.with_(engine=GGUF_ENGINE)
            computed = cpu_memory(of_means(engine))
            if computed is not None and (host := computed.scenario.settings.host) is not None:
                part = "experts" if host.part is Part.EXPERTS else "layers"
                yield Alternative(
                    f"{part}, {host.memory:.0%}, on the CPU (llama.cpp)", engine.with_(**computed.options)
                )


ALTERNATIVES: Mapping[Decided, Callable[[Scenario], Iterator[Alternative]]] = MappingProxyType(
    {
        Decided.LAYOUT: layouts,
        Decided.FORMAT: formats,
        Decided.ENGINE: engines,
        Decided.SPECULATION: speculations,
        Decided.OFFLOAD: offloads,
        Decided.API: layouts,
    }
)
"""The alternatives by decision, but for hardware, which `size` chooses, and pools, whose ratio is of a load."""
