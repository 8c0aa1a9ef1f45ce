"""The sections of a file that describe its quantization, one reader for each method.

Those of Transformers (`quantization_config`), compressed-tensors, ModelOpt (also in a file of its own), Quark,
AutoRound, torchao and MLX.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from msgspec import Struct, field

from roofline.core.errors import SpecError, quote
from roofline.specs.huggingface.config import Config, rows
from roofline.specs.library import FORMAT_FILES, MODELOPT

SECTION = "quantization_config"
OTHER_SECTION = "quantization"
"""The keys of the section in a config.json; the other one is MLX's, and that of ModelOpt's own file."""
HINT = "; without that section the model runs in 16 bits, or in the scheme of --quant"

PLAIN = ""
"""In place of a scheme: not quantized."""

_TABLES: Mapping[str, Mapping[str, str]] = rows("quantization.yaml")


class Rules(Struct):
    """The schemes of a checkpoint's modules: of `named` ones, and of all other linear layers (`default`).

    `everywhere`: the default is that of the embedding and the LM head too (MLX), `towers`: that of vision encoders.
    """

    default: str
    named: dict[str, str] = field(default_factory=dict)
    everywhere: bool = False
    towers: bool = False


def method_of(section: Config) -> Callable[[Config], Rules]:
    """The reader of a section, by its method; ModelOpt, MLX and Quark name themselves in some files only by keys."""
    own = next((name for key, name in SIGNS.items() if section.content.get(key) is not None), None)
    scalars = {key for key, value in section.content.items() if not isinstance(value, (dict, bool))}
    if not scalars - MLX_KEYS and "bits" in scalars and "group_size" in scalars:
        own = "mlx"
    method = section.text("quant_method", **({"default": own} if own else {})).strip().lower().replace("_", "-")
    method = method.removeprefix("intel/")
    if method not in METHODS:
        raise unknown(section, f"the method {quote(method)}")  # no similar one: a program wrote it
    return METHODS[method]


SIGNS: Mapping[str, str] = {
    "quant_algo": "modelopt",
    "global_quant_config": "quark",
    "w_bit": "awq",
    "desc_act": "gptq",
    **dict.fromkeys(("load_in_4bit", "load_in_8bit"), "bitsandbytes"),
}
"""Keys of sections without a `quant_method`, and whose they are."""


MLX_KEYS = frozenset({"bits", "group_size", "mode"})
"""The settings of MLX's section; its other keys are modules."""


def unknown(section: Config, what: str) -> SpecError:
    """The error for a section, and what to do about it."""
    if Path(section.where).name in FORMAT_FILES[1:]:  # the whole file
        return SpecError(section.where, f"no scheme is known for {what}{HINT.replace('section', 'file')}")
    key = OTHER_SECTION if section.where.endswith(MODELOPT) else SECTION
    return SpecError(section.where, f"{quote(key)}: no scheme is known for {what}{HINT}")


def _grouped(section: Config, kind: str = "int") -> str:
    """Integers with a scale per group, or per channel (-1); 4-bit AWQ and GPTQ also have a zero point."""
    bits = section.integer("bits", "w_bit", most=8)
    group = section.integer("group_size", "q_group_size", default=-1, least=-1, most=65536)
    if group < 1:
        return f"W{bits}"
    if bits == 4 and kind != "int":
        return kind if group == 128 else f"{kind}-g{group}"
    return f"int{bits}-g{group}"


def _gptq(section: Config) -> Rules:
    """GPTQModel's `dynamic` has other settings by expression: -: for modules left alone, +: or nothing for others.

    `modules_in_block_to_quantize` lists all that are quantized.
    """
    whole, dynamic = _grouped(section, "gptq"), section.section("dynamic")
    inside = section.content.get("modules_in_block_to_quantize")
    if inside:
        flat = [name for entry in inside for name in (entry if isinstance(entry, list) else [entry])]
        return Rules(PLAIN, dict.fromkeys(section.replaced({"modules": flat}).texts("modules"), whole))
    named = {}
    for text in dynamic.content:
        changed = dynamic.replaced({**section.content, **dynamic.section(text).content})
        named[f"re:{text.removeprefix('-:').removeprefix('+:')}"] = (
            PLAIN if text.startswith("-:") else _grouped(changed, "gptq")
        )
    return Rules(whole, {**({"lm_head": whole} if section.flag("lm_head", False) else {}), **named})


def _auto_round(section: Config) -> Rules:
    """AutoRound: other settings of modules stand under `extra_config`, 16 bits for those left alone."""
    whole, extra = _rounded(section), section.section("extra_config")
    named = {}
    for text in extra.content:
        changed = extra.replaced({**section.content, **extra.section(text).content})
        # Names with the signs of an expression are one; dots alone are in every name.
        named[f"re:{text}" if set(text) & set("*+[]()|\\^$") else text] = (
            PLAIN if changed.integer("bits", most=32) >= 16 else _rounded(changed)
        )
    return Rules(whole, named)


def _rounded(section: Config) -> str:
    kind, bits = section.text("data_type", "int"), section.integer("bits", most=8)
    if kind == "int":
        return _grouped(section)
    known = {("mx_fp", 4): "mxfp4", ("nv_fp", 4): "nvfp4", ("fp", 8): "fp8"}
    found = next((name for (start, width), name in known.items() if kind.startswith(start) and bits == width), None)
    if found is None:
        raise unknown(section, f"{bits}-bit weights of type {quote(kind)}")
    return found


def _bitsandbytes(section: Config) -> Rules:
    """LLM.int8(), NF4 or FP4; the 4-bit scales are fp32 unless double quantization is enabled.

    Source: BitsAndBytesConfig of Transformers.
    """
    if not section.flag("load_in_4bit", False):
        return Rules("int8", towers=True)
    double = section.flag("bnb_4bit_use_double_quant", False)
    return Rules("nf4" if double else "nf4_single", towers=True)


MIXED = "MIXED_PRECISION"
"""The `quant_algo` of a checkpoint in which each quantized module has an algorithm of its own."""


def _modelopt(section: Config) -> Rules:
    section = section.section(OTHER_SECTION) if section.content.get(OTHER_SECTION) else section
    algorithm = (section.text("quant_algo", "") or "").upper()
    if algorithm != MIXED:
        groups = section.section("config_groups")
        return (
            Rules(_algorithm(section, algorithm), towers=True) if algorithm or not groups.content else _groups(section)
        )
    listed = section.section("quantized_layers")
    if not listed.content and section.section("config_groups").content:
        return _groups(section)
    schemes = {name: listed.section(name) for name in listed.content}
    return Rules(PLAIN, {name: _algorithm(each, each.text("quant_algo").upper()) for name, each in schemes.items()})


def _algorithm(section: Config, algorithm: str) -> str:
    found = _TABLES["modelopt"].get(algorithm)
    if found is None:
        raise unknown(section, f"the algorithm {quote(algorithm)}")
    return found


def _compressed(section: Config) -> Rules:
    """Sparse weights are rejected: they have other sizes and kernels."""
    sparsity = section.section("sparsity_config")
    pattern = sparsity.text("sparsity_structure", "") or ""
    stored = sparsity.text("format", "dense") or "dense"
    layout = section.text("format", "") or ""
    if stored != "dense" or pattern.replace("0:0", "").count(":") or layout == "marlin-24":
        named = layout if layout == "marlin-24" else pattern or stored
        raise SpecError(
            section.where,
            f"'{SECTION}': sparse weights ({quote(named)}) are not supported; without that section, give the format,"
            " and the pattern by the technique n-m-sparsity",
            options=["quant", "with"],
        )
    return _groups(section)


CLASSES = ("Linear", "FusedMoE", "MoEGate", "RowParallelLinear", "ColumnParallelLinear", "QKVParallelLinear")
"""Targets of a group that are classes of modules; any other is a name or an expression."""


def _groups(section: Config) -> Rules:
    """The groups of compressed-tensors: classes of modules, or modules by name, and their formats."""
    groups, default = section.section("config_groups"), PLAIN
    named: dict[str, str] = {}
    for name in groups.content:
        group = groups.section(name)
        scheme = _group_scheme(group)
        targets = group.texts("targets") or ["Linear"]
        if "Linear" in targets:
            if default not in (PLAIN, scheme):
                raise unknown(section, f"{len(groups.content)} groups of formats of all linear layers")
            default = scheme
        named |= dict.fromkeys((target for target in targets if target not in CLASSES), scheme)
    if not groups.content:
        raise unknown(section, "a file without 'config_groups'")
    return Rules(default, named, towers=default != PLAIN)


def _group_scheme(group: Config) -> str:
    weights, inputs = group.section("weights"), group.section("input_activations")
    bits, kind = weights.integer("num_bits", most=16), weights.text("type", "int")
    strategy = weights.text("strategy", "tensor") or "tensor"
    size = weights.integer("group_size", default=-1, least=-1, most=65536)
    fed = inputs.integer("num_bits", most=16) if inputs.content else 16
    if kind == "float":
        known = {
            (8, 8): "fp8_block" if strategy == "block" else "fp8",
            (8, 16): "w8a16_fp8",
            (4, 4): "nvfp4",
            (4, 16): "w4a16_nvfp4",
        }
        if size == 32:
            known = {(4, 16): "mxfp4", (4, 4): "mxfp4", (8, 8): "mxfp8"}
        if (bits, fed) not in known:
            raise unknown(group, f"{bits}-bit floating-point weights and {fed}-bit activations")
        return known[bits, fed]
    if kind != "int" or not 1 <= bits <= 8:
        raise unknown(group, f"{bits}-bit weights of type {quote(kind)}")
    if fed < 16 and inputs.text("type", "int") == "float":
        if (bits, fed, size) != (4, 8, 128):
            raise unknown(group, f"{bits}-bit integer weights and {fed}-bit floating-point activations")
        return "w4afp8"
    if fed < 16:
        return "int8" if bits == fed == 8 else f"W{bits}A{fed}"
    return f"int{bits}-g{size}" if strategy == "group" and size > 0 else f"W{bits}"


def _quark(section: Config) -> Rules:
    """AMD's Quark: a scheme for all layers, others by name, and those of `layer_type_quant_config` by class."""
    by_name, by_class = section.section("layer_quant_config"), section.section("layer_type_quant_config")
    named = {name: _quark_scheme(by_name.section(name)) for name in by_name.content}
    whole = by_class.section("Linear") if "Linear" in by_class.content else section.section("global_quant_config")
    return Rules(_quark_scheme(whole), named, towers=True)


def _quark_scheme(group: Config) -> str:
    steps = group.content.get("weight")
    if isinstance(steps, list) and steps:  # quantized twice, and stored as the last step has it
        group = group.having({"weight": steps[-1]})
    weights, inputs = group.section("weight"), group.section("input_tensors")
    if not weights.content:
        return PLAIN
    kind, per = weights.text("dtype"), weights.text("qscheme", "per_tensor") or "per_tensor"
    size = weights.integer("group_size", default=-1, least=-1, most=65536) if per == "per_group" else -1
    fed = inputs.text("dtype", "") or ""
    if kind == "fp4" and size == 32:
        return "mxfp4"
    if kind == "fp8_e4m3" and per in ("per_tensor", "per_channel"):
        return "fp8" if fed.startswith("fp8") else "w8a16_fp8"
    if kind == "int4" and per == "per_channel":
        return "w4afp8" if fed.startswith("fp8") else "W4"  # a scale a channel, counted as one for 128
    if kind in ("int4", "uint4") and size > 0:
        return ("int4-g" if kind == "int4" else "awq-g") + str(size)
    if kind in ("int8", "uint8"):
        return "int8" if "int8" in fed else "W8"
    raise unknown(group, f"weights of type {quote(kind)}, {quote(per)}")


def _mlx(section: Config) -> Rules:
    """MLX: every linear layer and the embedding in groups with a scale and a bias of 16 bits, others by name.

    `false` leaves a module alone, a mapping has its own settings (mlx.nn.quantize; mlx_lm/utils.py).
    """
    named = {}
    listed = section.section("per_tensor").content  # JANG's
    for name, value in {**section.content, **listed}.items():
        if value is False:
            named[name] = PLAIN
        elif isinstance(value, dict):
            named[name] = _mlx_scheme(section.having(value))
    return Rules(_mlx_scheme(section), named, everywhere=True)


def _mlx_scheme(section: Config) -> str:
    mode = section.text("mode", "affine") or "affine"
    if mode in ("mxfp4", "nvfp4"):
        return "mxfp4" if mode == "mxfp4" else "w4a16_nvfp4"
    if mode != "affine":
        raise unknown(section, f"MLX's mode {quote(mode)}")
    return f"affine{section.integer('bits', default=4, most=8)}-g{section.integer('group_size', default=64)}"


def _torchao(section: Config) -> Rules:
    """torchao: one configuration, by its class or its older name, or one for each module by name."""
    given = section.content.get("quant_type")
    nested = given.get("default", given) if isinstance(given, dict) else {"_type": given}
    outer = section.replaced(nested if isinstance(nested, dict) else {"_type": nested})
    if outer.text("_type") not in ("ModuleFqnToConfig", "FqnToConfig"):
        return Rules(_torchao_scheme(outer), towers=True)
    data = outer.section("_data")
    listed = next((data.section(key) for key in ("module_fqn_to_config", "fqn_to_config") if key in data.content), data)
    chosen = {name: _torchao_scheme(listed.section(name)) if value else PLAIN for name, value in listed.content.items()}
    return Rules(chosen.pop("_default", PLAIN), chosen)


def _torchao_scheme(config: Config) -> str:
    """The scheme of one configuration, by its name in small letters alone, without Config."""
    name, given = config.text("_type"), config.content.get("_data")
    data = config.replaced(given) if isinstance(given, dict) else config
    key = name.lower().replace("_", "").removesuffix("config")
    if key == "int4weightonly":
        return f"affine4-g{data.integer('group_size', default=128)}"
    if key == "intxweightonly":
        bits, group = _bits(data), data.section("granularity").section("_data").integer("group_size", default=None)
        return f"affine{bits}-g{group}" if group else f"W{bits}"
    if key == "int8dynamicactivationintxweight":
        return f"W{_bits(data)}A8"
    if key not in _TABLES["torchao"]:
        raise unknown(config, f"torchao's {quote(name)}")
    return _TABLES["torchao"][key]


def _bits(data: Config) -> str:
    return str(data.section("weight_dtype").text("_data", "int8").removeprefix("int"))


def _hqq(section: Config) -> Rules:
    """HQQ: a scale and a zero point of 16 bits a group (hqq/core/quantize.py)."""
    given = section.section("quant_config").section("weight_quant_params")
    sizes = given if given.content else section
    return Rules(f"affine{sizes.integer('nbits', 'bits', most=8)}-g{sizes.integer('group_size')}")


def _fp_quant(section: Config) -> Rules:
    """FP-Quant: the format of a forward pass (FPQuantConfig of Transformers, whose default is nvfp4)."""
    name = section.text("forward_dtype", "nvfp4")
    if name not in ("mxfp4", "nvfp4"):
        raise unknown(section, f"FP-Quant's {quote(name)}")
    return Rules(name)


def _whole(scheme: str, _: Config) -> Rules:
    return Rules(scheme)


def block_sides(section: Config) -> list[int]:
    """Rows and columns of the blocks that share a scale; [] where the section names none."""
    sides = section.integers("weight_block_size")
    if section.content.get("weight_block_size") is not None and (len(sides) != 2 or min(sides) < 1):
        raise SpecError(section.where, f"'weight_block_size' must be two whole numbers above 0, got {quote(sides)}")
    return sides


METHODS: Mapping[str, Callable[[Config], Rules]] = {
    "fp8": lambda section: Rules("fp8_block" if block_sides(section) else "fp8"),  # DeepSeek-V3
    **{method: partial(_whole, scheme) for method, scheme in _TABLES["methods"].items()},
    "awq": lambda section: Rules(_grouped(section, "awq")),
    "gptq": _gptq,
    **dict.fromkeys(("auto-round", "inc"), _auto_round),
    "bitsandbytes": _bitsandbytes,
    "modelopt": _modelopt,
    "modelopt-fp4": _modelopt,
    "compressed-tensors": _compressed,
    "quark": _quark,
    "torchao": _torchao,
    "hqq": _hqq,
    "fp-quant": _fp_quant,
    "mlx": _mlx,
}
"""The reader of a section, by its `quant_method`."""
