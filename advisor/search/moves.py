"""Moves: candidate changes of a scenario: techniques, parallelism, engines, hardware and batches.

A move settles a slot; two moves of one slot exclude each other, and a move replaces what the scenario has there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import StrEnum
from functools import partial
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from roofline.advisor.formats import no_narrower
from roofline.advisor.search.goal import PRICES
from roofline.core.errors import RooflineError
from roofline.graph.parallel import Parallelism
from roofline.graph.ranks import key_copies
from roofline.launch.bundle import refused
from roofline.scenario.options import DEGREES
from roofline.scenario.scenario import Scenario
from roofline.serving.layouts import divisors, laid_out
from roofline.specs.engine import load_engine
from roofline.specs.hardware import Hardware
from roofline.specs.model import Model
from roofline.specs.precision import Precision
from roofline.specs.servers import SERVERS
from roofline.specs.sublayers import MixtureOfExperts
from roofline.techniques import check_request, techniques
from roofline.techniques.acceptance import is_superseded
from roofline.techniques.base import Price, Technique
from roofline.techniques.support import documented_engines, engines_with, is_documented, needs_no_engine, runs, support
from roofline.timing.exchanges import other_exchanges


class Kind(StrEnum):
    """What a move changes."""

    TECHNIQUE = "technique"
    PARALLELISM = "parallelism"
    ENGINE = "engine"
    HARDWARE = "hardware"
    BATCH = "batch"


class Move(Struct, frozen=True):
    """A change of a scenario: its name on the command line, its slot, its price, and its function.

    `assumes` says what the simulation takes as given, `source` where the technique is described. `devices` is the
    number that a move of parallelism needs, 0 where it is as before. `engines` are those that run it, None where it
    needs nothing of one; `engine` is the one that a move of engines changes to.
    """

    name: str
    title: str
    kind: Kind
    slot: str
    price: Price
    change: Callable[[Scenario], Scenario]
    assumes: str = ""
    source: str = ""
    devices: int = 0
    engines: frozenset[str] | None = None
    engine: str = ""

    def __hash__(self) -> int:
        return hash(self.name)  # sets of moves are looked up all the time

    def __call__(self, scenario: Scenario) -> Scenario:
        return self.change(scenario)

    def runs_on(self, engine: str) -> bool:
        return self.engines is None or engine in self.engines


PARALLEL_SLOTS = frozenset(
    {
        "sequence parallelism",
        "disaggregation",
        *(f"{kind}-parallelism" for kind in ("tensor", "pipeline", "data", "expert")),
    }
)
"""Slots of the catalogue that moves of parallelism set, or that need further devices."""

FACT_SLOTS = frozenset({"prefix", "retrieval", "cascade"})
"""Slots whose effect depends on workload properties that a scenario does not state: shared prefixes, documents."""

FEATURES = frozenset({"beam-search", "lora", "mixed-devices"})
"""Techniques with another purpose than speed: decoding strategies, training; and a second device that nobody named."""

SERVED_BY = ("vllm", "sglang", "tensorrt-llm", "llama.cpp")
"""Engines that may be advised: the bundled profiles of serving engines."""


def technique_moves() -> Iterator[Move]:
    """Every technique of the catalogue that can be simulated with its defaults."""
    yield from (technique_move(entry) for entry in _entries())


def _entries() -> Iterator[Technique]:
    for entry in techniques().values():
        needs = any(parameter.default is None and parameter.low is None for parameter in entry.parameters)
        if entry.change is not None and entry.slot not in PARALLEL_SLOTS and not needs:
            yield entry


def engine_techniques(scenario: Scenario) -> Iterator[Move]:
    """The techniques that the scenario's engine supports on its hardware, as the engine runs them.

    They are those that documents say its engine runs on this hardware (`roofline.techniques.support`) and does not run
    of itself, and those that need nothing of an engine: another prompt, another output, a smaller model of the same
    kind.
    For an engine that the documents do not know, they are those that any engine runs.
    """
    engine = scenario.profile.name
    for entry in _entries():
        if entry.name in FEATURES or is_superseded(entry.name, scenario.model):
            continue
        if needs_no_engine(entry):
            yield technique_move(entry)
            continue
        others = engines_with(entry.name)
        chosen = engine if is_documented(engine) else next(iter(others), "")
        found = support(entry.name, chosen)
        if found is None or not runs(entry.name, chosen, scenario.hardware):
            continue
        own = any(check_request(name).slot == entry.slot for name in scenario.techniques)
        lacked = "attention" not in (scenario.fusions or ()) if entry.name == "flash-attention" else own
        if found.default and not lacked:
            continue
        move = technique_move(entry, f"{entry.name}:{found.parameters}" if found.parameters else None)
        yield replace(move, engines=_running(entry, scenario, found.parameters))
    yield from _drafts(scenario, engine)
    entry, usual = techniques()["gguf"], support("gguf", engine)
    if usual is not None and runs("gguf", engine, scenario.hardware):
        move = technique_move(entry, f"{entry.name}:type={CAREFUL}")
        yield replace(move, engines=_running(entry, scenario, usual.parameters))


CAREFUL = "q8_0"
"""The GGUF file type offered beside the default: larger, with quality close to the unquantized model."""


def _running(entry: Technique, scenario: Scenario, parameters: str) -> frozenset[str]:
    """The engines that run a technique on the scenario's hardware; the scenario's own, too, if undocumented."""
    own = scenario.profile.name
    named = (*documented_engines(), own)
    found = {name: support(entry.name, name) for name in named if runs(entry.name, name, scenario.hardware)}
    able = {name for name, said in found.items() if said is not None and said.parameters == parameters}
    return frozenset(able if is_documented(own) else {*able, own})


def elsewhere(scenario: Scenario, engines: Iterable[Move]) -> Iterator[Move]:
    """The techniques that other engines run and the scenario's does not: available with a change of engine."""
    known = {move.name for move in engine_techniques(scenario)}
    for move in engines:
        for other in engine_techniques(move(scenario)):
            if other.name not in known and not other.runs_on(scenario.profile.name):
                known.add(other.name)
                yield other


DRAFTS: Mapping[str, str] = {
    "llama-3": "llama-3.2-1b",
    "llama-2": "llama-160m",
    "qwen2.5": "qwen2.5-0.5b",
    "qwen3": "qwen3-0.6b",
    "opt": "opt-125m",
    "gemma-2": "gemma-2-2b",
    "gemma-3": "gemma-3-1b",
}
"""The bundled draft model for model names with a prefix: same family and vocabulary."""

ACCEPTANCE = 0.6
"""Acceptance rate of a token of such a draft: 0.53 to 0.82 published for drafts of 77 M to 800 M before a T5 of
11 B, 0.57 and 0.61 for one of 100 M before a LaMDA of 137 B (Leviathan et al. 2023, Table 3)."""


def _drafts(scenario: Scenario, engine: str) -> Iterator[Move]:
    """Speculative decoding with a small model of the family, if the engine supports it."""
    entry = techniques()["speculative-decoding"]
    draft = next((small for start, small in DRAFTS.items() if scenario.model.name.startswith(start)), None)
    if draft is None or (is_documented(engine) and not runs(entry.name, engine, scenario.hardware)):
        return
    move = technique_move(entry, f"{entry.name}:draft={draft},acceptance={ACCEPTANCE}")
    assumed = f"{move.assumes}; chance that a token of {draft} is accepted: {ACCEPTANCE}"
    yield replace(move, assumes=assumed, engines=_running(entry, scenario, ""))


def technique_move(entry: Technique, request: str | None = None) -> Move:
    """The move that applies a technique, replacing another of its slot; `request` may give parameters."""
    written = entry.name if request is None else request
    change = partial(_with_technique, entry.slot, written)
    price = entry.price
    if entry.slot == "speculative decoding" and price is Price.LOSSLESS:
        price = Price.ENGINEERING  # a draft has to be found or trained
    assumed = "; ".join(
        f"{parameter.meaning}: {parameter.default:g}"
        for parameter in entry.parameters
        if isinstance(parameter.default, (int, float))
    )
    return Move(written, entry.title, Kind.TECHNIQUE, entry.slot, price, change, assumed, entry.reference)


def _with_technique(slot: str, written: str, asked: Scenario) -> Scenario:
    kept = [other for other in asked.techniques if check_request(other).slot != slot]
    changed = _unformatted(asked, slot).with_(techniques=[*kept, written])
    before = asked.plain.precision
    scheme = written.partition(":")[0]
    if (
        slot == "weight format"
        and asked.question.as_released
        and no_narrower(asked.model, before, changed.precision, scheme)
    ):
        raise RooflineError(f"the checkpoint is in {before.weights.name} already, and nothing would be narrower")
    return changed


def _unformatted(scenario: Scenario, slot: str) -> Scenario:
    """The scenario without the formats that a technique of the slot sets; the KV cache's format stays."""
    formats = scenario.question.formats
    if slot == "KV format" and formats.get("kv"):
        return scenario.with_(kv=None)
    if slot != "weight format" or not any(formats.get(part) for part in ("scheme", "weights", "activations")):
        return scenario
    precision = scenario.plain.precision
    kept = None if precision.kv == precision.base else precision.kv.name
    return scenario.with_(quant=None, quantization=None, weights=None, activations=None, kv=kept)


FEW_BITS = 3.5
"""Bits of a weight or cached element below which every method loses quality: four are the usual best trade-off, two or
fewer need methods of their own (Yuan et al. 2024, section 3.1.1)."""

FEW_ACTIVATION_BITS = 4.2
"""Bits of an activation, with its scales, below which quality suffers because of outliers, as four bits of a token or
of a group of 128; the blocks of 32 of MXFP4 and of 16 of NVFP4 are those of AMD's and NVIDIA's own checkpoints."""


def price_of(move: Move, scenario: Scenario) -> Price:
    """The price of a move, raised to a loss of quality if the resulting formats have too few bits."""
    precision = scenario.precision
    assert isinstance(precision, Precision)
    if move.slot not in ("weight format", "KV format"):
        return move.price
    linear = precision.weights.format_of("up_proj", precision.base, scenario.model.layers)
    activations = precision.activations or precision.base
    few = min(linear.bits, precision.kv.bits) < FEW_BITS or activations.bits < FEW_ACTIVATION_BITS
    return max(move.price, Price.LOSSY, key=PRICES.index) if few else move.price


def parallel_moves(scenario: Scenario, devices: Iterable[int]) -> Iterator[Move]:
    """Every split of devices into tensor, pipeline and data parallelism, with expert parallelism over all."""
    present = replace(scenario.plain.settings.parallel, micro_batches=1).on(scenario.hardware)
    for count in devices:
        for degrees in _splits(count, scenario.model):
            if present != Parallelism(**degrees).on(scenario.hardware):
                yield _parallel(degrees)


def _splits(count: int, model: Model) -> Iterator[dict[str, Any]]:
    experts = any(isinstance(group.layer.feed_forward, MixtureOfExperts) for group in model.groups)
    for tensor in divisors(count):
        for pipeline in divisors(count // tensor):
            if pipeline > model.layers:
                continue
            plain = {"tensor": tensor, "pipeline": pipeline, "data": count // tensor // pipeline}
            yield plain
            if experts and tensor * plain["data"] > 1:
                yield {**plain, "expert": tensor * plain["data"]}


def _parallel(degrees: Mapping[str, int]) -> Move:
    count = degrees["tensor"] * degrees["pipeline"] * degrees["data"]
    name = " ".join(f"{DEGREES[key]}={value}" for key, value in degrees.items() if value > 1) or "tp=1"
    title = f"{count} device{'s' if count > 1 else ''} as {name}"
    change = partial(laid_out, **degrees)
    return Move(name, title, Kind.PARALLELISM, "parallelism", Price.ENGINEERING, change, devices=count)


def _with(options: Mapping[str, Any], scenario: Scenario) -> Scenario:
    return scenario.with_(**options)


def exchange_moves(scenario: Scenario) -> Iterator[Move]:
    """The other exchanges of expert ranks that the scenario's engine runs when asked."""
    parallel = scenario.plain.settings.parallel.on(scenario.hardware)
    for name in other_exchanges(scenario.profile, scenario.hardware, parallel):
        change, own = partial(_with, {"all_to_all": name}), frozenset({scenario.profile.name})
        title = f"the exchange {name} of expert ranks"
        yield Move(f"all-to-all={name}", title, Kind.PARALLELISM, "exchange", Price.LOSSLESS, change, engines=own)


def context_parallel(scenario: Scenario) -> Scenario | None:
    """The same with all copies of keys of tensor ranks divided (decode context parallelism), where its server can."""
    ranks = key_copies(scenario.model, scenario.settings.parallel.tensor)
    if ranks < 2 or scenario.profile.name not in SERVERS:
        return None
    divided = scenario.with_(dcp=ranks)
    return None if refused(divided) else divided


def context_moves(scenario: Scenario) -> Iterator[Move]:
    """Decode context parallelism over all copies of keys, where the scenario has such copies and none of it."""
    if scenario.plain.settings.parallel.context == 1 and (divided := context_parallel(scenario)) is not None:
        ranks, own = divided.settings.parallel.context, frozenset({scenario.profile.name})
        title, change = f"the KV cache's tokens divided among {ranks} ranks", partial(_with, {"dcp": ranks})
        yield Move(f"dcp={ranks}", title, Kind.PARALLELISM, "KV cache copies", Price.LOSSLESS, change, engines=own)


def engine_moves(scenario: Scenario) -> Iterator[Move]:
    """The other engines that run on this hardware and support the scenario's techniques."""
    for name in SERVED_BY:
        if name == scenario.profile.profile or not _serves(name, scenario.hardware):
            continue
        kept = [check_request(written).name for written in scenario.techniques]
        if not all(runs(each, name, scenario.hardware) for each in kept if engines_with(each)):  # documented for any
            continue
        title, change = f"the engine {load_engine(name).heading}", partial(_with, {"engine": name})
        yield Move(f"engine={name}", title, Kind.ENGINE, "engine", Price.ENGINEERING, change, engine=name)


def _serves(engine: str, hardware: Hardware) -> bool:
    if engine == "llama.cpp":
        return hardware.kind in ("gpu", "cpu", "soc")
    if engine == "tensorrt-llm":
        return hardware.vendor == "NVIDIA"
    return hardware.kind == "gpu"


CONSUMER_FAMILIES = ("apple", "core", "rdna2", "rdna3", "rdna3.5", "rdna4", "alchemist", "battlemage")
CONSUMER_NAMES = ("rtx-", "gtx-", "titan-", "dgx-spark", "jetson")
"""NVIDIA's consumer devices go by name, since its families also have datacenter devices."""


def is_consumer(hardware: Hardware) -> bool:
    """Whether a device is sold for a desktop computer or is one."""
    named = hardware.name.startswith(CONSUMER_NAMES) and not hardware.name.endswith("-server")
    return hardware.family in CONSUMER_FAMILIES or named


def hardware_move(hardware: Hardware) -> Move:
    """The scenario on other hardware."""
    change = partial(_with, {"hw": hardware, "price": None})  # a given price is that of the given device
    return Move(f"hw={hardware.name}", hardware.title, Kind.HARDWARE, "hardware", Price.ENGINEERING, change)


BATCHES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096)
"""Candidate batches."""


def batch_move(batch: int) -> Move:
    """Another batch."""
    title, change = f"{batch} sequences at once", partial(_with, {"batch": batch})
    return Move(f"batch={batch}", title, Kind.BATCH, "batch", Price.LOSSLESS, change)
