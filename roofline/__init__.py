"""roofline: predicted speed, bottlenecks and memory of LLM inference on an accelerator.

>>> from roofline import Scenario, analyze, load_hardware, load_model
>>> scenario = Scenario(load_model("llama-2-7b"), load_hardware("a6000"), prompt=2048, generate=128)
>>> answer = analyze(scenario)
>>> str(answer.prefill.bound), str(answer.decode.bound)
('compute', 'memory')
>>> answer.memory.fits
True

Data flows one way through the rooms: core -> specs -> graph -> bound -> timing -> scenario -> techniques -> serving ->
whatif -> advisor -> validate -> reports -> cli. A room imports only from rooms before it (tests/test_rooms.py).
"""

from typing import TYPE_CHECKING

from roofline.core.lazy import lazy

if TYPE_CHECKING:
    from roofline.bound.memory import active_parameters, kv_bytes_per_token, parameters, state_bytes_per_sequence
    from roofline.core.errors import RooflineError, SpecError, UnknownNameError, UnsupportedError
    from roofline.graph.convention import Convention
    from roofline.scenario.analysis import Analysis, analyze
    from roofline.scenario.scenario import Scenario
    from roofline.specs.hardware import Hardware, list_hardware, load_hardware
    from roofline.specs.model import Model
    from roofline.specs.modelspec import list_models, load_model
    from roofline.specs.precision import Precision, parse_precision

__version__ = "0.1.0"

__all__ = [
    "Analysis",
    "Convention",
    "Hardware",
    "Model",
    "Precision",
    "RooflineError",
    "Scenario",
    "SpecError",
    "UnknownNameError",
    "UnsupportedError",
    "active_parameters",
    "analyze",
    "kv_bytes_per_token",
    "list_hardware",
    "list_models",
    "load_hardware",
    "load_model",
    "parameters",
    "parse_precision",
    "state_bytes_per_sequence",
]

__getattr__ = lazy(
    __name__,
    {
        "bound.memory": "active_parameters kv_bytes_per_token parameters state_bytes_per_sequence",
        "core.errors": "RooflineError SpecError UnknownNameError UnsupportedError",
        "graph.convention": "Convention",
        "scenario.analysis": "Analysis analyze",
        "specs.hardware": "Hardware list_hardware load_hardware",
        "specs.model": "Model",
        "specs.modelspec": "list_models load_model",
        "specs.precision": "Precision parse_precision",
        "techniques": "Scenario",  # from the catalogue, which applies the techniques that a scenario is asked for
    },
)
