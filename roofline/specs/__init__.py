"""Descriptions of hardware, models, number formats and engines, read from YAML or a Hugging Face `config.json`.

In: spec files and names. Out: checked, immutable `Hardware`, `Model`, `Precision` and `Engine` values.
A new accelerator or model is a YAML file, a new engine a profile in `engines/`, a new `model_type` a reader in
`huggingface/`.
"""

from roofline.specs.engine import Engine, list_engines, load_engine
from roofline.specs.hardware import Hardware, list_hardware, load_hardware
from roofline.specs.model import Model
from roofline.specs.modelspec import list_models, load_model
from roofline.specs.precision import Precision, parse_precision

__all__ = [
    "Engine",
    "Hardware",
    "Model",
    "Precision",
    "list_engines",
    "list_hardware",
    "list_models",
    "load_engine",
    "load_hardware",
    "load_model",
    "parse_precision",
]
