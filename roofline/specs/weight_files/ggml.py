"""The types of ggml: of tensors, and of files; `ggml.yaml` lists them."""

from __future__ import annotations

from collections.abc import Mapping

from roofline.core.documents import bundled

_CONTENT = bundled("specs/weight_files/ggml.yaml")

TYPES: Mapping[int, tuple[str, int, int]] = {
    number: (name, elements, size) for name, (number, elements, size) in _CONTENT["types"].items()
}
"""The types of tensors (`ggml_type`): name, elements of a block, bytes of a block."""

FILE_TYPES: Mapping[int, str] = {number: name for name, number in _CONTENT["files"].items()}
"""The file types (`llama_ftype`, the key `general.file_type`)."""
