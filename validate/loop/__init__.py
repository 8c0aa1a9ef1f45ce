"""The loop of `roofline validate`: measure this machine, calibrate it, run a model beside its prediction, watch drift.

Each function does what one command does and returns what it found; `lines` of it are for a person.
"""

from validate.loop.calibrating import Calibrated, calibrated
from validate.loop.drifting import Drift, drift
from validate.loop.measuring import Measured, measured
from validate.loop.whole_model import ModelRun, model_run

__all__ = ["Calibrated", "Drift", "Measured", "ModelRun", "calibrated", "drift", "measured", "model_run"]
