"""roofline: predicted speed, bottlenecks and memory of LLM inference on an accelerator.

>>> from roofline import Scenario, analyze, solve
>>> scenario = Scenario("llama-3.1-8b", "h100-sxm", batch=8, prompt=2048)
>>> answer = analyze(scenario)
>>> str(answer.prefill.bound), str(answer.decode.bound)
('compute', 'memory')
>>> solve.max_batch(scenario.without("batch"), tpot="10ms").value > 8
True

`Scenario` is the question; `analyze`, `serve`, `compare`, `sweep`, `solve`, `advise`, `size`, `choose` and `explain`
answer it. `answer` also chooses what is not said: engine, formats and layout. Every answer prints a summary, shows as
tables in a notebook, and has `to_dict()` and `to_frame()`.

Data flows one way through the rooms: core -> specs -> graph -> bound -> timing -> scenario -> techniques -> serving ->
whatif -> launch -> advisor -> verdict -> validate -> reports -> cli. A room imports only from rooms before it
(tests/test_rooms.py).
"""

from typing import TYPE_CHECKING

from roofline.core.lazy import lazy

if TYPE_CHECKING:
    from roofline.advisor.advice import Advice, advise
    from roofline.advisor.choosing.decision import Decision, choose
    from roofline.advisor.sizing.sizing import Sizing, size
    from roofline.bound.memory import active_parameters, kv_bytes_per_token, parameters, state_bytes_per_sequence
    from roofline.core.errors import RooflineError, SpecError, UnknownNameError, UnsupportedError
    from roofline.graph.convention import Convention
    from roofline.launch.bundle import Launch, launch_command
    from roofline.scenario.analysis import Analysis, analyze
    from roofline.scenario.scenario import Scenario
    from roofline.serving.curve import Curve, serve
    from roofline.specs.hardware import Hardware, list_hardware, load_hardware
    from roofline.specs.model import Model
    from roofline.specs.modelspec import list_models, load_model
    from roofline.specs.precision import Precision, parse_precision
    from roofline.verdict.asked import answer
    from roofline.verdict.verdict import Verdict
    from roofline.whatif import solve
    from roofline.whatif.comparison import Comparison, compare
    from roofline.whatif.explanation import Explanation, explain
    from roofline.whatif.sweeps import Sweep, sweep

__version__ = "0.2.0"

__all__ = [
    "Advice",
    "Analysis",
    "Comparison",
    "Convention",
    "Curve",
    "Decision",
    "Explanation",
    "Hardware",
    "Launch",
    "Model",
    "Precision",
    "RooflineError",
    "Scenario",
    "Sizing",
    "SpecError",
    "Sweep",
    "UnknownNameError",
    "UnsupportedError",
    "Verdict",
    "active_parameters",
    "advise",
    "analyze",
    "answer",
    "choose",
    "compare",
    "explain",
    "kv_bytes_per_token",
    "launch_command",
    "list_hardware",
    "list_models",
    "load_hardware",
    "load_model",
    "parameters",
    "parse_precision",
    "serve",
    "size",
    "solve",
    "state_bytes_per_sequence",
    "sweep",
]

__getattr__ = lazy(__name__, Scenario="roofline.techniques")
# The catalogue there applies the techniques that a scenario is asked for.
