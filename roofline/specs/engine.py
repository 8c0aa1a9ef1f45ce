"""Engine profiles: fusions, CUDA graphs, and the host time of the serving software.

A forward pass takes

    t = max(kernels + gap N, [no CUDA graph] issue N) + step + sequence batch
    t = max(kernels + gap N, [no CUDA graph] issue N, sequence batch) + step        with overlap scheduling

for N kernels. `kernels` is the sum of their times, which include the engine's `launch`, `memory`, `kv_reread`,
`collective`, `dequantisation`, `integer_blocks` and `kv_conversion`, multiplied by `prefill` or `decode`. The host
launches kernels ahead of the device, so the slower of the two counts; a CUDA graph removes the launches (`issue`).
`step` and `sequence` are scheduling, sampling and detokenisation between two passes; drafts of speculative decoding
follow each other within one step, each after `draft_step`. With overlap scheduling (vLLM's
asynchronous scheduling) the host prepares the sequences of the next pass while the device computes this one, and only
`step` stays between two passes. When shared experts run concurrently with routed experts (`shared_stream`), `kernels`
has the longer branch, and at least the bound of both together. A profile holds for a range of versions
(`roofline.specs.engine_versions`) and one benchmark harness, which its file states.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property, lru_cache
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from roofline.core.documents import finite_number, read_mapping, scalar_text
from roofline.core.errors import RooflineError, SpecError, UnknownNameError, quote, suggest
from roofline.core.parameters import Parameter, Unit
from roofline.core.units import Dimension, parse_quantity
from roofline.specs.engine_versions import KEYS, aliases_of, merged, split_name, versions_of
from roofline.specs.hardware import KINDS, Hardware
from roofline.specs.library import modified
from roofline.specs.precision import check_scheme
from roofline.specs.reserve import NO_RESERVE, Reserve, parse_reserve, render_reserve
from roofline.specs.scheduler import PLAIN_SCHEDULER, Scheduler, parse_scheduler, render_scheduler
from roofline.specs.version import Version, nearest
from roofline.specs.weight_only import WEIGHT_ONLY_KERNELS

PHASES = ("prefill", "decode")

GATED_DELTA_RULE_KERNELS = CHUNKED, _ = ("chunked", "fused")
"""Prefill kernels of the gated delta rule: several kernels over chunks of the prompt, or one fused kernel."""

FUSIONS: Mapping[str, tuple[tuple[str, ...], ...]] = MappingProxyType(
    {
        "qkv": (("q_proj", "q_gate_proj", "k_proj", "v_proj"),),
        "latent_down": (("q_a_proj", "kv_a_proj"),),
        "gate_up": (("gate_proj", "up_proj"), ("shared_gate_proj", "shared_up_proj")),
        "residual_norm": (("attn_add", "mlp_norm"), ("mlp_add", "attn_norm")),
        "head_norms": (("q_norm", "k_norm", "v_norm"),),
        "experts": (("expert_gate_proj", "expert_up_proj", "expert_act", "expert_down_proj", "expert_combine"),),
    }
)
"""The operators that each fusion computes in one kernel. Reports list the operators separately."""

SHARED_EXPERTS = frozenset(
    {"shared_gate_proj", "shared_up_proj", "shared_act", "shared_down_proj", "shared_expert_gate", "shared_gating"}
)
ROUTED_EXPERTS = frozenset(
    {"router", "router_topk", "expert_gate_proj", "expert_up_proj", "expert_act", "expert_down_proj", "expert_combine"}
)
"""The two branches of an MoE layer: they read the same input and their outputs are added."""

PARAMETERS = (
    Parameter("step", Unit.SECONDS, 0.0, 1.0, 0.0, "host time between two passes"),
    Parameter("sequence", Unit.SECONDS, 0.0, 10e-3, 0.0, "host time per sequence and pass"),
    Parameter("draft_step", Unit.SECONDS, 0.0, 1.0, 0.0, "host time before a draft pass of speculative decoding"),
    Parameter("gap", Unit.SECONDS, 0.0, 100e-6, 0.0, "idle time between two kernels"),
    Parameter("issue", Unit.SECONDS, 0.0, 1e-3, 0.0, "host time to launch a kernel without a CUDA graph"),
    Parameter("launch", Unit.RATIO, 0.1, 10.0, 1.0, "kernel launch time relative to the calibration"),
    Parameter("memory", Unit.RATIO, 0.1, 1.5, 1.0, "achieved memory bandwidth relative to the calibration"),
    Parameter(
        "kv_reread",
        Unit.RATIO,
        0.0,
        1.0,
        0.0,
        "fraction of a GQA group's further query heads that read the KV cache again",
    ),
    Parameter("collective", Unit.RATIO, 0.05, 20.0, 1.0, "time of collectives relative to the calibration"),
    Parameter("prefill", Unit.RATIO, 0.2, 10.0, 1.0, "time of prefill kernels relative to the calibration"),
    Parameter("decode", Unit.RATIO, 0.05, 20.0, 1.0, "time of decode kernels relative to the calibration"),
    Parameter("dequantisation", Unit.RATIO, 0.005, 1.0, 0.5, "fraction of the vector peak that dequantisation reaches"),
    Parameter(
        "integer_blocks", Unit.RATIO, 0.0, 100.0, 0.0, "SM cycles for 1024 multiplications of block-scaled integers"
    ),
    Parameter("kv_conversion", Unit.RATIO, 0.0, 500.0, 5.0, "FLOPs per KV cache element that software converts"),
    Parameter(
        "split_kv",
        Unit.RATIO,
        0.0,
        2.0,
        1.0,
        "decode attention splits a sequence's keys over SMs: 1 as the calibrated kernel, 0 never, 2 always",
    ),
)
"""The numeric parameters of a profile, with their defaults."""


class Engine(Struct, frozen=True, dict=True):
    """An engine profile.

    `version`: as requested, "" for the newest. `starts`: the versions from which the engine's profiles hold, oldest
    first, () if it has one for all.

    `fusions`: names of FUSIONS. `graphs`: phases that replay CUDA graphs. `overlap`: the host schedules the next pass
    while the device computes this one. `shared_stream`: passes of up to this many tokens, if replayed, run shared
    experts on a second stream. `all_reduce`: the engine's own all-reduce kernel by the first word of a link's kind;
    the faster of it and NCCL is used. `gated_delta_rule`: its prefill kernel
    (`roofline.timing.kernels.gated_delta_rule`). `int8_activations`: vendors and kinds of hardware on which linear
    layers with integer weights quantise their inputs to INT8 and multiply integers. `own_kernels`: hardware kinds whose
    calibration does not apply, because it measured other kernels (PyTorch's on CPUs). `memory`: what it reserves of a
    device's memory (`roofline.specs.reserve`). `scheduler`: how it fills its steps under load
    (`roofline.specs.scheduler`). `checkpoints`: quantisation schemes of
    released checkpoints that it runs, and the scheme it runs each in; others are dequantised to 16 bits (None: all run
    as released). `weight_only`: the kernel (`roofline.specs.weight_only`) of each weight format that linear layers
    convert to 16 bits; formats that it leaves out run a kernel that was not measured, and with no entry at all the
    upcast is added to the 16-bit GEMM. `kernels_of`: the
    measured engine (and version) that the profile was fitted with, where that is another one. `also`: by family of
    hardware and kind of kernel the engine that a further kernel of this one was measured with; the faster is used.
    `spread`: p10 and p90 of measured over predicted whole-model time, on top of the
    kernels' own intervals. `sources`: the data that the profile was fitted to.
    """

    name: str
    title: str = ""
    fusions: tuple[str, ...] = ()
    graphs: tuple[str, ...] = PHASES
    parameters: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    spread: tuple[float, float] = (1.0, 1.0)
    sources: tuple[str, ...] = ()
    int8_activations: tuple[str, ...] = ()
    checkpoints: Mapping[str, str] | None = None
    overlap: bool = False
    shared_stream: int = 0
    all_reduce: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    gated_delta_rule: str = CHUNKED
    own_kernels: tuple[str, ...] = ()
    weight_only: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    kernels_of: str = ""
    also: Mapping[str, Mapping[str, str]] = field(default_factory=lambda: MappingProxyType({}))
    version: str = ""
    starts: tuple[str, ...] = ()
    memory: Reserve = NO_RESERVE
    scheduler: Scheduler = PLAIN_SCHEDULER

    def __hash__(self) -> int:
        flags = (self.overlap, self.shared_stream, self.gated_delta_rule, *self.own_kernels, *self.all_reduce.items())
        return hash((self.name, self.version, self.graphs, self.fusions, *flags, *self.parameters.items()))

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

    def measured_as(self, hardware: Hardware) -> tuple[str, str]:
        """The engine and version whose measured kernels on such hardware stand for this engine's."""
        if self.kernels_of and self.uses_calibrated_kernels(hardware):
            return split_name(self.kernels_of)
        return self.name, self.version

    def uses_calibrated_kernels(self, hardware: Hardware) -> bool:
        """Whether the calibration of the hardware's kind measured the kernels that this engine runs."""
        return hardware.kind not in self.own_kernels

    def __getitem__(self, name: str) -> float:
        """The value of a parameter, in base units."""
        return self.parameters[name] if name in self.parameters else DEFAULTS[name]

    def host_wait(self, busy: Any, sequences: Any) -> Any:
        """Seconds that a pass waits for host work on its sequences while the device is `busy` for that many seconds."""
        work = self["sequence"] * sequences
        return np.maximum(work - busy, 0.0) if self.overlap else work

    def kernel_slowdown(self, phase: str) -> float:
        """Kernel time of a phase relative to the calibration."""
        return self[phase] if phase in PHASES else 1.0

    @cached_property
    def kernels(self) -> tuple[tuple[str, ...], ...]:
        """The sets of operators that are fused into one kernel."""
        return tuple(names for fusion in self.fusions for names in FUSIONS[fusion])


ALL_REDUCES = ("custom_all_reduce", "trtllm_all_reduce")
"""Engines' own all-reduce kernels (`roofline.timing.kernels.collective`)."""

DEFAULTS: Mapping[str, float] = MappingProxyType({parameter.name: parameter.default for parameter in PARAMETERS})


def default_engine(hardware: Hardware) -> str:
    """The default engine: llama.cpp on CPUs and Apple silicon, else vLLM, which also stands in for a vendor's fork."""
    return "llama.cpp" if hardware.kind == "cpu" or hardware.family == "apple" else "vllm"


def resolve_engine(hardware: Hardware, requested: Engine | str | None) -> Engine:
    """The requested profile (or its name, version or path), else the hardware's default; raises like `load_engine`."""
    if isinstance(requested, Engine):
        return requested
    return load_engine(default_engine(hardware) if requested is None else requested)


def list_engines() -> list[str]:
    """The names of the bundled engines, without versions and aliases."""
    return sorted(_bundled())


@lru_cache(maxsize=1)
def _bundled() -> Mapping[str, Path]:
    """The bundled profile files by name."""
    found = (Path(str(entry)) for entry in (files("roofline.specs") / "engines").iterdir())
    return MappingProxyType({path.stem: path for path in found if path.suffix == ".yaml"})


@lru_cache(maxsize=1)
def _aliases() -> Mapping[str, str]:
    """The aliases of the bundled profiles' versions, with the requests that they stand for."""
    contents = {path: read_mapping(path) for path in _bundled().values()}
    return MappingProxyType(
        {
            alias: f"{path.stem}@{version}"
            for path, content in contents.items()
            for alias, version in aliases_of(content, str(path)).items()
        }
    )


def load_engine(name: str) -> Engine:
    """The bundled profile `name`, or the YAML file at that path, either followed by `@VERSION`; or an alias of one.

    An unknown version gets the profile of the nearest one. Raises UnknownNameError, SpecError, and RooflineError for a
    text that is not a version.
    """
    family, version = split_name(name)
    if family.endswith((".yaml", ".yml")) or "/" in family:
        path = Path(family)
    elif family in _bundled():
        path = _bundled()[family]
    elif family not in (aliases := _aliases()):
        raise UnknownNameError("engine", family, (*list_engines(), *aliases))
    elif version:
        raise RooflineError(f"{family} is {aliases[family]}: name another version of {split_name(aliases[family])[0]}")
    else:
        return load_engine(aliases[family])
    return _load(path, modified(path), version)


@lru_cache(maxsize=64)
def _load(path: Path, _modified: int, version: str) -> Engine:
    return parse_engine(read_mapping(path), str(path), version)


_KEYS = tuple(key for key in (*Engine.__struct_fields__, *KEYS) if key not in ("version", "starts"))


def parse_engine(content: Mapping[str, Any], where: str, version: str = "") -> Engine:
    """The engine that a profile's mapping describes, at a version; `where` names the file in errors."""
    changes, newest = versions_of(content, where), _parse(content, where)
    aliases_of(content, where)
    profiles = {start: _parse(merged(content, keys), where) for start, keys in changes.items()}
    starts = tuple(start.text for start in changes)
    if not version:
        return replace(newest, starts=starts)
    asked = Version(version)
    found = profiles[nearest(asked, changes)] if changes else newest
    return replace(found, version=asked.text, starts=starts)


def _parse(content: Mapping[str, Any], where: str) -> Engine:
    for key in content:
        if key not in _KEYS:
            raise SpecError(where, f"unknown key {quote(key)}{suggest(key, _KEYS)}")
    name = content.get("name")
    if not isinstance(name, str) or not name:
        raise SpecError(where, "the key 'name' is missing")
    return Engine(
        name=name,
        title=_words(content.get("title", ""), "title", where),
        fusions=_names(content.get("fusions", []), FUSIONS, "fusions", where),
        graphs=_names(content.get("graphs", []), PHASES, "graphs", where),
        parameters=_parameters(content.get("parameters", {}), where),
        spread=_spread(content.get("spread", [1, 1]), where),
        sources=_texts(content.get("sources", []), "sources", where),
        int8_activations=_texts(content.get("int8_activations", []), "int8_activations", where),
        checkpoints=_checkpoints(content.get("checkpoints"), where),
        overlap=_flag(content.get("overlap", False), "overlap", where),
        shared_stream=_tokens(content.get("shared_stream", 0), "shared_stream", where),
        all_reduce=_all_reduce(content.get("all_reduce", {}), where),
        weight_only=_weight_only(content.get("weight_only", {}), where),
        kernels_of=_words(content.get("kernels_of", ""), "kernels_of", where),
        also=_also(content.get("also", {}), where),
        own_kernels=_names(content.get("own_kernels", []), KINDS, "own_kernels", where),
        memory=parse_reserve(content.get("memory", {}), where),
        scheduler=parse_scheduler(content.get("scheduler", {}), where),
        gated_delta_rule=_names(
            [content.get("gated_delta_rule", CHUNKED)], GATED_DELTA_RULE_KERNELS, "gated_delta_rule", where
        )[0],
    )


MAX_TOKENS = 10**9
"""Most tokens of a pass that a profile may name."""

MAX_SPREAD = 1e3
"""Largest factor of a profile's interval."""


def _words(content: object, key: str, where: str) -> str:
    text = scalar_text(content)
    if text is None:
        raise SpecError(where, f"{quote(key)} must be text, got {quote(content)}")
    return text


def _texts(content: object, key: str, where: str) -> tuple[str, ...]:
    return tuple(_words(entry, key, where) for entry in _list(content, key, where))


def _flag(content: object, key: str, where: str) -> bool:
    if not isinstance(content, bool):
        raise SpecError(where, f"{quote(key)} must be true or false")
    return content


def _tokens(content: object, key: str, where: str) -> int:
    if not isinstance(content, int) or isinstance(content, bool) or not 0 <= content <= MAX_TOKENS:
        raise SpecError(where, f"{quote(key)} must be a number of tokens, 0 to {MAX_TOKENS}")
    return content


def _all_reduce(content: object, where: str) -> Mapping[str, str]:
    if not isinstance(content, Mapping):
        raise SpecError(where, "'all_reduce' must map kinds of links to kernels")
    for kernel in content.values():
        _names([kernel], ALL_REDUCES, "all_reduce", where)
    return MappingProxyType({str(kind): str(kernel) for kind, kernel in content.items()})


def _also(content: object, where: str) -> Mapping[str, Mapping[str, str]]:
    found = {}
    for family, kinds in (content if isinstance(content, Mapping) else {"": content}).items():
        if not isinstance(kinds, Mapping):
            raise SpecError(where, "'also' must map families to kinds of kernels and engines")
        found[str(family)] = MappingProxyType(
            {str(kind): _words(engine, "also", where) for kind, engine in kinds.items()}
        )
    return MappingProxyType(found)


def _list(content: object, key: str, where: str) -> list[Any]:
    if not isinstance(content, list):
        raise SpecError(where, f"{quote(key)} must be a list")
    return content


def _names(content: object, known: Iterable[str], key: str, where: str) -> tuple[str, ...]:
    known = tuple(known)
    for name in (names := _list(content, key, where)):
        if name not in known:
            raise SpecError(where, f"unknown name {quote(name)} in {quote(key)}{suggest(name, known)}")
    return tuple(names)


def _checkpoints(content: object, where: str) -> Mapping[str, str] | None:
    if content is None:
        return None
    if not isinstance(content, Mapping):
        raise SpecError(where, "'checkpoints' must map schemes to schemes")
    schemes = {_words(key, "checkpoints", where): _words(run, "checkpoints", where) for key, run in content.items()}
    for name in (*schemes.keys(), *schemes.values()):
        check_scheme(name, where, "checkpoints")
    return MappingProxyType(schemes)


def _weight_only(content: object, where: str) -> Mapping[str, str]:
    if not isinstance(content, Mapping):
        raise SpecError(where, "'weight_only' must map weight formats to kernels")
    for kernel in content.values():
        _names([kernel], WEIGHT_ONLY_KERNELS, "weight_only", where)
    return MappingProxyType({str(name): str(kernel) for name, kernel in content.items()})


def _parameters(content: object, where: str) -> Mapping[str, float]:
    if not isinstance(content, Mapping):
        raise SpecError(where, "'parameters' must map names to values")
    known = {parameter.name: parameter for parameter in PARAMETERS}
    values = {}
    for name, text in content.items():
        if name not in known:
            raise SpecError(where, f"unknown key {quote(name)} in 'parameters'{suggest(name, known)}")
        values[name] = _value(text, known[name], f"parameters.{name}", where)
    return MappingProxyType(values)


def _value(text: object, parameter: Parameter, key: str, where: str) -> float:
    key = quote(key)
    number = finite_number(text)
    try:
        if number is not None and (parameter.unit is Unit.RATIO or number == 0):
            value = number
        elif parameter.unit is Unit.SECONDS:
            value = parse_quantity(text, Dimension.TIME).value
        else:
            raise RooflineError(f"expected a number, got {quote(text)}")
    except RooflineError as error:
        raise SpecError(where, f"{key}: {error}") from None
    if not parameter.low <= value <= parameter.high:
        allowed = f"{parameter.low:g} to {parameter.high:g}"
        raise SpecError(where, f"{key}: {value:g} is outside {allowed} ({parameter.meaning})")
    return value


def _spread(content: object, where: str) -> tuple[float, float]:
    match [finite_number(entry) for entry in _list(content, "spread", where)]:
        case [float(low), float(high)] if 1 / MAX_SPREAD <= low <= 1 <= high <= MAX_SPREAD:
            return low, high
    first, second = f"{1 / MAX_SPREAD:g} to 1", f"1 to {MAX_SPREAD:g}"
    raise SpecError(where, f"'spread' must be two numbers, the first of {first}, the second of {second}")


def render(engine: Engine) -> str:
    """The YAML text of a profile; `parse_engine` reads it back."""
    lines = [f"name: {engine.name}", f"title: {_quoted(engine.title)}"]
    lines += [f"fusions: [{', '.join(engine.fusions)}]", f"graphs: [{', '.join(engine.graphs)}]"]
    lines += ["overlap: true"] if engine.overlap else []
    lines += [f"shared_stream: {engine.shared_stream}"] if engine.shared_stream else []
    if engine.all_reduce:
        kernels = (f"{_quoted(kind)}: {kernel}" for kind, kernel in engine.all_reduce.items())
        lines += [f"all_reduce: {{{', '.join(kernels)}}}"]
    lines += [f"gated_delta_rule: {engine.gated_delta_rule}"] if engine.gated_delta_rule != CHUNKED else []
    lines += [f"own_kernels: [{', '.join(engine.own_kernels)}]"] if engine.own_kernels else []
    lines += (
        [f"int8_activations: [{', '.join(map(_quoted, engine.int8_activations))}]"] if engine.int8_activations else []
    )
    if engine.checkpoints is not None:
        lines += [f"checkpoints: {{{', '.join(f'{name}: {run}' for name, run in engine.checkpoints.items())}}}"]
    lines += [f"kernels_of: {_quoted(engine.kernels_of)}"] if engine.kernels_of else []
    if engine.also:
        kinds = (
            f"{family}: {{{', '.join(f'{kind}: {_quoted(other)}' for kind, other in own.items())}}}"
            for family, own in engine.also.items()
        )
        lines += [f"also: {{{', '.join(kinds)}}}"]
    if engine.weight_only:
        lines += [f"weight_only: {{{', '.join(f'{name}: {kernel}' for name, kernel in engine.weight_only.items())}}}"]
    lines += [*render_reserve(engine.memory), *render_scheduler(engine.scheduler), "parameters:"]
    for parameter in PARAMETERS:
        value = engine[parameter.name]
        shown = f"{value:.4g}" if parameter.unit is Unit.RATIO or value == 0 else f"{value * 1e6:.4g} us"
        lines.append(f"  {parameter.name}: {shown}  # {parameter.meaning}")
    lines.append(f"spread: [{engine.spread[0]:.4g}, {engine.spread[1]:.4g}]")
    lines += ["sources:", *(f"  - {_quoted(source)}" for source in engine.sources)] if engine.sources else []
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    plain = "".join(character if character.isprintable() else " " for character in text)
    return "'" + plain.replace("'", "''") + "'"
