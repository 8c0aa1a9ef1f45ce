"""GGUF files of dense Llama-like models with random weights, written with the `gguf` library."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from roofline.core.errors import RooflineError, UnknownNameError, install
from roofline.specs.model import Model
from roofline.specs.sublayers import Attention, Mlp
from roofline.validate.measure.decoder import check
from roofline.validate.servers.measure import WORDS

FILE_TYPES = {"fp16": ("F16", 1), "q8_0": ("Q8_0", 7), "q4_0": ("Q4_0", 2)}
"""The formats that `gguf` quantizes to, with llama.cpp's names of tensor type and file type (`llama_ftype`)."""

PATTERN = 1 << 20
"""Random weights that are quantized; they repeat in every matrix."""

SPECIAL = (b"<unk>", b"<s>", b"</s>")


def library(name: str) -> Any:
    """The imported library; raises RooflineError with the extra to install."""
    try:
        return import_module(name)
    except ImportError:
        raise RooflineError(f"{name} is not installed: {install('llama-cpp')}") from None


def write_random_model(model: Model, format: str, path: Path) -> Path:
    """Write a GGUF file of a model's architecture with all matrices in `format`, vectors in fp32.

    Raises UnsupportedError for architectures other than dense Llama-like ones, UnknownNameError for a format.
    """
    gguf = library("gguf")
    if format not in FILE_TYPES:
        raise UnknownNameError("format", format, FILE_TYPES)
    attention, mlp = check(model)
    tensor_type, file_type = FILE_TYPES[format]
    kind = gguf.GGMLQuantizationType[tensor_type]
    partial = path.with_suffix(".partial")
    writer = gguf.GGUFWriter(partial, "qwen2" if attention.qkv_bias else "llama")
    _describe(writer, model, attention, mlp)
    writer.add_file_type(file_type)
    _add_tokenizer(writer, model.vocabulary, gguf.TokenType)
    weights = np.random.default_rng(0).standard_normal(PATTERN, dtype=np.float32) / np.sqrt(model.hidden)
    stored = gguf.quants.quantize(weights, kind)
    for name, shape in _shapes(model, attention, mlp):
        if len(shape) == 1:
            writer.add_tensor(name, np.full(shape, float("norm" in name), dtype=np.float32))
        else:
            bytes = gguf.quant_shape_to_byte_shape(shape, kind) if format != "fp16" else shape
            writer.add_tensor(name, np.resize(stored, bytes), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return partial.replace(path)


def _describe(writer: Any, model: Model, attention: Attention, mlp: Mlp) -> None:
    writer.add_name(model.name)
    writer.add_block_count(model.layers)
    writer.add_context_length(model.max_context or 8192)
    writer.add_embedding_length(model.hidden)
    writer.add_feed_forward_length(mlp.width)
    writer.add_head_count(attention.heads)
    writer.add_head_count_kv(attention.kv_heads)
    writer.add_key_length(attention.head_dim)
    writer.add_value_length(attention.head_dim)
    writer.add_rope_dimension_count(attention.head_dim)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(model.vocabulary)


def _add_tokenizer(writer: Any, vocabulary: int, types: Any) -> None:
    """A SentencePiece vocabulary: the words of measured prompts and numbers, each one token, then bytes and SPECIAL.

    The weights repeat, so that logits have ties, of which greedy decoding takes the first: a token of plain text.
    """
    rare = [*(f"<0x{byte:02X}>".encode() for byte in range(256)), *SPECIAL]
    starts = (word[:end] for word in WORDS.split() for end in range(1, len(word) + 1))  # characters merge one by one
    words = [f"\u2581{start}".encode() for start in dict.fromkeys(starts)]
    numbers = [f"\u2581{index}".encode() for index in range(vocabulary)]
    plain = [*words, *numbers][: vocabulary - len(rare)]
    kinds = [*[types.BYTE] * 256, types.UNKNOWN, types.CONTROL, types.CONTROL]
    writer.add_tokenizer_model("llama")
    writer.add_token_list([*plain, *rare])
    writer.add_token_scores([-float(index) for index in range(vocabulary)])
    writer.add_token_types([*[types.NORMAL] * len(plain), *kinds])
    unknown = len(plain) + 256
    writer.add_unk_token_id(unknown)
    writer.add_bos_token_id(unknown + 1)
    writer.add_eos_token_id(unknown + 2)


def _shapes(model: Model, attention: Attention, mlp: Mlp) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The tensors of the file, with (outputs, inputs) of a matrix."""
    hidden, queries = model.hidden, attention.heads * attention.head_dim
    keys = attention.kv_heads * attention.head_dim
    yield "token_embd.weight", (model.vocabulary, hidden)
    yield "output_norm.weight", (hidden,)
    if not model.tied_embeddings:
        yield "output.weight", (model.vocabulary, hidden)
    for layer in range(model.layers):
        prefix = f"blk.{layer}."
        yield f"{prefix}attn_norm.weight", (hidden,)
        yield f"{prefix}ffn_norm.weight", (hidden,)
        for name, outputs in (("attn_q", queries), ("attn_k", keys), ("attn_v", keys)):
            yield f"{prefix}{name}.weight", (outputs, hidden)
            if attention.qkv_bias:
                yield f"{prefix}{name}.bias", (outputs,)
        yield f"{prefix}attn_output.weight", (hidden, queries)
        yield f"{prefix}ffn_gate.weight", (mlp.width, hidden)
        yield f"{prefix}ffn_up.weight", (mlp.width, hidden)
        yield f"{prefix}ffn_down.weight", (hidden, mlp.width)
