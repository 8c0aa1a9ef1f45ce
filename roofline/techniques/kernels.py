"""Kernel techniques: fused kernels, CUDA graphs, and kernels that run faster with the same bytes and FLOPs."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from roofline.core.errors import UnsupportedError
from roofline.graph.fusion import check_fusions
from roofline.graph.network import Build, network
from roofline.scenario.scenario import Scenario
from roofline.specs.engine import FUSIONS
from roofline.specs.model import MixtureOfExperts
from roofline.techniques.base import SURVEY, TABLE_6, Change, Parameter, Published, Technique, Values, system_technique
from roofline.techniques.changes import (
    precision_of,
    require_causal_prompt,
    require_feed_forward,
    require_generation,
    require_softmax_attention,
    with_settings,
)

_SETTING = "LLaMA-2-7B, batch 1, 1k input, 128 output on one A100 80GB; precision not stated"
_NOT_AT_THE_BOUND = "The bound is unchanged, since it assumes peak rates for every kernel; expected times improve."


def _fusion(
    name: str,
    title: str,
    reference: str,
    effect: str,
    slot: str,
    *fusions: str,
    **rest: Any,
) -> Technique:
    """An entry that fuses operators; raises UnsupportedError for a model without the operators."""

    def change(scenario: Scenario, _: Values) -> Scenario:
        model, precision = scenario.model, precision_of(scenario)
        fused = network(model, precision, Build(check_fusions(fusions)))
        if len(fused.ops) == len(network(model, precision).ops):
            raise UnsupportedError(f"{name} finds no operators to fuse in {model.name}")
        chosen = {*(scenario.fusions or ()), *fusions}
        if "gate_up_act" in chosen:
            chosen.discard("gate_up")  # gate_up_act contains gate_up
        return replace(scenario, fusions=tuple(chosen))

    return system_technique(name, title, reference, effect, slot, change, **rest)


def _blockwise(scenario: Scenario, values: Values) -> Scenario:
    require_causal_prompt(scenario, "blockwise-parallel-transformer")
    return with_settings(scenario, chunk=values["block"])


def _dropless(scenario: Scenario, _: Values) -> Scenario:
    require_feed_forward(scenario, "megablocks", MixtureOfExperts)
    return with_settings(scenario, expert_capacity=1.0)


NEVER_SPLIT, ALWAYS_SPLIT = 0.0, 2.0
"""Values of an engine's `split_kv`."""


def _split_kv(name: str, splitting: float) -> Change:
    """The engine's fused decode attention with another way to split the keys."""

    def change(scenario: Scenario, _: Values) -> Scenario:
        require_generation(scenario, name)
        require_softmax_attention(scenario, name)
        profile = scenario.profile
        engine = replace(profile, parameters={**profile.parameters, "split_kv": splitting})
        return replace(scenario, fusions=tuple({*(scenario.fusions or ()), "attention"}), engine=engine)

    return change


def _flashdecoding_plus_plus(scenario: Scenario, values: Values) -> Scenario:
    """Split keys, fused kernels and a CUDA graph of the decode step."""
    split = _split_kv("flashdecoding-plus-plus", ALWAYS_SPLIT)(scenario, values)
    engine = replace(split.profile, fusions=tuple(FUSIONS), graphs=tuple({*split.profile.graphs, "decode"}))
    return replace(split, engine=engine)


def _with_decode_graphs(scenario: Scenario, _: Values) -> Scenario:
    """The scenario with an engine profile that replays decode steps as CUDA graphs."""
    require_generation(scenario, "cuda-graphs")
    profile = scenario.profile
    if "decode" in profile.graphs:
        return scenario
    return replace(scenario, engine=replace(profile, graphs=(*profile.graphs, "decode")))


TECHNIQUES: tuple[Technique, ...] = (
    _fusion(
        "flash-attention",
        "FlashAttention: attention in one tiled kernel",
        "Dao et al. 2022, FlashAttention",
        "Scores and probabilities stay on the chip: memory and traffic of attention are linear, not quadratic.",
        "attention kernel",
        "attention",
        covers=("FlashAttention", "FlashAttention 2", "xFormers", "cuDNN fused MHA", "online softmax"),
        caveat="On by default. Keys are read once per pass, whatever the tile size.",
    ),
    system_technique(
        "flash-decoding",
        "FlashDecoding: decode attention split along the keys",
        "Dao et al. 2023, Flash-Decoding",
        "The keys of a sequence are split over thread blocks and the partial outputs merged: occupancy at small"
        " batches.",
        "decode attention kernel",
        _split_kv("flash-decoding", ALWAYS_SPLIT),
        covers=("FlashDecoding", "PagedAttention V2"),
        published=(
            Published(
                "up to 8 times faster generation, nearly constant attention time up to 32K tokens",
                "CodeLlama-34B on 4 A100, batch 1, against FlashAttention-2 without splits",
                "Dao et al. 2023, Flash-Decoding",
            ),
        ),
        caveat=f"{_NOT_AT_THE_BOUND} Most kernels of today split already, and then nothing changes: hf-eager does not,"
        " FlashAttention-2 (the constants of A100) only where heads share keys; unsplit-attention is the baseline.",
    ),
    system_technique(
        "unsplit-attention",
        "Decode attention without splits along the keys",
        "Dao et al. 2022, FlashAttention; NVIDIA, FasterTransformer",
        "One thread block reads all keys of a KV head: SMs without a head of a sequence stay idle.",
        "decode attention kernel",
        _split_kv("unsplit-attention", NEVER_SPLIT),
        caveat=f"{_NOT_AT_THE_BOUND.replace('improve', 'grow')} A baseline for comparison with flash-decoding.",
    ),
    system_technique(
        "flashdecoding-plus-plus",
        "FlashDecoding++: asynchronous softmax, flat GEMMs, fused kernels",
        "Hong et al. 2024, FlashDecoding++",
        "Split keys, the softmax without synchronisation, kernels chosen by shape for the flat GEMMs of decode, and"
        " seven fused kernels a layer in a CUDA graph.",
        "decode attention kernel",
        _flashdecoding_plus_plus,
        covers=("FlashDecoding++", "FlatGEMM", "FastGEMV", "GEMV", "unified max scaling factor"),
        published=(
            Published("up to 4.86 times as fast as HuggingFace", "setting not stated", f"{SURVEY}, 6.1.1"),
            Published("106.6 token/s, HuggingFace 39.0 (2.74 times)", _SETTING, TABLE_6),
        ),
        caveat=f"{_NOT_AT_THE_BOUND} Simulated are the splits, the fusions and the graph; GEMMs have the calibrated"
        " kernels, which are chosen by shape too, and merging the partial outputs keeps its cost.",
    ),
    system_technique(
        "cuda-graphs",
        "CUDA graphs for decode",
        "NVIDIA, CUDA Graphs",
        "The kernels of a decode step are launched at once: less host time, the same FLOPs and bytes.",
        "launch",
        _with_decode_graphs,
        caveat="Only expected times improve, on engines that do not use CUDA graphs already; most do.",
    ),
    _fusion(
        "qkv-fusion",
        "Fused QKV projection",
        f"{SURVEY}, section 6.1.1",
        "The three projections become one GEMM, which reads its input once.",
        "QKV projection",
        "qkv",
        covers=("QKV fusion",),
        caveat="The higher efficiency of one wide GEMM shows in expected times only.",
    ),
    _fusion(
        "gate-up-fusion",
        "Fused gate and up projections",
        f"{SURVEY}, section 6.1.1",
        "The two projections become one GEMM, which reads its input once.",
        "MLP kernel",
        "gate_up",
    ),
    _fusion(
        "gate-up-activation-fusion",
        "Fused gate and up projections with activation",
        "Hong et al. 2024, FlashDecoding++",
        "Gate and up are multiplied on the chip, and only their activated product is written.",
        "MLP kernel",
        "gate_up_act",
    ),
    _fusion(
        "residual-norm-fusion",
        "Fused residual addition and norm",
        "Aminabadi et al. 2022, DeepSpeed Inference",
        "The sum is normalised on the chip, instead of written and read again.",
        "norm kernel",
        "residual_norm",
        covers=("TenTrans", "TurboTransformers", "LightSeq"),
        caveat="The saved launches, which matter most for small operators, show in expected times only.",
    ),
    _fusion(
        "whole-layer-fusion",
        "All fusions of a layer",
        f"{SURVEY}, section 6.1.1",
        "Attention, QKV, gate-up with activation, and residual with norm are one kernel each: fewer bytes.",
        "layer kernel",
        *("attention", "qkv", "gate_up_act", "residual_norm"),
        covers=("kernel fusion", "Welder", "FlashFuser", "ByteTransformer"),
        published=(Published("DeepSpeed 80.9, OpenPPL 81.2, vLLM 90.1, TensorRT-LLM 92.5 token/s", _SETTING, TABLE_6),),
        caveat="The GEMMs of a layer stay separate kernels; one kernel for a whole layer is not simulated.",
    ),
    system_technique(
        "megablocks",
        "MegaBlocks: experts without padding",
        "Gale et al. 2022, MegaBlocks",
        "Each expert multiplies the rows routed to it instead of a fixed capacity: no padded FLOPs.",
        "expert kernel",
        _dropless,
        covers=("fused MoE Triton kernels",),
        caveat="The default. Indices and permutations of rows are not counted.",
    ),
    system_technique(
        "blockwise-parallel-transformer",
        "Blockwise parallel transformer: feed-forward blocks split along the sequence",
        "Liu and Abbeel 2023",
        "Attention and MLP run block by block along the sequence: only one block's activations are live, and every"
        " block reads the weights again.",
        "prefill schedule",
        _blockwise,
        Parameter("block", 2048, "tokens of a block, of all sequences (an example)", 1, 10**9),
        covers=("Blockwise Parallel Transformer",),
        same_as="chunked-prefill",
        caveat="Blocks follow each other within a layer, chunks within a pass: FLOPs and bytes are the same, but the"
        " residual stream of the whole prompt, which stays live here, is not counted.",
    ),
)
