"""GGUF files of real layouts as sparse files: the header is written by the `gguf` library, the tensors are holes."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

Tensors = Iterable[tuple[str, tuple[int, ...], str]]
Write = Callable[[str, Mapping[str, Any], Tensors], Path]


@pytest.fixture
def write_gguf(tmp_path: Path) -> Write:
    """Write a file for an architecture, its metadata, and tensors (name, shape, type); the path."""

    def write(architecture: str, metadata: Mapping[str, Any], tensors: Tensors) -> Path:
        path = tmp_path / "model.gguf"
        writer = gguf.GGUFWriter(path, architecture)
        for key, value in metadata.items():
            name = key if key.startswith(("general.", "tokenizer.")) else f"{architecture}.{key}"
            if isinstance(value, (list, str)):
                (writer.add_array if isinstance(value, list) else writer.add_string)(name, value)
            else:
                (writer.add_float32 if isinstance(value, float) else writer.add_uint32)(name, value)
        end = 0
        for name, shape, kind in tensors:
            type = gguf.GGMLQuantizationType[kind]
            stored = shape if kind in ("F32", "F16", "BF16") else gguf.quant_shape_to_byte_shape(shape, type)
            width = {"F32": 4, "F16": 2, "BF16": 2}.get(kind, 1)
            bytes = width * int(math.prod(stored))
            dtype = {4: "float32", 2: "float16", 1: "uint8"}[width]
            writer.add_tensor_info(name, stored, np.dtype(dtype), bytes, raw_dtype=type)
            end += gguf.GGUFWriter.ggml_pad(bytes, 32)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        writer.close()
        start = gguf.GGUFWriter.ggml_pad(path.stat().st_size, 32)
        os.truncate(path, start + end)
        return path

    return write


def llama_layers(
    layers: int, hidden: int, heads: int, kv: int, width: int, kind: Callable[[str, int], str], head_dim: int = 128
) -> Tensors:
    """The tensors of Llama's layers in the types that `kind` says, by name and layer; norms in F32."""
    for layer in range(layers):
        shapes = {
            "attn_q": (heads * head_dim, hidden),
            "attn_k": (kv * head_dim, hidden),
            "attn_v": (kv * head_dim, hidden),
            "attn_output": (hidden, heads * head_dim),
            "ffn_gate": (width, hidden),
            "ffn_up": (width, hidden),
            "ffn_down": (hidden, width),
        }
        yield from ((f"blk.{layer}.{name}.weight", shape, kind(name, layer)) for name, shape in shapes.items())
        yield from ((f"blk.{layer}.{name}.weight", (hidden,), "F32") for name in ("attn_norm", "ffn_norm"))
