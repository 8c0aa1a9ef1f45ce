"""The quantization of a checkpoint: the scheme of each module, from what its files say of them by name.

A section (`quantization_methods`) says what linear layers are stored in, which modules are not quantized, and which are
in other formats; what it does not say stays in the model's own format, as do embeddings, routers, norms and vision
encoders.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from roofline.core.errors import SpecError, quote
from roofline.specs.formats import find_format
from roofline.specs.huggingface.config import Config, Spec
from roofline.specs.huggingface.modules import TOWERS, Patterns, modules
from roofline.specs.huggingface.quantization_methods import (
    MIXED,
    OTHER_SECTION,
    PLAIN,
    SECTION,
    Rules,
    block_sides,
    method_of,
    unknown,
)
from roofline.specs.library import MODELOPT
from roofline.specs.model import Model
from roofline.specs.modelspec import parse_model
from roofline.specs.precision import scheme_formats
from roofline.specs.schemes import PARTS, UNQUANTIZED, find_weight_scheme

EXPERTS = "re:.*[.]experts[.].*"
"""Routed experts, and not shared ones."""


def quantization(config: Config, beside: Config | None, spec: Spec) -> Spec:
    """The spec keys of a checkpoint's quantization; none if it is unquantized. `spec` has the model's others.

    `beside`: the file that names it, if the config.json does not. Raises SpecError for an unknown method
    or format instead of assuming 16 bits.
    """
    places = (config, config.section("text_config"))
    keys = (SECTION, "compression_config", OTHER_SECTION)
    sections = [section for place in places for key in keys if _has_weights(section := place.section(key))]
    if not sections and beside is not None and beside.where.endswith(MODELOPT):
        section = beside.section(OTHER_SECTION)
        # Without an algorithm only the KV cache is quantized.
        sections = [section] if section.text("quant_algo", None) else []
    elif not sections and beside is not None:
        sections = [beside]
    stated = [place.section(key) for place in places for key in keys] + ([] if beside is None else [beside])
    scales = next((tool for each in stated if (tool := _kv_scales(each))), None)
    cache: Spec = {"kv_scales": scales} if scales else {}
    if not sections:
        return cache
    section = sections[0]
    rules = method_of(section)(section)
    for place in (section, places[0]):  # DeepSeek-V4
        experts = place.text("expert_dtype", None)
        if experts not in (None, "fp4", "fp8"):
            raise SpecError(config.where, f"'expert_dtype' must be fp4 or fp8, got {quote(experts)}")
        if experts == "fp4":
            rules.named[EXPERTS] = "mxfp4"
    if places[0].text("model_type", None) == "kimi_k3":  # stored in 16 bits, though its file does not say so
        rules.named |= dict.fromkeys(("routed_expert_down_proj", "routed_expert_up_proj"), PLAIN)
    excluded = dict.fromkeys((name for key in EXCLUSION_KEYS for name in section.texts(key)), PLAIN)
    rules.named = {**excluded, **rules.named, **excluded}  # first in order, and last in value
    model = parse_model(spec, config.where)
    found = _spec(rules, model, config.where)
    found.update(cache if found else {})
    if (sides := block_sides(section)) and sides != [128, 128]:
        found["block"] = sides[0]
    if not found:
        algorithm = (section.text("quant_algo", "") or "").upper()
        mixed = f"the algorithm {quote(MIXED)} without 'quantized_layers'"
        raise unknown(section, f"{mixed if algorithm == MIXED else 'a section without modules'} of the model")
    patterns = Patterns(rules.named, config.where)
    of_towers = (patterns.find((name,)) for name in TOWERS)
    tower = next((each for each in of_towers if each is not None), None) if model.tower_kind == "vision" else PLAIN
    if (rules.default if tower is None and rules.towers else tower or PLAIN) != PLAIN:
        found["tower"] = {**spec["tower"], "quantization": tower or rules.default}
    return found


def _kv_scales(section: Config) -> str | None:
    """The tool whose section says that a checkpoint has scales of an FP8 cache, as vLLM reads it; None for none.

    See get_kv_cache_quant_algo_string in vllm/utils/torch_utils.py and the compressed-tensors' scheme of a cache.
    """
    inner = section.content.get(OTHER_SECTION)
    content = {**section.content, **inner} if isinstance(inner, dict) else section.content
    method = str(content.get("quant_method") or ("modelopt" if "quant_algo" in content else ""))
    tool = next((name for name in ("modelopt", "compressed-tensors") if method.startswith(name)), None)
    scheme, algorithm = content.get("kv_cache_scheme"), content.get("kv_cache_quant_algo")
    eight = isinstance(scheme, dict) and scheme.get("num_bits") == 8 and scheme.get("type") == "float"
    static = isinstance(scheme, dict) and scheme.get("dynamic") is False
    return tool if (eight and static) or str(algorithm).upper() == "FP8" else None


def _has_weights(section: Config) -> bool:
    """Whether a section says something of weights, and not of the KV cache alone."""
    content = section.content
    only_cache = content.get("kv_cache_scheme") is not None or content.get("kv_cache_quant_algo") is not None
    named = ("quant_algo", "config_groups", "quantized_layers")
    return bool(content) and not (only_cache and not any(content.get(key) for key in named))


EXCLUSION_KEYS = (
    *("modules_to_not_convert", "llm_int8_skip_modules"),
    *("ignore", "ignored_layers", "exclude_modules", "exclude"),
)
"""The keys under which files list modules that are not quantized."""


def _spec(rules: Rules, model: Model, where: str) -> Spec:
    """The spec keys by which each module of a model has the scheme of the rules; {} where none is quantized."""
    named = Patterns(rules.named, where)
    formats: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    schemes: set[str] = set()
    for component, names, share in modules(model, named.name_layer):
        default = rules.default if component not in UNQUANTIZED or rules.everywhere else PLAIN
        found = named.find(names)
        scheme = default if found is None else found
        formats[component][_weights(scheme) if scheme else model.dtype] += share
        if scheme:
            schemes.add(scheme)
    if not schemes and rules.default == PLAIN:
        return {}
    main = rules.default or min(sorted(schemes), key=lambda name: find_format(_weights(name)).bits)
    return {"quantization": main, **_exceptions(formats, main, model)}


def _exceptions(formats: Mapping[str, Mapping[str, float]], main: str, model: Model) -> Spec:
    """What differs from the scheme `main` of all linear layers: whole parts without it, or each component's format."""
    usual = find_weight_scheme(_weights(main)).of_model(bool(model.experts)).unquantized
    plain = {component for component, found in formats.items() if set(found) == {model.dtype}}
    mixed = any(set(found) - {model.dtype, _weights(main)} or len(found) > 1 for found in formats.values())
    left = {part: components & formats.keys() for part, components in PARTS.items()}
    parts = [part for part, components in left.items() if components and components <= plain]
    if not mixed and plain == (usual & formats.keys()).union(*(left[part] for part in parts)):
        return {"unquantized": parts} if parts else {}
    return {
        "formats": {
            component: next(iter(found)) if len(found) == 1 else dict(found)
            for component, found in formats.items()
            if set(found) != {model.dtype}
        }
    }


def _weights(scheme: str) -> str:
    return scheme_formats(scheme)[0] or scheme
