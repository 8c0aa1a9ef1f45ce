"""Sparsity, low-rank factorisation and adapters: what becomes of the weights of linear layers."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

from msgspec.structs import replace

from roofline.core.errors import RooflineError, UnsupportedError
from roofline.graph.rewrite import Adapter, LowRank
from roofline.scenario.scenario import Scenario
from roofline.specs.formats import Format, find_format, pruned, structured
from roofline.specs.precision import Precision
from roofline.techniques.base import (
    Change,
    Parameter,
    Price,
    Published,
    Technique,
    Values,
    with_precision,
    with_weight_format,
)
from roofline.techniques.entries import entry
from roofline.techniques.formats import bits_parameter, stored, with_formats
from roofline.techniques.rewrites import with_rewrite

# --- sparsity ---------------------------------------------------------------------------------------------------------


def _unchanged(scenario: Scenario, _: Values) -> Scenario:
    """Dense kernels read and multiply zeros like any other number."""
    return scenario


def _unstructured(name: str, title: str, price: Price, reference: str, *covers: str, **rest: Any) -> Technique:
    return entry(
        name,
        title,
        price,
        reference,
        "None at the bound: dense kernels store, read and multiply the zeros, so that FLOPs, bytes and memory stay.",
        "weight sparsity",
        _unchanged,
        Parameter("sparsity", 0.5, "share of the weights set to zero, which changes no cost here", 0, 0.99),
        caveat="Only a kernel for sparse weights gains from it: flash-llm, or n-m-sparsity where the zeros are"
        " patterned. Accuracy is not simulated.",
        covers=covers,
        **rest,
    )


SPARSE_RANGE = Published("50 to 60% sparsity", "unstructured pruning, usually", "Miao et al. 2023, section 3.1.3")

FAMILIES = ("ampere", "ada", "hopper", "blackwell")
"""NVIDIA's architectures with sparse tensor cores (their whitepapers)."""


def _n_m(scenario: Scenario, values: Values) -> Scenario:
    kept, of, hardware = values["n"], values["m"], scenario.hardware
    if (kept, of) not in ((1, 2), (2, 4), (4, 8)):
        raise RooflineError(f"n-m-sparsity: sparse tensor cores multiply 1:2, 2:4 or 4:8, got {kept}:{of}")
    if hardware.family not in FAMILIES:
        raise UnsupportedError(
            f"n-m-sparsity is simulated for NVIDIA's sparse tensor cores (Ampere and later), and {hardware.name} is"
            f" of the family {hardware.family}"
        )
    return with_weight_format(scenario, lambda dense: structured(dense, kept, of))


def _flash_llm(scenario: Scenario, values: Values) -> Scenario:
    return with_weight_format(scenario, lambda dense: pruned(dense, values["sparsity"], values["index"]))


SPARSITY: tuple[Technique, ...] = (
    _unstructured(
        "sparsegpt",
        "SparseGPT: one-shot pruning with second-order updates",
        Price.CALIBRATION,
        "Frantar and Alistarh 2023, SparseGPT",
        "SparseGPT",
        published=(
            Published(
                "50 to 60% sparsity without fine-tuning, 175B parameters in hours on one GPU",
                "",
                "Yuan et al. 2024, LLM Inference Unveiled, section 3.2.1",
            ),
        ),
    ),
    _unstructured(
        "wanda", "Wanda: pruning by weight times activation", Price.CALIBRATION, "Sun et al. 2023, Wanda", "Wanda"
    ),
    _unstructured("magnitude-pruning", "Magnitude pruning", Price.LOSSY, "Han et al. 2015", "magnitude pruning"),
    _unstructured(
        "unstructured-pruning",
        "Unstructured pruning by other criteria",
        Price.CALIBRATION,
        "Zhou et al. 2024, section 5.2.2",
        "unstructured pruning",
        "Prune and Tune",
        "ISC",
        "oBERT",
        "FastPruning",
        "BESA",
        "RIA",
        "Pruner-Zero",
        "OWL",
        "DSØT",
        published=(SPARSE_RANGE,),
    ),
    entry(
        "flash-llm",
        "Flash-LLM: sparse load, dense compute",
        Price.LOSSY,
        "Xia et al. 2023, Flash-LLM",
        "Fewer bytes of weights, of which only those kept are stored and read, each with its index; the same FLOPs.",
        "weight sparsity",
        _flash_llm,
        Parameter("sparsity", 0.8, "share of the weights that are zero", 0, 0.99),
        Parameter("index", 16, "bits of the index beside each weight that is kept", 0, 64),
        covers=("Flash-LLM",),
        published=(SPARSE_RANGE,),
        caveat="Rebuilding dense tiles on the chip is taken to overlap; below one half of zeros the indices cost more"
        " than the zeros save. Accuracy is not simulated.",
    ),
    entry(
        "n-m-sparsity",
        "N:M sparsity on sparse tensor cores",
        Price.CALIBRATION,
        "Mishra et al. 2021",
        "Half the FLOPs of linear layers, and half their bytes of weights with the positions of what is kept.",
        "weight sparsity",
        _n_m,
        Parameter("n", 2, "weights kept of every m", 1, 8),
        Parameter("m", 4, "weights in a pattern", 2, 8),
        covers=("N:M sparsity", "2:4", "4:8"),
        published=(
            Published(
                "an actual speed-up on NVIDIA GPUs",
                "no figure, and N and M are not named",
                "Zhou et al. 2024, section 5.2.2",
            ),
        ),
        caveat="The bound takes sparse tensor cores at twice the dense peak, which kernels seldom reach; accuracy is"
        " not simulated.",
    ),
)


# --- low rank ---------------------------------------------------------------------------------------------------------

FACTORS = "Fewer FLOPs and bytes of weights: every linear layer becomes two thin ones of fewer weights in all."
LOW_RANK_CAVEAT = (
    "One share stands for ranks that differ by layer; experts, embedding and output head stay whole. Accuracy is not"
    " simulated."
)


def _low_rank(
    name: str,
    title: str,
    reference: str,
    share: float,
    meaning: str,
    *covers: str,
    price: Price = Price.CALIBRATION,
    caveat: str = LOW_RANK_CAVEAT,
    **rest: Any,
) -> Technique:
    def change(scenario: Scenario, values: Values) -> Scenario:
        return with_rewrite(scenario, name, LowRank(values["share"]))

    return entry(
        name,
        title,
        price,
        reference,
        FACTORS,
        "rank",
        change,
        Parameter("share", share, meaning, 0.001, 1),
        caveat=caveat,
        covers=covers,
        **rest,
    )


def _sum_of_parts(name: str, title: str, reference: str, low: float, sparse: float) -> Technique:
    def change(scenario: Scenario, values: Values) -> Scenario:
        share = values["low_rank"] + values["sparse"]
        if share > 1:
            raise RooflineError(
                f"{name}: low_rank and sparse add up to {share:g} of the weights, more than all of them"
            )
        return with_rewrite(scenario, name, LowRank(share))

    return entry(
        name,
        title,
        Price.RETRAINING,
        reference,
        "Fewer FLOPs and bytes of weights: a low-rank part and what is left of a structured sparse one.",
        "rank",
        change,
        Parameter("low_rank", low, "weights of the low-rank factors over all weights of a layer (an example)", 0, 1),
        Parameter("sparse", sparse, "columns left of the sparse part, as a share of the layer (an example)", 0.001, 1),
        caveat="Both parts are counted as one pair of factors with as many weights; " + LOW_RANK_CAVEAT,
        covers=(title.partition(":")[0],),
    )


def _lplr(scenario: Scenario, values: Values) -> Scenario:
    factored = with_rewrite(scenario, "lplr", LowRank(values["share"]))
    return with_formats(factored, "lplr", weights=stored("lplr", values["bits"], values["bits"]))


def _tensorgpt(scenario: Scenario, values: Values) -> Scenario:
    model, precision = scenario.model, scenario.precision
    assert isinstance(precision, Precision)
    if model.patch or model.tied_embeddings:
        why = "shares its embedding with the output head" if model.tied_embeddings else "has no embedding table"
        raise UnsupportedError(f"tensorgpt compresses the embedding table, and {model.name} {why}")
    scheme = precision.weights
    table = scheme.format_of("embedding", precision.base, model.layers)
    small = Format(f"{table.name}-tensor-train", table.bits / values["ratio"], table.arithmetic)
    special = MappingProxyType({**scheme.special, "embedding": small})
    return with_precision(scenario, weights=replace(scheme, name=f"{scheme.name}+tensorgpt", special=special))


LOW_RANK: tuple[Technique, ...] = (
    _low_rank(
        "asvd",
        "ASVD: activation-aware singular values",
        "Yuan et al. 2023, ASVD",
        0.85,
        "weights of the factors over those of the layers (the survey: 10 to 20% compression keeps reasoning)",
        "ASVD",
        "low-rank factorization",
        published=(Published("10 to 20% compression without losing reasoning", "", "Zhou et al. 2024, section 5.3"),),
    ),
    _low_rank(
        "svd-llm",
        "SVD-LLM: truncation-aware whitening",
        "Wang et al. 2024, SVD-LLM",
        0.8,
        "weights of the factors over those of the layers",
        "SVD-LLM",
    ),
    _low_rank(
        "lord",
        "LoRD: low-rank decomposition of code models",
        "Kaushal et al. 2023, LoRD",
        0.77,
        "weights of the factors over those of the layers (12.3B of 16B parameters)",
        "LoRD",
        published=(Published("16B to 12.3B parameters", "StarCoder", "Zhou et al. 2024, section 5.2.3"),),
    ),
    _low_rank(
        "laser",
        "LASER: single matrices cut to a low rank",
        "Sharma et al. 2023, LASER",
        0.9,
        "weights of the factors over those of all layers (an example: it cuts few of them)",
        "LASER",
        price=Price.LOSSY,
        caveat="It aims at accuracy and keeps most matrices; factors gain only where they replace the matrix."
        " Experts, embedding and output head stay whole.",
    ),
    _sum_of_parts("losparse", "LoSparse: a low-rank and a sparse part", "Li et al. 2023, LoSparse", 0.1, 0.4),
    _sum_of_parts(
        "dsformer",
        "DSFormer: small dense times semi-structured sparse factors",
        "Chand et al. 2023, DSFormer",
        0.1,
        0.4,
    ),
    entry(
        "lplr",
        "LPLR: low-rank factors in low precision",
        Price.CALIBRATION,
        "Saha et al. 2023, LPLR",
        "Fewer FLOPs and far fewer bytes of weights: thin factors in few bits.",
        "weight format",
        _lplr,
        Parameter("share", 0.5, "weights of the factors over those of the layers (an example)", 0.001, 1),
        bits_parameter(8),
        caveat=LOW_RANK_CAVEAT,
        covers=("LPLR",),
    ),
    entry(
        "tensorgpt",
        "TensorGPT: the embedding table as a tensor train",
        Price.LOSSY,
        "Xu et al. 2023, TensorGPT",
        "Fewer bytes of embedding to store; decode reads as before, since it looks up few rows.",
        "embedding",
        _tensorgpt,
        Parameter("ratio", 2.0, "compression of the embedding table (an example)", 1, 1000),
        caveat="Multiplying the cores of a row together is not counted; accuracy is not simulated.",
        covers=("TensorGPT",),
    ),
)


# --- adapters ---------------------------------------------------------------------------------------------------------

ADAPTER_CAVEAT = (
    "Merged into the weights an adapter costs nothing: this is one kept beside them, as serving many adapters needs."
    " One adapter serves the whole batch, experts have none, and the cost of fine-tuning is not simulated."
)


def _adapter(name: str, quantised: str | None) -> Change:
    def change(scenario: Scenario, values: Values) -> Scenario:
        if quantised:
            scenario = with_formats(scenario, name, weights=find_format(quantised))
        return with_rewrite(scenario, name, Adapter(values["rank"]))

    return change


def _rank(default: int) -> Parameter:
    return Parameter("rank", default, "rank of the adapter of each linear layer", 1, 4096)


ADAPTERS: tuple[Technique, ...] = (
    entry(
        "lora",
        "LoRA: unmerged low-rank adapters",
        Price.RETRAINING,
        "Hu et al. 2021, LoRA",
        "More FLOPs and bytes: a product of low rank beside every linear layer, and an addition.",
        "adapter",
        _adapter("lora", None),
        _rank(8),
        caveat=ADAPTER_CAVEAT,
        covers=("LoRA", "LoRA serving", "PEFT serving"),
    ),
    entry(
        "qlora",
        "QLoRA: NF4 weights with 16-bit adapters",
        Price.RETRAINING,
        "Dettmers et al. 2023, QLoRA",
        "Fewer bytes of weights, a decoding of every weight, and a product of low rank beside every linear layer.",
        "weight format",
        _adapter("qlora", "nf4"),
        _rank(64),
        caveat=ADAPTER_CAVEAT,
        covers=("QLoRA", "LoftQ", "LQ-LoRA"),
        published=(
            Published(
                "a 65B model on one GPU with 30 GB", "fine-tuning, not inference", "Zhou et al. 2024, section 5.2.1"
            ),
        ),
    ),
    entry(
        "qa-lora",
        "QA-LoRA and PEQA: adapters that merge into quantised weights",
        Price.RETRAINING,
        "Xu et al. 2023, QA-LoRA; Kim et al. 2023, PEQA",
        "Fewer bytes of weights and a decoding of every weight; the adapter is part of the scales and costs nothing.",
        "weight format",
        lambda scenario, values: with_formats(scenario, "qa-lora", weights=find_format(f"gptq-g{values['group']}")),
        Parameter("group", 32, "weights that share a scale and a zero point", 1, 65536),
        caveat="Accuracy and the cost of fine-tuning are not simulated.",
        covers=("QA-LoRA", "PEQA"),
    ),
)

TECHNIQUES = (*SPARSITY, *LOW_RANK, *ADAPTERS)
