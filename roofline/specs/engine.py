"""Engine profiles: fusions, CUDA graphs, and the host time of the serving software.

A forward pass takes

    t = max(kernels + gap N, [no CUDA graph] issue N) + step + sequence batch
    t = max(kernels + gap N, [no CUDA graph] issue N, sequence batch) + step        with overlap scheduling

for N kernels, of which operators that the engine leaves `unfused` are several. `kernels` is the sum of their times,
which include the engine's `launch`, `memory`, `kv_reread`, `collective`, `attention`, `half_sums`, `dequantization`,
`integer_blocks` and `kv_conversion`, multiplied by `prefill` or `decode`. The host launches kernels ahead of the
device: the slower of the two counts; a CUDA graph removes `issue`. `step` and `sequence` are scheduling, sampling and
detokenisation between two passes; drafts of speculative decoding follow each other within one step, each after
`draft_step`, and `sequence` counts for each accepted token. With overlap scheduling (vLLM's asynchronous scheduling)
the host prepares the sequences of the next pass while the device computes this one, and only `step` stays between two
passes. When shared experts run concurrently with routed experts (`shared_stream`), `kernels` has the longer branch, and
at least the bound of both together. A profile holds for a range of versions (`roofline.specs.engine_versions`) and one
benchmark harness, which its file states.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cached_property, lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import numpy as np
from msgspec import Meta
from msgspec.structs import replace

from roofline.core.checked import Checked
from roofline.core.documents import bundled, bundled_path, read_mapping
from roofline.core.errors import RooflineError, UnknownNameError, quote, suggest
from roofline.core.parameters import Parameter, Unit
from roofline.specs.engine_versions import aliases_of, split_name
from roofline.specs.formats import find_format
from roofline.specs.hardware import KINDS, Hardware
from roofline.specs.library import ENGINES, File, is_own_path, own_files, written
from roofline.specs.names import undescribed
from roofline.specs.reserve import NO_RESERVE, Reserve
from roofline.specs.scheduler import PLAIN_SCHEDULER, Scheduler
from roofline.specs.sublayers import MIXERS
from roofline.specs.version import Version, nearest
from roofline.specs.weight_only import WEIGHT_ONLY_KERNELS

if TYPE_CHECKING:
    from roofline.specs.model import Model

PHASES = ("prefill", "decode")

GATED_DELTA_RULE_KERNELS = CHUNKED, _ = ("chunked", "fused")
"""Prefill kernels of the gated delta rule: several kernels over chunks of the prompt, or one fused kernel."""

_TABLES: Mapping[str, Mapping[str, Any]] = bundled("specs/engine_parameters.yaml")

FUSIONS: Mapping[str, tuple[tuple[str, ...], ...]] = MappingProxyType(
    {name: tuple(map(tuple, kernels)) for name, kernels in _TABLES["fusions"].items()}
)
"""The operators that each fusion computes in one kernel."""

SHARED_EXPERTS = frozenset(
    {"shared_gate_proj", "shared_up_proj", "shared_act", "shared_down_proj", "shared_expert_gate", "shared_gating"}
)
ROUTED_EXPERTS = frozenset(
    {"router", "router_topk", "expert_gate_proj", "expert_up_proj", "expert_act", "expert_down_proj", "expert_combine"}
)
"""The two branches of an MoE layer: they read the same input and their outputs are added."""

PARAMETERS = tuple(Parameter(name, Unit(row[0]), *row[1:]) for name, row in _TABLES["parameters"].items())
"""The numeric parameters of a profile, with their defaults."""

RANGES: Mapping[str, tuple[float, float]] = MappingProxyType(
    {parameter.name: (parameter.low, parameter.high) for parameter in PARAMETERS}
)
"""The least and the largest value of each parameter, in base units."""

HOSTS = 1.58
"""p90 over p50 of the time to launch a kernel on different hosts: 88 us on one and 43 on another with vLLM
(vllm-project/vllm-omni, issue 7960), where 60 are expected. Their logarithms deviate by 0.36."""

ALL_REDUCES = ("custom_all_reduce", "trtllm_all_reduce")
"""Engines' own all-reduce kernels (`roofline.timing.kernels.collective`)."""

Times: TypeAlias = Annotated[float, Meta(ge=1, le=1e3)]


class Engine(Checked, frozen=True, dict=True):
    """An engine profile: how one release of an engine runs a model, beside the constants of its kernels.

    The profile:

    * `name`, `title`: the name of the engine for commands, and for people.
    * `version`: as requested, "" for the newest; `starts`: the versions from which the profiles of its file hold,
      oldest first, () if it has one for all.
    * `parameters`: the numbers of `PARAMETERS`, read as `engine["gap"]`; `vendors`: those that differ on the hardware
      of a family, kind or vendor, where the engine has another backend (llama.cpp's Metal kernels, AITER's on AMD);
      `mixers`: those that differ for mixtures of experts with such a token mixer, of which a release lacked kernels.
    * `spread`: p10 and p90 of measured over predicted whole-model time, on top of the kernels' own intervals.
    * `sources`: the data that the profile was fitted to.

    Passes and the host:

    * `graphs`: phases that replay CUDA graphs; `replayed`: the most sequences of a rank's decode step that they replay
      (0: any).
    * `overlap`: the host schedules the next pass while the device computes this one; not with `serial_drafts` where
      drafts are verified.
    * `handled`: tokens of a sequence that the host handles after a pass, of drafts those accepted.
    * `shared_stream`: passes of up to this many tokens, if replayed, run shared experts on a second stream, on hardware
      of the families `shared_on` (none named: on all), as kernels that fill a device leave no room for others.
    * `prompt_logits`: it computes the logits of all prompt tokens, not of the last alone.
    * `split_layers`: several devices each hold some of the layers by default, not a part of every layer.
    * `memory`: what it reserves of a device's memory (`roofline.specs.reserve`); `scheduler`: how it fills its steps
      under load (`roofline.specs.scheduler`).

    Kernels:

    * `fusions`: names of FUSIONS.
    * `unfused`: kinds of operators that it runs as several kernels on accelerators, with their number, and their time
      on the device relative to one kernel's; norms also by their own kind, activations by "gated" or their name.
    * `all_reduce`: the engine's own all-reduce kernel by the first word of a link's kind; the faster of it and NCCL is
      used, over PCIe the one that the engine takes (`roofline.timing.collectives`).
    * `fused_reduce`: the all-reduce over NVLink of mixtures of experts that also adds the residual and normalises, by
      the name of hardware or its family ("": none).
    * `gated_delta_rule`: its prefill kernel (`roofline.timing.kernels.gated_delta_rule`).
    * `vector_experts`: its experts multiply matrices by the vectors of few tokens.
    * `told`: the kernels that it has or was told to run, by op and format (moe w4a16_mxfp4), not the release's own, or
      by op what those cost that take the place of tuned ones (`roofline.timing.variants`).
    * `kernels_of`: the measured engine (and version) that the profile was fitted with, where that is another one;
      `also`: by family of hardware and kind of kernel the engine that a further kernel of this one was measured with,
      where it has no measured second one itself; the faster is used.
    * `own_kernels`: hardware kinds whose calibration does not apply, because it measured other kernels (PyTorch's on
      CPUs); `own_kernels_of`: the engine that has them, where that is another one.
    * `at_roofs`: nobody measured its kernels, and each is expected at its bound.

    Formats:

    * `checkpoints`: quantization schemes of released checkpoints that it runs, and the scheme it runs each in; others
      are dequantized to 16 bits (None: all run as released).
    * `weight_only`: the kernel (`roofline.specs.weight_only`) of each weight format that linear layers convert to 16
      bits; formats that it leaves out run a kernel that was not measured, and with no entry at all the upcast is added
      to the 16-bit GEMM.
    * `unpacking`: integer instructions for each weight of formats that kernels of few tokens unpack slower than
      NVIDIA's memory reads them.
    * `int8_activations`: vendors and kinds of hardware on which linear layers with integer weights quantize their
      inputs to INT8 and multiply integers; `mxfp4_activations`: families of hardware on which they quantize those of
      weights in MXFP4 likewise.
    * `fp8_inputs`: schemes of checkpoints whose experts it gives FP8 inputs on Blackwell with HBM.
    * `caches`: by token mixer the format of the only cache that its kernels read.
    * `kv_scales`: tools whose checkpoints with scales of an FP8 cache it serves with one, unasked.
    """

    name: Annotated[str, Meta(min_length=1)]
    title: str = ""
    fusions: tuple[str, ...] = ()
    graphs: tuple[str, ...] = PHASES
    parameters: Mapping[str, float] = {}
    spread: tuple[Annotated[float, Meta(ge=1e-3, le=1)], Times] = (1.0, 1.0)
    sources: tuple[str, ...] = ()
    int8_activations: tuple[str, ...] = ()
    mxfp4_activations: tuple[str, ...] = ()
    unpacking: Mapping[str, Annotated[float, Meta(gt=0, le=1000)]] = {}
    checkpoints: Mapping[str, str] | None = None
    fp8_inputs: tuple[str, ...] = ()
    kv_scales: tuple[str, ...] = ()
    vector_experts: bool = False
    caches: Mapping[str, str] = {}
    told: Mapping[str, str] = {}
    overlap: bool = False
    serial_drafts: bool = False
    handled: Times = 1.0
    shared_stream: Annotated[int, Meta(ge=0, le=10**9)] = 0
    shared_on: tuple[str, ...] = ()
    all_reduce: Mapping[str, str] = {}
    fused_reduce: Mapping[str, str] = {}
    gated_delta_rule: str = CHUNKED
    own_kernels: tuple[str, ...] = ()
    own_kernels_of: str = ""
    at_roofs: bool = False
    unfused: Mapping[str, tuple[Times, Times]] = {}
    prompt_logits: bool = False
    split_layers: bool = False
    weight_only: Mapping[str, str] = {}
    kernels_of: str = ""
    also: Mapping[str, Mapping[str, str]] = {}
    vendors: Mapping[str, Mapping[str, float]] = {}
    mixers: Mapping[str, Mapping[str, float]] = {}
    replayed: Annotated[int, Meta(ge=0, le=10**9)] = 0
    version: str = ""
    starts: tuple[str, ...] = ()
    memory: Reserve = NO_RESERVE
    scheduler: Scheduler = PLAIN_SCHEDULER

    def __post_init__(self) -> None:
        Checked.__post_init__(self)
        for given in (self.parameters, *self.vendors.values(), *self.mixers.values()):
            for name, value in given.items():
                if name not in RANGES:
                    raise UnknownNameError("parameter of an engine", name, RANGES)
                low, high = RANGES[name]
                if not low <= value <= high:
                    raise RooflineError(f"{name} of the engine {self.name} must be {low:g} to {high:g}, got {value}")
        for key, names, known in (
            ("fusions", self.fusions, FUSIONS),
            ("graphs", self.graphs, PHASES),
            ("own_kernels", self.own_kernels, KINDS),
            ("mixers", self.mixers, MIXERS),
            ("caches", self.caches, MIXERS),
            ("all_reduce", self.all_reduce.values(), ALL_REDUCES),
            ("fused_reduce", self.fused_reduce.values(), ("", *ALL_REDUCES)),
            ("gated_delta_rule", (self.gated_delta_rule,), GATED_DELTA_RULE_KERNELS),
            ("weight_only", self.weight_only.values(), WEIGHT_ONLY_KERNELS),
        ):
            for name in names:
                if name not in known:
                    raise RooflineError(f"unknown name {quote(name)} in {quote(key)}{suggest(name, known)}")
        for name in self.caches.values():
            find_format(name)  # raises for a name that no format has
        measured = (self.kernels_of, self.own_kernels_of, *(one for own in self.also.values() for one in own.values()))
        for name in filter(None, measured):
            if split_name(name)[0] not in bundled_profiles():
                raise UnknownNameError("engine with measured kernels", name, bundled_profiles())
        low, high = self.spread
        if not 1e-3 <= low <= 1 <= high <= 1e3:
            raise RooflineError(f"the spread of the engine {self.name} must be below and above 1, got {self.spread}")

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        names = (self.name, self.version, self.graphs, self.fusions, self.gated_delta_rule, *self.own_kernels)
        flags = (self.overlap, self.shared_stream, self.shared_on, self.prompt_logits, self.replayed)
        return hash((*names, *flags, *self.all_reduce.items(), *self.parameters.items()))

    @property
    def label(self) -> str:
        """The name with the requested version: `vllm 0.11`."""
        return f"{self.name} {self.version}".rstrip()

    @property
    def heading(self) -> str:
        """The title, or else the name, with the requested version: `vLLM 0.11`."""
        return f"{self.title or self.name} {self.version}".rstrip()

    @property
    def profile(self) -> str:
        """The request by which all versions with this profile can be named: `vllm`, or `vllm@0.8` for older ones."""
        if not self.version or not self.starts:
            return self.name
        start = nearest(Version(self.version), map(Version, self.starts)).text
        return self.name if start == self.starts[-1] else f"{self.name}@{start}"

    @property
    def version_note(self) -> str:
        """The profile that is used for the requested version, in words; "" if none was requested."""
        if not self.version:
            return ""
        if not self.starts:
            return f"{self.heading}: the profile is the same for all versions"
        version, starts = Version(self.version), self.starts
        if version < Version(starts[0]):
            return f"{self.heading} is older than the known versions: the profile is that of {starts[0]}"
        if version >= Version(starts[-1]):
            return f"{self.heading}: the profile is the newest one, from {starts[-1]}"
        place = starts.index(nearest(version, map(Version, starts)).text)
        return f"{self.heading}: the profile is that of {starts[place]} to before {starts[place + 1]}"

    def backend(self, hardware: Hardware) -> str:
        """The key of `vendors` that holds on such hardware: its family, kind or vendor; "" for none."""
        keys = (hardware.family, hardware.kind, hardware.vendor)
        return next((name for name in keys if name in self.vendors), "")

    def on(self, hardware: Hardware) -> Engine:
        """The profile with the parameters of such hardware's family, kind or vendor, which leave its `vendors`.

        Changes come last. Those of other hardware stay, for experts in CPU memory, with the profile's own for what they
        leave out.
        """
        if not (backend := self.backend(hardware)):
            return self
        used = self.vendors[backend]
        own = {name: self[name] for name in used}
        here = (hardware.family, hardware.kind, hardware.vendor)
        others = {name: {**own, **given} for name, given in self.vendors.items() if name not in here}
        return replace(self, parameters={**self.parameters, **used}, vendors=others)

    def reducing(self, hardware: Hardware, model: Model | None) -> Engine:
        """The profile whose all-reduces of such a model are one kernel with the norms after them, where they are."""
        kernel = self.fused_reduce.get(hardware.name, self.fused_reduce.get(hardware.family, ""))
        if not kernel or model is None or not model.experts:
            return self
        fusions = tuple("reduced_norm" if name == "residual_norm" else name for name in self.fusions)
        return replace(self, fusions=fusions, all_reduce={**self.all_reduce, "NVLink": kernel})

    def of(self, model: Model | None) -> Engine:
        """The profile with the parameters, operators and least step of the model's architecture, where it has some."""
        if model is None:
            return self
        memory = self.memory.for_model(model.name)
        if not (self.unfused or (self.mixers and model.experts)):
            return self if memory is self.memory else replace(self, memory=memory)
        mixers = self.mixers if model.experts else {}
        own = {name: value for key, given in mixers.items() if model.mixes(key) for name, value in given.items()}
        feed = next((group.layer.feed_forward for group in model.groups if group.layer.feed_forward), None)
        named = {"norm": model.norm.kind, "activation": ("gated" if feed.gated else feed.activation) if feed else ""}
        unfused = {kind: self.unfused[name] for kind, name in named.items() if name in self.unfused}
        return replace(
            self, memory=memory, parameters={**self.parameters, **own}, mixers={}, unfused={**self.unfused, **unfused}
        )

    def graphs_on(self, hardware: Hardware) -> tuple[str, ...]:
        """The phases that replay CUDA (or HIP) graphs on such hardware; other kinds have none."""
        return self.graphs if hardware.kind == "gpu" and hardware.vendor != "Apple" else ()

    def with_drafts(self, accepted: float) -> Engine:
        """The profile with so many tokens of a sequence an iteration, ahead of which some schedulers do not run."""
        overlap = self.overlap and not self.serial_drafts
        return replace(self, overlap=overlap, handled=max(accepted, 1.0))

    def without_graphs(self) -> Engine:
        """The profile with CUDA graphs switched off: the host launches every kernel of a pass, and none are kept.

        A launch takes the `dispatch` of the scheduler, which was fitted to steps that no graph replays, or `eager`,
        with the interval of hosts. An engine that captures no graphs is the same without them.
        """
        if not self.graphs:
            return self
        return replace(
            self,
            graphs=(),
            parameters={**self.parameters, "issue": self.launched, "hosts": HOSTS},
            scheduler=replace(self.scheduler, captured=0),
            memory=self.memory.without_graphs(),
        )

    @property
    def launched(self) -> float:
        """Host seconds that a kernel takes which no CUDA graph replays, of a server."""
        return max(self["issue"], self["eager"], self.scheduler.dispatch) * self["launches"]

    def measured_as(self, hardware: Hardware) -> tuple[str, str]:
        """The engine and version whose measured kernels on such hardware stand for this engine's."""
        own = not self.uses_calibrated_kernels(hardware)
        measured = self.own_kernels_of if own else self.kernels_of
        return split_name(measured) if measured else (self.name, self.version)

    def uses_calibrated_kernels(self, hardware: Hardware) -> bool:
        """Whether the calibration of the hardware's kind measured the kernels that this engine runs."""
        return hardware.kind not in self.own_kernels

    def __getitem__(self, name: str) -> float:
        return self.parameters[name] if name in self.parameters else DEFAULTS[name]

    def scheduling(self, busy: Any, sequences: Any) -> Any:
        """Seconds that a pass waits for host work on its sequences while the device is `busy` for that many seconds."""
        work = self["sequence"] * self.handled * sequences
        return np.maximum(work - busy, 0.0) if self.overlap else work

    def logits_of(self, prompts: Any, tokens: Any) -> Any:
        """The positions with logits in chunks of prompts: the last of each, or all `tokens` with `prompt_logits`."""
        return tokens if self.prompt_logits else prompts

    def kernel_slowdown(self, phase: str) -> float:
        """Kernel time of a phase relative to the calibration."""
        return self[phase] if phase in PHASES else 1.0

    @cached_property
    def kernels(self) -> tuple[tuple[str, ...], ...]:
        """The sets of operators that are fused into one kernel."""
        return tuple(names for fusion in self.fusions for names in FUSIONS[fusion])


DEFAULTS: Mapping[str, float] = MappingProxyType({parameter.name: parameter.default for parameter in PARAMETERS})

GGUF_ENGINE = "llama.cpp"
"""The engine of GGUF files."""

LIBRARY = "ollama"
"""The engine that loads models by name from a library, in which they are quantized."""

COMPILED = frozenset({"blackhole", "cerebras", "fpga", "graphcore", "groq", "sambanova", "wormhole"})
"""Families of hardware that run what their vendor's or a paper's compiler makes of a model, and no engine of others."""

GGUF_FAMILIES = frozenset({"apple", "maxwell", "pascal", "gcn", "cdna1", "rdna1", "rdna2", "alchemist"})
"""Families of GPUs that llama.cpp runs on, and vLLM does not (docs.vllm.ai, GPU installation)."""


def default_engine(hardware: Hardware, model: Model | None = None) -> str:
    """The default engine: llama.cpp on CPUs, Apple silicon, AMD's APUs and older GPUs, and of a model in GGUF files.

    On Apple silicon MLX runs its own groups of weights (affine4_g64). Chips with a compiler of their own run its
    schedule. Otherwise vLLM, which also stands in for a vendor's fork. On Strix Halo vLLM is not what people run: 7.5
    tokens/s of gpt-oss-120b where llama.cpp has 52 (vllm-project/vllm, issue 34578).
    """
    if hardware.family in COMPILED:
        return "compiled"
    stored = "" if model is None else model.quantization or ""
    if hardware.family == "apple" and hardware.kind == "soc" and stored.startswith("affine"):
        return "mlx"
    alone = hardware.kind == "cpu" or hardware.family in GGUF_FAMILIES
    apu = hardware.kind == "soc" and hardware.vendor == "AMD"
    return GGUF_ENGINE if alone or apu or (model is not None and model.in_gguf) else "vllm"


def resolve_engine(hardware: Hardware, requested: Engine | str | None, model: Model | None = None) -> Engine:
    """The profile of a name, version or path, or the default one, on the hardware; raises like `load_engine`."""
    if not isinstance(requested, Engine):
        requested = load_engine(default_engine(hardware, model) if requested is None else requested)
    return requested.on(hardware).reducing(hardware, model).of(model)


def list_engines() -> list[str]:
    """The names of the bundled engines and of those in `ROOFLINE_SPECS`, without versions and aliases."""
    return sorted({*bundled_profiles(), *own_files(ENGINES)})


@lru_cache(maxsize=1)
def bundled_profiles() -> Mapping[str, Path]:
    """The bundled profile files by name."""
    return MappingProxyType({path.stem: path for path in bundled_path("specs/engines").glob("*.yaml")})


@lru_cache(maxsize=4)
def _aliases(own: tuple[File, ...]) -> Mapping[str, str]:
    """The aliases of all profiles and of their versions, with the requests that they stand for."""
    paths = {path.stem: path for path in (*bundled_profiles().values(), *(file.path for file in own))}
    contents = {path: read_mapping(path) for path in paths.values()}
    return MappingProxyType(
        {
            alias: f"{path.stem}@{version}" if version else path.stem
            for path, content in contents.items()
            for alias, version in aliases_of(content, str(path)).items()
        }
    )


def load_engine(name: str | os.PathLike[str] | Engine) -> Engine:
    """The profile `name`, or the YAML file at that path, either followed by `@VERSION`; or an alias of one.

    Profiles in the folder `engines` of `ROOFLINE_SPECS` come before bundled ones. An unknown version gets the profile
    of the nearest one. Raises UnknownNameError, SpecError, and RooflineError for a text that is not a version.
    """
    if isinstance(name, Engine):
        return name
    family, version = split_name(written(name, "engine"))
    own = own_files(ENGINES)
    if not is_own_path(family) and family not in own:
        family = family.lower()
    if is_own_path(family):
        file = File.at(Path(family))
    elif family in own:
        file = own[family]
    elif family in bundled_profiles():
        file = File(bundled_profiles()[family], 0)
    elif family not in (aliases := _aliases(tuple(own.values()))):
        if (facts := undescribed(family, "engines")) is not None:
            raise UnknownNameError("engine", family, (), (), f", which {facts}")
        raise UnknownNameError("engine", family, (*list_engines(), *(name for name in aliases if "@" in aliases[name])))
    elif version and "@" in aliases[family]:
        raise RooflineError(f"{family} is {aliases[family]}: name another version of {split_name(aliases[family])[0]}")
    else:
        return load_engine(f"{aliases[family]}@{version}" if version else aliases[family])
    return _load(file, version)


@lru_cache(maxsize=64)
def _load(file: File, version: str) -> Engine:
    from roofline.specs.engine_files import parse_engine

    return parse_engine(read_mapping(file.path), str(file.path), version)
