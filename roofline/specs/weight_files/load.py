"""From a checkpoint on disk to a model spec and its stored formats."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from roofline.core.documents import read_mapping
from roofline.core.errors import RooflineError, SpecError, quote
from roofline.core.units import si
from roofline.specs.formats import FORMATS, UNQUANTIZED_FORMATS, Format
from roofline.specs.huggingface import translate, translate_file
from roofline.specs.library import ADAPTER, CONFIG
from roofline.specs.precision import PLAIN, scheme_formats
from roofline.specs.records import record
from roofline.specs.schemes import GGUF, MXFP4_BLOCKS, WeightScheme, find_weight_scheme
from roofline.specs.weight_files.components import SAFETENSORS, layer_of, of_gguf, of_safetensors
from roofline.specs.weight_files.ggml import FILE_TYPES, TYPES
from roofline.specs.weight_files.gguf import Gguf, read_gguf
from roofline.specs.weight_files.gguf_config import ARCHITECTURES, config_of
from roofline.specs.weight_files.safetensors import read_header, shards
from roofline.specs.weight_files.stored import REMOTE, Remote, Share, Stored, StoredTensor, average, shares

_SPLIT = re.compile(r"-(\d{5})-of-(\d{5})$")

Named = Iterable[tuple[StoredTensor, tuple[str, ...], Format | None, int]]
"""Tensors with their components, format and logical elements; no format for scales and zero points."""


def load_checkpoint(path: Path) -> tuple[dict[str, Any], Stored | None]:
    """The content of a model spec for the checkpoint at `path`, and what it stores; None if the hub has no safetensors.

    Raises SpecError, in one sentence, for a damaged header, a missing file, or an architecture that is not read.
    """
    if path.suffix.lower() == ".gguf" and not path.is_dir():
        return _gguf(path)
    return _folder(path if path.is_dir() else path.parent)


def _gguf(path: Path) -> tuple[dict[str, Any], Stored]:
    files = [read_gguf(part) for part in _parts(path)]
    whole = replace(files[0], tensors=tuple(tensor for file in files for tensor in file.tensors))
    name = _SPLIT.sub("", path.stem)
    config = path.with_name(CONFIG)
    if whole.metadata.get("general.architecture") not in ARCHITECTURES and config.is_file():
        content = translate({**read_mapping(config), "quantization_config": None}, str(config), name)
    else:
        content = translate(config_of(whole, str(path)), str(path), name)
    matrices = shares(tensor for tensor in whole.tensors if len(tensor.shape) > 1).items()
    dominant = max(matrices, key=lambda entry: entry[1].bytes, default=("fp16", Share()))[0]
    content["dtype"] = "bf16" if dominant == "bf16" else "fp16"
    content["quantization"] = _file_type(whole, dominant, str(path))
    gated = any(".ffn_gate.weight" in tensor.name for tensor in whole.tensors)
    named = ((tensor, of_gguf(tensor.name, gated), _ggml(tensor.format), tensor.elements) for tensor in whole.tensors)
    kept = frozenset[str]()
    plain = WeightScheme(content["quantization"] or content["dtype"], _ggml(dominant), unquantized=kept)
    stored = _stored(str(path), content, whole.tensors, named, plain)
    sizes = {"header": sum(file.header for file in files), "size": sum(file.size for file in files)}
    return content, replace(stored, **sizes, files=len(files), loaded=True)


def _parts(path: Path) -> list[Path]:
    """The files of a split checkpoint, the first one first."""
    split = _SPLIT.search(path.stem)
    if split is None or not int(split[2]):
        return [path]
    parts = []
    for number in range(1, int(split[2]) + 1):
        parts.append(path.with_name(f"{path.stem[: split.start()]}-{number:05}-of-{split[2]}{path.suffix}"))
        if not parts[-1].is_file():
            raise SpecError(str(parts[-1]), "is missing: a part of a split checkpoint")
    return parts


def _file_type(file: Gguf, dominant: str, where: str) -> str | None:
    """The scheme that the file names, or else one with its most frequent format; None for unquantized matrices."""
    if dominant in UNQUANTIZED_FORMATS:
        return None
    schemes = {scheme.name: scheme for scheme in GGUF}
    written = file.metadata.get("general.file_type")
    named = FILE_TYPES.get(written) if isinstance(written, int) else None
    if named in schemes:
        return named
    if dominant.startswith("tq"):
        return "ternary"
    chosen = next((name for name, scheme in schemes.items() if _ggml(dominant) == scheme.linear), None)
    if chosen is None and dominant != "mxfp4":
        raise SpecError(where, f"most of its weights are {dominant}, a format without a scheme")
    return chosen or "mxfp4_moe"


@lru_cache(maxsize=64)
def _ggml(name: str) -> Format:
    _, block, bytes = next(entry for entry in TYPES.values() if entry[0] == name)
    if name == "mxfp4":
        return MXFP4_BLOCKS
    return FORMATS.get(name) or Format(name, 8 * bytes / block, "int8" if block > 1 else "fp32")


def _folder(folder: Path) -> tuple[dict[str, Any], Stored | None]:
    where = str(folder)
    if not (folder / CONFIG).is_file():
        adapter = _adapter(folder)
        if adapter:
            raise SpecError(where, f"is no model but a {adapter.removeprefix('the ')}")
        raise SpecError(where, f"has no {CONFIG}: it is no folder of a Hugging Face model")
    about = folder / REMOTE  # of the repository that headers were read from
    remote = record(Remote, read_mapping(about), str(about)) if about.is_file() else None
    if remote is not None:
        where = remote.repository
    content = translate_file(folder / CONFIG, "" if remote is None else remote.repository.partition("/")[2].lower())
    files = [read_header(path, None if remote is None else remote.sizes.get(path.name)) for path in shards(folder)]
    if remote is not None:
        content["source"] = f"https://huggingface.co/{remote.repository.partition('@')[0]}"
    if not files:
        return content, None
    tensors = tuple(tensor for file in files for tensor in file[0])
    base = FORMATS[content.get("dtype", "bf16")]
    scheme = find_weight_scheme(scheme_formats(content.get("quantization") or PLAIN)[0] or base.name)
    named = ((tensor, *_described(tensor, scheme, base)) for tensor in tensors)
    stored = _stored(where, content, tensors, named, scheme)
    places = () if remote is not None else (folder, *sorted(filter(Path.is_dir, folder.iterdir())))
    adapters = tuple(filter(None, map(_adapter, places)))
    sizes = {"header": sum(file[1] for file in files), "size": sum(file[2] for file in files)}
    return content, replace(stored, **sizes, files=len(files), adapters=adapters)


_WEIGHTS = ("weight", "bias", "qweight", "weight_packed")
_PLAIN: Mapping[str, str] = {"F32": "fp32", "F16": "fp16", "BF16": "bf16"}


def _described(tensor: StoredTensor, scheme: WeightScheme, base: Format) -> tuple[tuple[str, ...], Format | None, int]:
    """The components of a tensor, its format, and the elements that it packs; no format for scales and zero points."""
    components = of_safetensors(tensor.name)
    ending = tensor.name.rpartition(".")[2]
    if ending not in (*_WEIGHTS, *SAFETENSORS) and not ending.endswith(("_blocks", "_bias")):
        return components, None, 0
    if tensor.format in _PLAIN:
        return components, FORMATS[_PLAIN[tensor.format]], tensor.elements
    format = scheme.linear or base
    if tensor.format.startswith("F8") and format.arithmetic != "fp8":  # beside NVFP4, whose elements are packed as U8
        format = FORMATS["fp8"]
    return components, format, 8 * tensor.bytes // max(math.floor(format.bits), 1)


def _adapter(folder: Path) -> str:
    """A LoRA adapter in a folder, in words; "" if there is none, or one that cannot be read."""
    try:
        settings = read_mapping(folder / ADAPTER)
        base, rank = settings.get("base_model_name_or_path"), settings.get("r")
        bytes = sum(tensor.bytes for path in folder.glob("adapter_*.safetensors") for tensor in read_header(path)[0])
    except RooflineError:
        return ""
    if type(rank) is not int or not 1 <= rank <= 4096:
        return ""
    owner = f" of {quote(base)}" if isinstance(base, str) else ""
    return f"the LoRA adapter {quote(folder.name)}{owner}, {si(bytes, 'B')}: simulate it --with lora:rank={rank}"


class _Component(Struct):
    """What has been found of one component so far."""

    formats: dict[Format, Share]
    scales: int = 0


def _stored(
    where: str, content: Mapping[str, Any], tensors: Iterable[StoredTensor], named: Named, scheme: WeightScheme
) -> Stored:
    """What a checkpoint stores, with the format of each component in place of those of `scheme`."""
    layers = content["layers"]["count"] if isinstance(content["layers"], dict) else content["layers"]
    tied = bool(content.get("tied_embeddings"))
    found: dict[str, _Component] = {}
    groups: dict[tuple[str, ...], Share] = {}
    left_out = Share()
    for tensor, components, format, elements in named:
        if not components or layer_of(tensor.name) >= layers:
            left_out += Share(1, tensor.elements, tensor.bytes)
            continue
        if tied and components == ("embedding",):
            components = ("lm_head",)
        own = Share(int(format is not None), elements, tensor.bytes)
        groups[components] = groups.get(components, Share()) + own
        for component in components:
            entry = found.setdefault(component, _Component({}))
            if format is None:
                entry.scales += tensor.bytes
            else:
                entry.formats[format] = entry.formats.get(format, Share()) + own
    special = {
        name: _with_scales(entry)
        for name, entry in found.items()
        if any(share.elements for share in entry.formats.values())
    }
    exact = replace(scheme, special=MappingProxyType({**scheme.special, **special}))
    return Stored(where, exact, groups, shares(tensors), left_out, 0, 0)


def _with_scales(entry: _Component) -> Format:
    """The average format of a component, its scales and zero points included."""
    first = max(entry.formats, key=lambda name: entry.formats[name].elements)
    formats = {**entry.formats, first: entry.formats[first] + Share(0, 0, entry.scales)}
    return average(formats)
