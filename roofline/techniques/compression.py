"""Weight sparsity, low-rank factorisation and adapters of linear layers."""

from __future__ import annotations

from functools import partial
from types import MappingProxyType
from typing import Any

from msgspec.structs import replace

from roofline.core.errors import RooflineError, UnsupportedError
from roofline.graph.rewrite import Adapter, LowRank
from roofline.scenario.scenario import Scenario
from roofline.specs.formats import Format, find_format, pruned, structured
from roofline.techniques.base import (
    GENERATIVE_SURVEY,
    SURVEY,
    UNVEILED,
    Change,
    Parameter,
    Price,
    Published,
    Technique,
    Values,
    model_technique,
)
from roofline.techniques.changes import precision_of, with_precision, with_rewrite, with_weight_format
from roofline.techniques.formats import bits_parameter, stored, with_formats

_entry = partial(model_technique, price=Price.CALIBRATION, caveat="Accuracy is not simulated.")

# --- sparsity ---------------------------------------------------------------------------------------------------------


def _unstructured(name: str, title: str, reference: str, *covers: str, **rest: Any) -> Technique:
    return _entry(
        name,
        title,
        reference,
        "None at the bound: dense kernels store, read and multiply the zeros, so that FLOPs, bytes and memory stay.",
        "weight sparsity",
        lambda scenario, _: scenario,
        Parameter("sparsity", 0.5, "fraction of the weights set to zero; no effect on simulated costs", 0, 0.99),
        covers=covers,
        caveat="Only kernels for sparse weights gain: use flash-llm, or n-m-sparsity for N:M patterns. Accuracy is not"
        " simulated.",
        same_as="sparsegpt",
        **rest,
    )


SPARSE_RANGE = Published("50 to 60% sparsity", "unstructured pruning, usually", f"{GENERATIVE_SURVEY}, section 3.1.3")

SPARSE_TENSOR_CORE_FAMILIES = ("ampere", "ada", "hopper", "blackwell")
"""NVIDIA's architectures with sparse tensor cores (their whitepapers)."""


def _n_m(scenario: Scenario, values: Values) -> Scenario:
    kept, of, hardware = values["n"], values["m"], scenario.hardware
    if (kept, of) not in ((1, 2), (2, 4), (4, 8)):
        raise RooflineError(f"n-m-sparsity: sparse tensor cores multiply 1:2, 2:4 or 4:8, got {kept}:{of}")
    if hardware.family not in SPARSE_TENSOR_CORE_FAMILIES:
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
        "Frantar and Alistarh 2023, SparseGPT",
        "SparseGPT",
        published=(
            Published(
                "50 to 60% sparsity without fine-tuning, 175B parameters in hours on one GPU",
                "",
                f"{UNVEILED}, section 3.2.1",
            ),
        ),
    ),
    _unstructured("wanda", "Wanda: pruning by weight times activation", "Sun et al. 2023, Wanda", "Wanda"),
    _unstructured("magnitude-pruning", "Magnitude pruning", "Han et al. 2015", "magnitude pruning", price=Price.LOSSY),
    _unstructured(
        "unstructured-pruning",
        "Unstructured pruning by other criteria",
        f"{SURVEY}, section 5.2.2",
        *("unstructured pruning", "Prune and Tune", "ISC", "oBERT", "FastPruning"),
        *("BESA", "RIA", "Pruner-Zero", "OWL", "DSØT"),
        published=(SPARSE_RANGE,),
    ),
    _entry(
        "flash-llm",
        "Flash-LLM: sparse load, dense compute",
        "Xia et al. 2023, Flash-LLM",
        "Fewer bytes of weights: only non-zeros are stored and read, each with its index; the same FLOPs.",
        "weight sparsity",
        _flash_llm,
        Parameter("sparsity", 0.8, "fraction of the weights that are zero", 0, 0.99),
        Parameter("index", 16, "bits of the index of each non-zero weight", 0, 64),
        price=Price.LOSSY,
        covers=("Flash-LLM",),
        published=(SPARSE_RANGE,),
        caveat="Rebuilding dense tiles on the chip is assumed to overlap; below 50% sparsity the indices cost more than"
        " the zeros save. Accuracy is not simulated.",
    ),
    _entry(
        "n-m-sparsity",
        "N:M sparsity on sparse tensor cores",
        "Mishra et al. 2021",
        "Half the FLOPs of linear layers, and half their weight bytes plus the positions of the non-zeros.",
        "weight sparsity",
        _n_m,
        Parameter("n", 2, "weights kept of every m", 1, 8),
        Parameter("m", 4, "weights in a pattern", 2, 8),
        covers=("N:M sparsity", "2:4", "4:8"),
        published=(
            Published(
                "an actual speed-up on NVIDIA GPUs", "no figure, and N and M are not named", f"{SURVEY}, section 5.2.2"
            ),
        ),
        caveat="The bound assumes sparse tensor cores at twice the dense peak, which kernels seldom reach; accuracy is"
        " not simulated.",
    ),
)


# --- low rank ---------------------------------------------------------------------------------------------------------

LOW_RANK_CAVEAT = (
    "One fraction stands for ranks that differ by layer; experts, embedding and lm_head stay whole. Accuracy is not"
    " simulated."
)
_OF_LAYERS = "weights of the factors over those of the layers"


def _share(default: float, meaning: str = _OF_LAYERS) -> Parameter:
    return Parameter("share", default, meaning, 0.001, 1)


def _low_rank(
    name: str, title: str, reference: str, share: Parameter, *covers: str, caveat: str = LOW_RANK_CAVEAT, **rest: Any
) -> Technique:
    """An entry that factors every linear layer into two."""

    def change(scenario: Scenario, values: Values) -> Scenario:
        return with_rewrite(scenario, name, LowRank(values["share"]))

    effect = "Fewer FLOPs and bytes of weights: every linear layer becomes two low-rank ones with fewer weights."
    return _entry(
        name, title, reference, effect, "rank", change, share, caveat=caveat, covers=covers, same_as="asvd", **rest
    )


def _low_rank_plus_sparse(name: str, title: str, reference: str, *covers: str) -> Technique:
    """An entry that splits every linear layer into a low-rank and a structured sparse part."""

    def change(scenario: Scenario, values: Values) -> Scenario:
        share = values["low_rank"] + values["sparse"]
        if share > 1:
            raise RooflineError(f"{name}: low_rank and sparse add up to {share:g}, more than all of the weights")
        return with_rewrite(scenario, name, LowRank(share))

    return _entry(
        name,
        title,
        reference,
        "Fewer FLOPs and bytes of weights: a low-rank part plus a structured sparse part.",
        "rank",
        change,
        Parameter("low_rank", 0.1, "weights of the low-rank factors over all weights of a layer (an example)", 0, 1),
        Parameter("sparse", 0.4, "columns of the sparse part, as a fraction of the layer (an example)", 0.001, 1),
        price=Price.RETRAINING,
        covers=covers,
        same_as="losparse",
        caveat="Both parts are counted as one pair of factors with as many weights. " + LOW_RANK_CAVEAT,
    )


def _lplr(scenario: Scenario, values: Values) -> Scenario:
    factored = with_rewrite(scenario, "lplr", LowRank(values["share"]))
    return with_formats(factored, "lplr", weights=stored("lplr", values["bits"], values["bits"]))


def _tensorgpt(scenario: Scenario, values: Values) -> Scenario:
    model, precision = scenario.model, precision_of(scenario)
    if model.patch or model.tied_embeddings:
        why = "shares its embedding with lm_head" if model.tied_embeddings else "has no embedding table"
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
        _share(0.85, f"{_OF_LAYERS} (the survey: 10 to 20% compression keeps reasoning)"),
        "ASVD",
        "low-rank factorization",
        published=(Published("10 to 20% compression without losing reasoning", "", f"{SURVEY}, section 5.3"),),
    ),
    _low_rank("svd-llm", "SVD-LLM: truncation-aware whitening", "Wang et al. 2024, SVD-LLM", _share(0.8), "SVD-LLM"),
    _low_rank(
        "lord",
        "LoRD: low-rank decomposition of code models",
        "Kaushal et al. 2023, LoRD",
        _share(0.77, f"{_OF_LAYERS} (12.3B of 16B parameters)"),
        "LoRD",
        published=(Published("16B to 12.3B parameters", "StarCoder", f"{SURVEY}, section 5.2.3"),),
    ),
    _low_rank(
        "laser",
        "LASER: low-rank reduction of selected matrices",
        "Sharma et al. 2023, LASER",
        _share(0.9, "weights of the factors over those of all layers (an example: few matrices are reduced)"),
        "LASER",
        price=Price.LOSSY,
        caveat="The method targets accuracy and keeps most matrices; factors gain only where they replace the matrix."
        " Experts, embedding and lm_head stay whole.",
    ),
    _low_rank_plus_sparse("losparse", "LoSparse: a low-rank and a sparse part", "Li et al. 2023, LoSparse", "LoSparse"),
    _low_rank_plus_sparse(
        "dsformer",
        "DSFormer: small dense times semi-structured sparse factors",
        "Chand et al. 2023, DSFormer",
        "DSFormer",
    ),
    _entry(
        "lplr",
        "LPLR: low-rank factors in low precision",
        "Saha et al. 2023, LPLR",
        "Fewer FLOPs and far fewer bytes of weights: low-rank factors in few bits.",
        "weight format",
        _lplr,
        _share(0.5, f"{_OF_LAYERS} (an example)"),
        bits_parameter(8),
        covers=("LPLR",),
        caveat=LOW_RANK_CAVEAT,
    ),
    _entry(
        "tensorgpt",
        "TensorGPT: the embedding table as a tensor train",
        "Xu et al. 2023, TensorGPT",
        "Fewer bytes of embedding to store; decode reads few rows of it, as before.",
        "embedding",
        _tensorgpt,
        Parameter("ratio", 2.0, "compression of the embedding table (an example)", 1, 1000),
        price=Price.LOSSY,
        covers=("TensorGPT",),
        caveat="Reconstructing rows from the tensor-train cores is not counted; accuracy is not simulated.",
    ),
)


# --- adapters ---------------------------------------------------------------------------------------------------------

ADAPTER_CAVEAT = (
    "The adapter is unmerged, as for serving many adapters; a merged adapter costs nothing. One adapter serves the"
    " whole batch, experts have none, and the cost of fine-tuning is not simulated."
)


def _adapter(name: str, weights: str | None) -> Change:
    """A low-rank adapter beside every linear layer, whose weights are quantised unless `weights` is None."""

    def change(scenario: Scenario, values: Values) -> Scenario:
        if weights:
            scenario = with_formats(scenario, name, weights=find_format(weights))
        return with_rewrite(scenario, name, Adapter(values["rank"]))

    return change


def _rank(default: int) -> Parameter:
    return Parameter("rank", default, "rank of the adapter of each linear layer", 1, 4096)


ADAPTERS: tuple[Technique, ...] = (
    _entry(
        "lora",
        "LoRA: unmerged low-rank adapters",
        "Hu et al. 2021, LoRA",
        "More FLOPs and bytes: a low-rank GEMM beside every linear layer, and an addition.",
        "adapter",
        _adapter("lora", None),
        _rank(8),
        price=Price.RETRAINING,
        covers=("LoRA", "LoRA serving", "PEFT serving"),
        caveat=ADAPTER_CAVEAT,
    ),
    _entry(
        "qlora",
        "QLoRA: NF4 weights with 16-bit adapters",
        "Dettmers et al. 2023, QLoRA",
        "Fewer bytes of weights, dequantisation of every weight, and a low-rank GEMM beside every linear layer.",
        "weight format",
        _adapter("qlora", "nf4"),
        _rank(64),
        price=Price.RETRAINING,
        covers=("QLoRA", "LoftQ", "LQ-LoRA"),
        published=(
            Published("a 65B model on one GPU with 30 GB", "fine-tuning, not inference", f"{SURVEY}, section 5.2.1"),
        ),
        caveat=ADAPTER_CAVEAT,
    ),
    _entry(
        "qa-lora",
        "QA-LoRA and PEQA: adapters that merge into quantised weights",
        "Xu et al. 2023, QA-LoRA; Kim et al. 2023, PEQA",
        "Fewer bytes of weights, plus dequantisation of every weight; the adapter merges into the scales at no cost.",
        "weight format",
        lambda scenario, values: with_formats(scenario, "qa-lora", weights=find_format(f"gptq-g{values['group']}")),
        Parameter("group", 32, "weights that share a scale and a zero point", 1, 65536),
        price=Price.RETRAINING,
        covers=("QA-LoRA", "PEQA"),
        caveat="Accuracy and the cost of fine-tuning are not simulated.",
    ),
)

TECHNIQUES = (*SPARSITY, *LOW_RANK, *ADAPTERS)
