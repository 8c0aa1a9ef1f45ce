"""Model spec files: YAML to the records of `roofline.specs.model` (`roofline.specs.written` writes them)."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from msgspec import Meta, Struct, defstruct
from msgspec.structs import asdict, fields, replace

from roofline.core.documents import read_mapping
from roofline.core.errors import RooflineError, SpecError, UnknownNameError, located, quote, suggest
from roofline.core.registry import cached
from roofline.specs.formats import find_format
from roofline.specs.hardware import Hardware, list_hardware, load_devices, load_hardware
from roofline.specs.layer_checks import check_layer
from roofline.specs.library import (
    CONFIG,
    as_mapping,
    check_keys,
    format_files,
    is_hardware,
    modified,
    spec_files,
    spec_path,
    written,
)
from roofline.specs.model import AudioConvolution, Described, Formats, Kept, Layer, LayerGroup, Model, Norm, Switches
from roofline.specs.precision import check_scheme
from roofline.specs.records import record
from roofline.specs.schemes import COMPONENTS
from roofline.specs.sublayers import FEED_FORWARDS, MIXERS, Attention, Count, Engram, Text, Tokens, UNet
from roofline.specs.weight_files.stored import is_checkpoint

_PART = re.compile(r"-\d{5}-of-\d{5}(?=\.gguf$)")
"""What the name of a part of a split GGUF file has before its ending."""


def load_model(name: str | os.PathLike[str] | Model) -> Model:
    """The model `name`, or that of the YAML spec, `config.json`, GGUF file or folder of safetensors at that path.

    `name` may be a repository of the hub (`roofline.specs.model_names`); a quantization that it names is the model's.
    So it is of the name of a GGUF file that is not here.
    Raises UnknownNameError with the nearest names, or SpecError with the file and the key.

    >>> from roofline import load_model
    >>> load_model("Qwen/Qwen3-32B-AWQ")
    Model(qwen3-32b: 64 layers, hidden 5120, vocabulary 151936, bf16, quantization awq)
    """
    if isinstance(name, Model):
        return name
    name = written(name, "model")
    path = spec_path(name, "modelspecs")
    downloadable = path is not None and path.suffix == ".gguf" and path.name == name and not path.exists()
    if path is not None and not downloadable:
        return _load(path, _modified(path))
    from roofline.specs.model_names import read_model

    try:
        named = read_model(_PART.sub("", name.removesuffix("@main")))
    except UnknownNameError as error:
        return _from_hub(name, error) if path is None else _load(path, _modified(path))
    return replace(_load(named.path, _modified(named.path)), **named.changes)


def _from_hub(name: str, unknown: UnknownNameError) -> Model:
    from roofline.specs.hub import folder_of, is_on, repository

    wanted = repository(name)
    if wanted is None:
        raise unknown
    if not is_on():
        said = str(unknown).partition("; 'roofline specs list models'")[0]
        end = " " if said.endswith("?") else "; "
        raise RooflineError(f"{said}{end}--hub reads it from the Hugging Face hub, or give its config.json") from None
    path = folder_of(wanted)
    try:
        return _load(path, _modified(path / CONFIG))
    except SpecError as error:  # about the repository, not the cache's copy of its files
        raise RooflineError(str(error).replace(str(path), str(wanted))) from None


def _modified(path: Path) -> tuple[int, ...]:
    return tuple(map(modified, (path, *format_files(path))))


@cached(maxsize=256)
def _load(path: Path, _changed: tuple[int, ...]) -> Model:
    if is_checkpoint(path):
        from roofline.specs.weight_files.load import load_checkpoint

        content, stored = load_checkpoint(path)
        return replace(parse_model(content, str(path)), stored=stored, gguf=stored is not None and stored.loaded)
    if path.suffix.lower() == ".json":
        from roofline.specs.huggingface import translate_file

        return parse_model(translate_file(path), str(path))
    return parse_model(read_mapping(path), str(path))


def list_models() -> list[str]:
    """The names of all known models."""
    return list(spec_files("modelspecs"))


def load_any(name: str) -> Model | Hardware:
    """The model or hardware of that name, or of the file at that path."""
    if name in (devices := list_hardware()):
        return load_hardware(name)
    path = spec_path(name, "modelspecs")
    if path is not None:
        model = path.suffix.lower() == ".json" or is_checkpoint(path)
        return load_hardware(name) if not model and is_hardware(path) else load_model(name)
    candidates: list[str] = []
    for load in (load_model, lambda text: load_devices(text)[0]):
        try:
            return load(name)
        except UnknownNameError as error:
            candidates += error.candidates
    raise UnknownNameError("model or hardware", name, [*list_models(), *devices], candidates)


MAX_BLOCKS = 200
"""Most different blocks of a model: more than any has layers."""


class _LayersEntry(Struct, frozen=True, forbid_unknown_fields=True):
    count: Annotated[int, Meta(ge=1, le=10**5)]
    pattern: Annotated[list[Text], Meta(min_length=1, max_length=10**5)] | None = None


class _Repository(Struct, frozen=True, forbid_unknown_fields=True):
    """How a further repository of the same architecture differs from the spec (`roofline.specs.model_names`)."""

    dtype: Literal["fp32", "bf16", "fp16"] | None = None
    quantization: Text | None = None
    unquantized: tuple[Kept, ...] | None = None
    formats: Formats | None = None
    max_context: Tokens | None = None


class _Keys(Described, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The keys of a model file beside those of its layers; some have narrower bounds than in Python."""

    vocabulary: Annotated[int, Meta(ge=0, le=10**7)] = 0
    dtype: Literal["fp32", "bf16", "fp16"] = "bf16"
    tower_tokens: Count | None = None
    convolutions: Annotated[tuple[AudioConvolution, ...], Meta(min_length=1, max_length=16)] = ()
    rests_on: Annotated[tuple[Text, ...], Meta(max_length=20)] = ()
    layers: _LayersEntry
    repositories: dict[str, Any] | None = None
    tower: dict[str, Any] | None = None
    blocks: dict[str, Any] | None = None


SECTIONS: Mapping[str, type[Any]] = {**MIXERS, **FEED_FORWARDS, "cross": Attention, "norm": Norm, "engram": Engram}
"""The parts of a layer, by section key."""

ModelSpec = cast(
    type[_Keys],
    defstruct(
        "ModelSpec",
        [
            *((each.name, each.type, each.default) for each in fields(Switches)),
            *((key, dict[str, Any] | None, None) for key in SECTIONS),
        ],
        bases=(_Keys,),
        namespace={"__doc__": "The top-level keys of a model file, before the blocks are merged."},
        module=__name__,
        frozen=True,
        kw_only=True,
        forbid_unknown_fields=True,
    ),
)

SWITCHES = Switches.__struct_fields__
LAYER_KEYS = (*SECTIONS, *SWITCHES)
_NULLABLE = ("title", "projector", "merger", "convolutions", "unquantized")
"""Keys that a file may set to null, which is read as if they were left out: `Described` has no None for them."""

SHARED = Described.__struct_fields__
"""Keys that are the same in the file and in `Model`."""


def parse_model(content: Mapping[str, Any], where: str) -> Model:
    """The model that a spec file's mapping describes; `where` names the file in errors."""
    content = dict(content)
    if isinstance(content.get("layers"), int) and not isinstance(content["layers"], bool):
        content["layers"] = {"count": content["layers"]}
    if isinstance(content.get("positions"), str):
        content["positions"] = {"kind": content["positions"]}
    content = {key: value for key, value in content.items() if value is not None or key not in _NULLABLE}
    spec = record(ModelSpec, content, where)
    if not spec.name.isprintable():
        raise SpecError(where, f"'name' must be printable characters, got {quote(spec.name)}")
    if (spec.positions.kind in ("learned", "relative")) != (spec.positions.count is not None):
        raise SpecError(where, "'positions': learned and relative positions need a count, other kinds have none")
    if not spec.vocabulary and (spec.lm_head or not (spec.patch or spec.convolutions or content.get("unet"))):
        raise SpecError(where, "the key 'vocabulary' is missing")
    for repository, body in (spec.repositories or {}).items():
        other = record(_Repository, body, where, f"repositories.{repository}")
        if other.quantization is not None:
            check_scheme(other.quantization, where, f"repositories.{repository}.quantization")
        for component, chosen in (other.formats or {}).items():
            _check_format(component, chosen, where, f"repositories.{repository}.formats")
    if spec.quantization is not None:
        check_scheme(spec.quantization, where, "quantization")
    elif spec.unquantized:
        raise SpecError(where, "'unquantized' needs 'quantization': it lists the exceptions")
    if spec.formats is not None and (spec.quantization is None or spec.unquantized):
        raise SpecError(
            where, "'formats' needs 'quantization' and replaces 'unquantized': it lists all that is quantized"
        )
    for component, chosen in (spec.formats or {}).items():
        _check_format(component, chosen, where, "formats")
    if (spec.tower is None) != (spec.tower_kind is None):
        raise SpecError(where, "'tower' and 'tower_kind' need each other")
    blocks = _blocks(spec, where)
    pattern = _pattern(spec, blocks, where)
    layers = {name: _layer(spec, blocks[name], name, where) for name in dict.fromkeys(pattern)}
    if spec.tower_kind != "encoder" and any(layer.cross for layer in layers.values()):
        raise SpecError(where, "'cross' attends to an encoder: give a tower with tower_kind: encoder")
    for layer in layers.values():
        if isinstance(layer.mixer, UNet) and (spec.task, len(pattern), layer.feed_forward) != ("encode", 1, None):
            raise SpecError(
                where, "'unet' is a whole model: it needs task: encode and layers: 1, and has no 'mlp' or 'moe'"
            )
    if spec.positions.kind == "relative" and not any(isinstance(layer.mixer, Attention) for layer in layers.values()):
        raise SpecError(where, "'positions': relative positions need layers with 'attention'")
    counts = Counter(pattern)
    shared = {key: getattr(spec, key) for key in SHARED}
    return Model(
        **{**shared, "title": spec.title or spec.name},
        groups=tuple(LayerGroup(name, counts[name], layer) for name, layer in layers.items()),
        pattern=tuple(pattern),
        norm=next(iter(layers.values())).norm,
        tower=_tower(spec, where),
    )


def _check_format(component: str, chosen: str | Mapping[str, float], where: str, place: str) -> None:
    check_keys({component: chosen}, COMPONENTS, where, place)
    with located(where, f"{place}.{component}"):
        for name in [chosen] if isinstance(chosen, str) else chosen:
            find_format(name)
    if not chosen:
        raise SpecError(where, f"'{place}.{component}' is empty")


def _tower(spec: _Keys, where: str) -> Model | None:
    if spec.tower is None:
        return None
    if spec.tower.get("tower"):
        raise SpecError(where, "'tower.tower': a tower cannot have a tower")
    content = {"name": f"{spec.name}-tower"[:80], "lm_head": False, "task": "encode", **spec.tower}
    return parse_model(content, f"{where}: tower")


def _blocks(spec: _Keys, where: str) -> dict[str, dict[str, Any]]:
    blocks = spec.blocks or {"layer": {}}
    for name, overrides in blocks.items():
        check_keys(as_mapping(overrides, where, f"blocks.{name}"), LAYER_KEYS, where, f"blocks.{name}")
    return blocks


def _pattern(spec: _Keys, blocks: Mapping[str, object], where: str) -> list[str]:
    """The block of every layer: the pattern with repeats expanded, repeated and truncated to the layer count."""
    if spec.layers.pattern is None:
        if len(blocks) > 1:
            raise SpecError(where, "'layers.pattern' is missing: it lists the block of each layer")
        return [next(iter(blocks))] * spec.layers.count
    period: list[str] = []
    for entry in spec.layers.pattern:
        match = re.fullmatch(r"([0-9]{1,9})\s*x\s+(\S.*)", entry)
        times, name = (int(match[1]), match[2]) if match else (1, entry)
        if name not in blocks:
            raise SpecError(where, f"'layers.pattern' has the unknown block {quote(name)}{suggest(name, blocks)}")
        period += [name] * min(times, spec.layers.count - len(period))
    if not period:
        raise SpecError(where, "'layers.pattern' is empty")
    if (different := len(set(period))) > MAX_BLOCKS:
        raise SpecError(where, f"'layers.pattern' has {different} different blocks; at most {MAX_BLOCKS} are simulated")
    repeats = -(-spec.layers.count // len(period))
    return (period * repeats)[: spec.layers.count]


def _layer(spec: _Keys, overrides: Mapping[str, Any], name: str, where: str) -> Layer:
    """One block: the top-level sections with the block's overrides merged in and dependent defaults filled in.

    A mixer or feed-forward section of the block replaces the top level's; `mlp: null` removes it.
    """
    prefix = f"blocks.{name}." if spec.blocks else ""

    def section(key: str) -> dict[str, Any] | None:
        override = overrides.get(key)
        base = getattr(spec, key)
        if override is None:
            return None if key in overrides or base is None else dict(base)
        return {**(base or {}), **as_mapping(override, where, prefix + key)}

    def chosen(family: Mapping[str, type]) -> str | None:
        """The section key of a family in this block."""
        own = [key for key in family if overrides.get(key) is not None]
        if not own:
            nulled = [key for key in family if key in overrides]
            own = [key for key in family if getattr(spec, key) is not None and key not in nulled]
        if len(own) > 1:
            raise SpecError(where, f"{quote(prefix + own[1])}: a layer has only one of {', '.join(own)}")
        return own[0] if own else None

    if section("norm") is None:
        raise SpecError(where, "the key 'norm' is missing")
    content: dict[str, Any] = {"norm": section("norm")}
    for part, family in (("mixer", MIXERS), ("feed_forward", FEED_FORWARDS)):
        key = chosen(family)
        if key is not None:
            content[part] = _record(spec, key, section(key) or {}, prefix, where)
    if not {"mixer", "feed_forward"} & set(content):
        raise SpecError(where, f"the key '{prefix}attention' is missing: a layer needs a mixer or a feed-forward block")
    if (cross := section("cross")) is not None:
        content["cross"] = _record(spec, "cross", {"causal": False, **cross}, prefix, where)
    if (engram := section("engram")) is not None:
        content["engram"] = _record(spec, "engram", engram, prefix, where)
    content["norm"] = record(Norm, content["norm"], where, f"{prefix}norm")
    switches = {key: overrides.get(key, getattr(spec, key)) for key in SWITCHES}
    layer = Layer(**content, **asdict(record(Switches, switches, where, prefix.rstrip("."))))
    check_layer(layer, prefix, where)
    return layer


def _record(spec: _Keys, key: str, section: dict[str, Any], prefix: str, where: str) -> Any:
    if SECTIONS[key] is Attention:
        section = dict(section)
        heads = section.get("heads")
        section.setdefault("kv_heads", heads)
        if "head_dim" not in section and isinstance(heads, int) and heads > 0:
            if spec.hidden % heads:
                problem = f"hidden {spec.hidden} is not divisible by {quote(heads)[1:-1]} heads; give a head_dim"
                raise SpecError(where, f"'{prefix}{key}.heads': {problem}")
            section["head_dim"] = spec.hidden // heads
    return record(SECTIONS[key], section, where, f"{prefix}{key}")
