"""The class of Transformers that a config.json names, built on the meta device: shapes without weights.

Runs in a process of its own (`roofline.specs.classes.reader`), the only place of the room that imports torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from roofline.core.errors import UnsupportedError, quote

GENERATING = (
    *("SEQ_TO_SEQ_CAUSAL_LM", "SPEECH_SEQ_2_SEQ", "CAUSAL_LM", "IMAGE_TEXT_TO_TEXT", "MULTIMODAL_LM"),
    *("RETRIEVAL", "MASKED_LM"),
)
"""The tasks of Transformers' auto classes that this room builds, the first that fits a `model_type` counts."""

ENCODING = frozenset({"RETRIEVAL", "MASKED_LM"})
"""Tasks of one pass without generation."""


def without_scipy() -> None:
    """Import classes without SciPy: losses of object detection alone need it, and it takes a second to import."""
    from transformers import utils

    for module in (utils, utils.import_utils):
        module.is_scipy_available = lambda: False


def class_names(model_type: str) -> dict[str, str]:
    """The classes of a `model_type` in the installed Transformers, by task."""
    from transformers.models.auto import modeling_auto

    found: dict[str, str] = {}
    for task in GENERATING:
        names = getattr(modeling_auto, f"MODEL_FOR_{task}_MAPPING_NAMES", {}).get(model_type)
        if names:
            found[task] = names if isinstance(names, str) else names[0]
    return found


def build(content: Mapping[str, Any]) -> Any:
    """The model of a config.json on the meta device; raises UnsupportedError for one without a class.

    No code of a repository runs: classes come from Transformers alone, and `auto_map` is not looked at.
    """
    import torch
    from transformers import AutoConfig
    from transformers.initialization import no_init_weights
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    kind = content.get("model_type")
    if not isinstance(kind, str) or kind not in CONFIG_MAPPING_NAMES:
        raise UnsupportedError(f"the installed Transformers has no class of model_type {quote(kind)}")
    given = {key: value for key, value in content.items() if key not in _IGNORED}
    config = AutoConfig.for_model(**given)
    failure: Exception | None = None
    for built in classes_of(content, kind):
        try:
            with torch.device("meta"), no_init_weights():
                model = built(prepared(config))
                model.tie_weights()
        except Exception as error:  # a class for another part of the same model_type, such as its text decoder
            failure = failure or error
            continue
        prepared(model.config, ATTENTION)
        return model.eval()
    assert failure is not None
    raise failure


_IGNORED = ("auto_map", "quantization_config", "compression_config", "transformers_version", "_name_or_path")
"""Keys that name code, or how weights are stored: shapes do not depend on them."""


def classes_of(content: Mapping[str, Any], kind: str) -> list[Any]:
    """The class that the file names, if Transformers has it and it generates, then those of its `model_type`."""
    import transformers

    given, known = content.get("architectures"), class_names(kind)
    wanted = [name for name in (given if isinstance(given, list) else []) if name in known.values()]
    names = list(dict.fromkeys([*wanted, *known.values()]))
    if not names:
        raise UnsupportedError(f"Transformers has no class of model_type {quote(kind)} that generates or embeds text")
    return [getattr(transformers, name) for name in names]


ATTENTION = "roofline_shapes"
"""The name under which `roofline.specs.classes.trace` registers its attention, which only notes shapes."""


def prepared(config: Any, attention: str = "eager") -> Any:
    """The configuration, and those of its parts, with attention and experts that need no data."""
    from transformers import PreTrainedConfig

    for name, value in (("attn", attention), ("experts", "batched_mm")):
        setattr(config, f"_{name}_implementation_internal", value)
    for part in list(vars(config).values()):
        if isinstance(part, PreTrainedConfig):
            prepared(part, attention)
    return config
