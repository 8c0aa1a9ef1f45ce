"""One name, whatever it stands for: a model or hardware."""

from __future__ import annotations

from roofline.core.errors import UnknownNameError
from roofline.specs.hardware import Hardware, list_hardware, load_hardware
from roofline.specs.library import find_spec, is_hardware
from roofline.specs.model import Model
from roofline.specs.modelspec import list_models, load_model


def load_any(name: str) -> Model | Hardware:
    """The model or hardware that `name`, or the file at that path, describes."""
    models, devices = list_models(), list_hardware()
    if name in devices:
        return load_hardware(name)
    if name in models:
        return load_model(name)
    try:
        path = find_spec(name, "modelspecs", "model or hardware")
    except UnknownNameError:
        raise UnknownNameError("model or hardware", name, [*models, *devices]) from None
    if path.suffix.lower() != ".json" and is_hardware(path):
        return load_hardware(str(path))
    return load_model(str(path))
