"""Kernels: attention in one kernel, other fusions, and what changes the speed of kernels but no byte and no FLOP."""

from __future__ import annotations

from msgspec.structs import replace

from roofline.core.errors import UnsupportedError
from roofline.graph.fusion import check_fusions
from roofline.graph.network import Build, network
from roofline.scenario.scenario import Scenario
from roofline.specs.precision import Precision
from roofline.techniques.base import Change, Published, Technique, Values, needs_generation, with_settings
from roofline.techniques.entries import system_entry

TABLE_6 = "Zhou et al. 2024, Table 6"
_SETTING = "LLaMA-2-7B, batch 1, 1k input, 128 output on one A100 80GB; precision not stated"
_AT_THE_BOUND = (
    "Costs at the roofline's bound stay as they are, which already takes every kernel to reach its roof; what it buys "
    "shows in calibrated times only."
)


def fused(name: str, *fusions: str) -> Change:
    """Kernels that each replace a run of operators; refused where the model has no such run."""

    def change(scenario: Scenario, _: Values) -> Scenario:
        precision = scenario.precision
        assert isinstance(precision, Precision)
        plain = network(scenario.model, precision)
        if len(network(scenario.model, precision, Build(check_fusions(fusions))).ops) == len(plain.ops):
            raise UnsupportedError(f"{name} finds no operators in {scenario.model.name} that run one after the other")
        chosen = {*(scenario.fusions or ()), *fusions}
        if "gate_up_act" in chosen:
            chosen.discard("gate_up")  # the larger fusion does its work as well
        return replace(scenario, fusions=tuple(chosen))

    return change


def _decoding(name: str, change: Change) -> Change:
    """A change of decoding only."""

    def checked(scenario: Scenario, values: Values) -> Scenario:
        needs_generation(scenario, name)
        return change(scenario, values)

    return checked


def _dropless(scenario: Scenario, _: Values) -> Scenario:
    if not scenario.model.experts:
        raise UnsupportedError(f"megablocks multiplies experts, and {scenario.model.name} has none")
    return with_settings(scenario, expert_capacity=1.0)


def _replayed(scenario: Scenario, _: Values) -> Scenario:
    """The engine's profile with decode steps replayed."""
    profile = scenario.profile
    if "decode" in profile.graphs:
        return scenario
    return replace(scenario, engine=replace(profile, graphs=(*profile.graphs, "decode")))


TECHNIQUES: tuple[Technique, ...] = (
    system_entry(
        "flash-attention",
        "Attention in one tiled kernel",
        "Dao et al. 2022, FlashAttention",
        "scores and probabilities never leave the chip: traffic and memory of attention fall from quadratic to linear",
        "attention kernel",
        fused("flash-attention", "attention"),
        covers=("FlashAttention", "FlashAttention 2", "xFormers", "cuDNN fused MHA", "online softmax"),
        caveat="It is on unless it is turned off. Keys are read once a pass, whatever the size of its tiles.",
    ),
    system_entry(
        "flash-decoding",
        "Decode attention split along the sequence",
        "Dao et al. 2023, Flash-Decoding",
        "the keys of a sequence are split over the whole device and the parts merged: occupancy at small batches",
        "decode attention kernel",
        _decoding("flash-decoding", fused("flash-decoding", "attention")),
        covers=("FlashDecoding", "PagedAttention V2"),
        caveat=f"{_AT_THE_BOUND} The partial outputs that are merged are left out.",
    ),
    system_entry(
        "flashdecoding-plus-plus",
        "Asynchronous softmax and flat matrix products",
        "Hong et al. 2024, FlashDecoding++",
        "a softmax without synchronisation, and kernels chosen by shape for the flat products of decoding",
        "decode attention kernel",
        _decoding("flashdecoding-plus-plus", fused("flashdecoding-plus-plus", "attention")),
        covers=("FlashDecoding++", "FlatGEMM", "FastGEMV", "GEMV", "unified max scaling factor"),
        published=(
            Published("up to 4.86 times as fast as HuggingFace", "setting not stated", "Zhou et al. 2024, 6.1.1"),
            Published("106.6 token/s, HuggingFace 39.0 (2.74 times)", _SETTING, TABLE_6),
        ),
        caveat=_AT_THE_BOUND,
    ),
    system_entry(
        "cuda-graphs",
        "Launches recorded and replayed",
        "NVIDIA, CUDA Graphs",
        "the kernels of a decode step are launched at once: the host issues none, no FLOPs and no bytes",
        "launch",
        _decoding("cuda-graphs", _replayed),
        caveat="It shows in expected times only, on engines that do not replay them already: most do.",
    ),
    system_entry(
        "qkv-fusion",
        "One product for Q, K and V",
        "Zhou et al. 2024, section 6.1.1",
        "the three projections are one product, which reads its input once",
        "QKV projection",
        fused("qkv-fusion", "qkv"),
        covers=("QKV fusion",),
        caveat="That one wide product is more efficient than three narrow ones shows in calibrated times only.",
    ),
    system_entry(
        "gate-up-fusion",
        "One product for gate and up",
        "Zhou et al. 2024, section 6.1.1",
        "the two projections are one product, which reads its input once",
        "MLP kernel",
        fused("gate-up-fusion", "gate_up"),
    ),
    system_entry(
        "gate-up-activation-fusion",
        "Gate, up and activation in one kernel",
        "Hong et al. 2024, FlashDecoding++",
        "gate and up are multiplied on the chip and only the activated product is written",
        "MLP kernel",
        fused("gate-up-activation-fusion", "gate_up_act"),
    ),
    system_entry(
        "residual-norm-fusion",
        "Residual addition and norm in one kernel",
        "Aminabadi et al. 2022, DeepSpeed Inference",
        "the sum is normalised while it is on the chip, instead of being written and read again",
        "norm kernel",
        fused("residual-norm-fusion", "residual_norm"),
        covers=("TenTrans", "TurboTransformers", "LightSeq"),
        caveat="The launches that are saved, which matter most for small operators, show in calibrated times only.",
    ),
    system_entry(
        "whole-layer-fusion",
        "Every fusion of a layer",
        "Zhou et al. 2024, section 6.1.1",
        "attention, QKV, gate-up with its activation, and residual with norm are one kernel each: less moves",
        "layer kernel",
        fused("whole-layer-fusion", "attention", "qkv", "gate_up_act", "residual_norm"),
        covers=("kernel fusion", "Welder", "FlashFuser", "ByteTransformer"),
        published=(Published("DeepSpeed 80.9, OpenPPL 81.2, vLLM 90.1, TensorRT-LLM 92.5 token/s", _SETTING, TABLE_6),),
        caveat="The products of a layer stay kernels of their own; one kernel for a whole layer is not simulated.",
    ),
    system_entry(
        "megablocks",
        "Experts without padding",
        "Gale et al. 2022, MegaBlocks",
        "experts multiply as many rows as they are given instead of a fixed capacity: no padded FLOPs",
        "expert kernel",
        _dropless,
        covers=("fused MoE Triton kernels",),
        caveat="It is what is simulated by default; indices and permutations of rows are left out.",
    ),
    system_entry(
        "blockwise-parallel-transformer",
        "Feed-forward blocks cut along the sequence",
        "Liu and Abbeel 2023",
        "attention and MLP run block by block over the sequence, so that the activations of one block are alive",
        "activation blocks",
        None,
        covers=("Blockwise Parallel Transformer",),
        caveat="it cuts one pass into blocks inside a layer, and the peak of activations is taken over whole operators",
    ),
)
