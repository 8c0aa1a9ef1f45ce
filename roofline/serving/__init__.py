"""An engine under load: the times of its steps, its scheduler, steady states and event simulation.

In: a `Scenario` and a `Load` (how requests arrive, their lengths). Out: TTFT, TPOT and E2E latency, throughput,
goodput, use of the KV cache and cost of the deployment, at each concurrency or rate.
"""

from typing import TYPE_CHECKING

from roofline.core.lazy import lazy

if TYPE_CHECKING:
    from roofline.serving.curve import Curve, serve
    from roofline.serving.fleet import FleetRun, Scaling, run_fleet
    from roofline.serving.load import Load, Trace
    from roofline.serving.outcome import Outcome
    from roofline.serving.sessions.served import SessionCurve, serve_sessions
    from roofline.serving.sessions.workload import Workload
    from roofline.serving.traces import read_trace

__all__ = [
    "Curve",
    "FleetRun",
    "Load",
    "Outcome",
    "Scaling",
    "SessionCurve",
    "Trace",
    "Workload",
    "read_trace",
    "run_fleet",
    "serve",
    "serve_sessions",
]

__getattr__ = lazy(__name__)
