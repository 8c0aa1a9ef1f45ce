"""Quantization: weights alone, weights and activations, the KV cache, and models trained in one or two bits."""

from __future__ import annotations

from roofline.core.errors import RooflineError, UnknownNameError
from roofline.core.expressions import Type, parse_expression
from roofline.graph.rewrite import Adapter, Incoherence
from roofline.scenario.scenario import Scenario
from roofline.specs.formats import UNQUANTIZED_FORMATS, Format, find_format, grouped
from roofline.specs.schemes import GGUF, WeightScheme
from roofline.techniques.changes import with_precision, with_rewrite

SCALE_BITS = 16
"""Bits of a scale or offset as the papers store it: fp16."""


def stored(name: str, effective: float, nominal: float, family: str = "int") -> Format:
    """A format of `effective` bits an element, scales included, and `nominal` bits without.

    `family` is the arithmetic of the elements: "int", "fp", or "code" for codes that are dequantized first.
    """
    arithmetic = family if family == "code" else f"{family}{4 if nominal <= 4 else 8}"
    return Format(f"{name}-{effective:.4g}", effective, arithmetic)


def with_formats(
    scenario: Scenario,
    name: str,
    weights: Format | WeightScheme | None = None,
    activations: Format | None = None,
    kv: Format | None = None,
) -> Scenario:
    """The scenario with other formats; raises RooflineError where one of them is already quantized."""
    precision = scenario.precision
    for part, chosen, current in (
        ("weights", weights, precision.weights.name),
        ("activations", activations, precision.activations.name),
        ("KV cache", kv, precision.kv.name),
    ):
        if chosen is not None and current not in UNQUANTIZED_FORMATS:
            raise RooflineError(f"{name} sets the format of the {part}, which is already {current}: choose one")
    scheme = WeightScheme(weights.name, weights) if isinstance(weights, Format) else weights
    return with_precision(scenario, weights=scheme, activations=activations, kv=kv)


def _cache_format(name: str, bits: int, group: int) -> Format | None:
    """A KV cache format with a scale and an offset a group, dequantized before the GEMM; None for 16 bits."""
    effective = grouped(bits, group, SCALE_BITS, SCALE_BITS) if group else float(bits)
    return stored(f"{name}-kv", effective, bits, "code") if bits < 16 else None


def named_formats(
    scenario: Scenario, name: str, *, weights: str = "", activations: str = "", kv: str = "", group: int = 0
) -> Scenario:
    """The scenario with formats of `roofline.specs.formats`, each "" to keep the present one.

    `group`: weights that share a scale, where the format is one of groups.
    """
    chosen = {"weights": f"{weights}-g{group}" if group else weights, "activations": activations, "kv": kv}
    return with_formats(scenario, name, **{part: find_format(format) for part, format in chosen.items() if format})


TRANSFORMED = ("q_proj", "up_proj", "o_proj", "down_proj", "q_a_proj")
"""Layers of which the input is transformed; k_proj, v_proj and gate_proj read the same."""


def weight_only(
    scenario: Scenario, name: str, *, effective: str, arithmetic: str = "int", transforms: str = "", **values: float
) -> Scenario:
    """The scenario with linear layers stored in few bits and dequantized as they are read.

    `effective` is the formula of the bits a weight, with scales and outliers, over `values`; `bits` of `values` are
    those without. `arithmetic`: "int", or "code" for indices into a table. `transforms` of every linear layer at run
    time: "hadamard" (QuIP#), or "kronecker" for products of two orthogonal matrices (QuIP).
    """
    bits = float(parse_expression(effective, dict.fromkeys(values, Type.NUMBER))(values))
    if transforms:
        turned = Incoherence(TRANSFORMED, outputs=True, kronecker=transforms == "kronecker")
        scenario = with_rewrite(scenario, name, turned)
    return with_formats(scenario, name, weights=stored(name, bits, values.get("bits", bits), arithmetic))


def grouped_integers(
    scenario: Scenario, name: str, *, bits: int, group: int, zero: bool = True, plain: bool = False
) -> Scenario:
    """The scenario with linear layers in integers with a scale for each group of weights (0: per channel).

    `zero`: each group also has a zero point of as many bits as a weight. `plain`: any kernel for such integers runs
    the checkpoints, so that the format is named after the integers.
    """
    effective = grouped(bits, group, SCALE_BITS, bits if zero else 0) if group else float(bits)
    return with_formats(scenario, name, weights=stored(f"int{bits:g}-{name}" if plain else name, effective, bits))


FILE_TYPES = {scheme.name: scheme for scheme in GGUF}


def file_type(scenario: Scenario, name: str, *, type: str) -> Scenario:
    """The scenario with weights in a file type of llama.cpp."""
    key = type.strip().lower()
    if key not in FILE_TYPES:
        raise UnknownNameError("GGUF file type", key, FILE_TYPES)
    return with_formats(scenario, name, weights=FILE_TYPES[key])


ROTATED = ("o_proj", "down_proj")
"""Linear layers whose inputs keep a Hadamard transform at run time; the others' are merged into weights."""


def weights_and_activations(
    scenario: Scenario,
    name: str,
    *,
    weights: int,
    activations: int,
    group: int,
    kv: int = 16,
    kv_group: int = 128,
    rank: int = 0,
    arithmetic: str = "int",
    rotate: bool = False,
) -> Scenario:
    """The scenario with weights, activations and KV cache in these bits, scales excluded; 16: not quantized.

    `group`: weights that share a scale (0: per channel, scales not counted), `kv_group`: cached elements that share a
    scale and an offset. `rank`: of a low-rank compensation beside every linear layer (0: none). `rotate`: the inputs of
    `ROTATED` layers pass a Hadamard transform.
    """

    def format(part: str, bits: int, group: int = 0) -> Format | None:
        effective = grouped(bits, group, SCALE_BITS) if group else float(bits)
        return stored(f"{name}-{part}", effective, bits, arithmetic) if bits < 16 else None

    if rotate:
        scenario = with_rewrite(scenario, name, Incoherence(ROTATED, outputs=False))
    cache = _cache_format(name, kv, kv_group)
    scenario = with_formats(
        scenario, name, format("weights", weights, group), format("activations", activations), cache
    )
    return with_rewrite(scenario, name, Adapter(rank)) if rank else scenario


def _with_outliers(scenario: Scenario, name: str, effective: float, nominal: int, kv: Format | None) -> Scenario:
    """The scenario with weights and inputs of GEMMs in one format, of which some channels are wider."""
    weights, inputs = (stored(f"{name}-{part}", effective, nominal) for part in ("weights", "inputs"))
    return with_formats(scenario, name, weights, inputs, kv)


def outlier_columns(scenario: Scenario, name: str, *, outliers: float) -> Scenario:
    """LLM.int8(): 8 bits, and 16 for a fraction of the input columns."""
    return _with_outliers(scenario, name, (1 - outliers) * 8 + outliers * 16, 8, None)


def outlier_channels(scenario: Scenario, name: str, *, bits: int, group: int, outliers: int, kv: int) -> Scenario:
    """Atom: few bits with a scale a group, and 8 for a number of the input channels."""
    fraction = min(1.0, outliers / scenario.model.hidden)
    effective = (1 - fraction) * bits + fraction * 8 + SCALE_BITS / group
    return _with_outliers(scenario, name, effective, bits, _cache_format(name, kv, group))


def grouped_cache(scenario: Scenario, name: str, *, bits: int, group: int) -> Scenario:
    """The scenario with a KV cache in few bits, with a scale and an offset a group."""
    return with_formats(scenario, name, kv=_cache_format(name, bits, group))


def cache_with_outliers(scenario: Scenario, name: str, *, bits: int, outliers: float) -> Scenario:
    """KVQuant: a fraction of the cached elements is stored a second time, in fp16 with a 16-bit index."""
    return with_formats(scenario, name, kv=stored(name, bits + outliers * (16 + 16), bits, "code"))


def weights_and_cache(scenario: Scenario, name: str, *, bits: int, group: int) -> Scenario:
    """The scenario with weights and KV cache in few bits, with a scale and an offset a group."""
    weights = stored(name, grouped(bits, group, SCALE_BITS, SCALE_BITS), bits)
    return with_formats(scenario, name, weights, kv=_cache_format(name, bits, group))
