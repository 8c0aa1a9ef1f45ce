"""The readers of all models of text, which stand alone in a file or beside an encoder of images."""

from __future__ import annotations

from collections.abc import Mapping

from roofline.specs.huggingface import (
    deepseek_v4,
    dense,
    encoders,
    families,
    gpt,
    hybrid,
    kimi,
    minimax_m3,
    mla,
    moe,
    per_layer,
    recurrent,
)
from roofline.specs.huggingface.config import Reader

READERS: Mapping[str, Reader] = {
    **deepseek_v4.READERS,
    **dense.READERS,
    **encoders.READERS,
    **families.READERS,
    **gpt.READERS,
    **hybrid.READERS,
    **kimi.READERS,
    **minimax_m3.READERS,
    **mla.READERS,
    **moe.READERS,
    **per_layer.READERS,
    **recurrent.READERS,
}
