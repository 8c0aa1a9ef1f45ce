"""Hybrid inference of mixtures of experts: the routed experts in CPU memory, computed there (KTransformers)."""

from __future__ import annotations

from roofline.bound.memory import stored_tensors
from roofline.core.errors import UnsupportedError
from roofline.graph.network import network
from roofline.graph.parallel import SINGLE
from roofline.graph.tensor import Role
from roofline.scenario.parts import Part
from roofline.scenario.scenario import Scenario
from roofline.scenario.settings import Host
from roofline.specs.formats import UNQUANTISED_FORMATS
from roofline.specs.hardware import load_hardware
from roofline.techniques.base import Parameter, Published, Technique, Values, system_technique
from roofline.techniques.changes import precision_of, with_settings

KTRANSFORMERS = "KTransformers, doc/en/DeepseekR1_V3_tutorial.md (v0.2)"


def _experts_on_cpu(scenario: Scenario, values: Values) -> Scenario:
    model, settings = scenario.model, scenario.settings
    if not model.experts:
        raise UnsupportedError(f"experts-on-cpu places routed experts, and {model.name} has none")
    if settings.parallel != SINGLE or settings.host is not None:
        raise UnsupportedError("experts-on-cpu is simulated for one device with one CPU beside it")
    share = values["share"]
    host = Host(
        load_hardware(values["hardware"]),
        work=share,
        memory=share * _expert_fraction(scenario),
        kv=0.0,
        part=Part.EXPERTS,
        compute=_arithmetic(scenario),
    )
    return with_settings(scenario, host=host)


def _arithmetic(scenario: Scenario) -> str | None:
    """FP32 for quantised experts: kernels of GGUF formats unpack and multiply them on vector units, not with AMX.

    KTransformers did so up to version 0.2 (its doc/en/AMX.md); llama.cpp has AMX kernels for dense layers alone.
    """
    linear = precision_of(scenario).weights.linear
    return None if linear is None or linear.name in UNQUANTISED_FORMATS else "fp32"


def _expert_fraction(scenario: Scenario) -> float:
    """The fraction of the bytes of all stored weights that routed experts have."""
    sections = network(scenario.model, precision_of(scenario)).sections
    sizes = [
        (tensor.name.startswith("expert_"), count * tensor.format.bytes * tensor.stored_elements.evaluate({}))
        for tensor, count in stored_tensors(sections, Role.WEIGHT)
    ]
    return float(sum(size for inside, size in sizes if inside) / sum(size for _, size in sizes))


TECHNIQUES: tuple[Technique, ...] = (
    system_technique(
        "experts-on-cpu",
        "Routed experts in CPU memory, computed by the CPU",
        "Chen et al. 2025, KTransformers; llama.cpp, --override-tensor exps=CPU and --cpu-moe",
        "The CPU stores and computes the routed experts; attention, shared experts and KV cache stay on the device.",
        "placement",
        _experts_on_cpu,
        Parameter("hardware", "xeon-platinum-8480plus", "the CPU beside the device"),
        Parameter("share", 1.0, "fraction of the MoE layers whose experts are on the CPU (--n-cpu-moe)", 0, 1),
        covers=("KTransformers",),
        published=(
            Published(
                "8.73 tokens/s in decode, 54.2 in prefill (llama.cpp on two sockets 4.51 and 10.3)",
                "DeepSeek-V3 Q4_K_M, RTX 4090D, one Xeon Gold 6454S with 8 channels of DDR5-4800, a prompt of 500",
                KTRANSFORMERS,
            ),
            Published("12.2 tokens/s in decode, 82.9 in prefill", "the same on two sockets", KTRANSFORMERS),
        ),
        caveat="One socket, whose vector units multiply quantised experts: neither the AMX kernels of KTransformers 0.3"
        " nor copies of the experts on two sockets are simulated. Device and CPU do not overlap, and the transfer of"
        " activations between them is not counted; neither is llama.cpp's transfer of experts to the device for long"
        " prompts.",
    ),
)
