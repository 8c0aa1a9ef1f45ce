"""The readers of all models of text, which stand alone in a file or beside an encoder of images."""

from __future__ import annotations

from collections.abc import Mapping

from roofline.specs.huggingface import (
    deepseek_v4,
    dense,
    families,
    hybrid,
    moe,
    per_layer,
)
from roofline.specs.huggingface.config import Reader

READERS: Mapping[str, Reader] = {
    **families.READERS,
    **deepseek_v4.READERS,
    **dense.READERS,
    **hybrid.READERS,
    **moe.READERS,
    **per_layer.READERS,
}
