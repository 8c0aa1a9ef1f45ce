"""The loop of `roofline validate`: measure this machine, calibrate it, run a model beside its prediction, watch drift.

Each function does what one command does and returns what it found; `lines` of it are for a person.
"""

from roofline.validate.loop.calibrate import Calibrated, calibrated
from roofline.validate.loop.device_drift import Drift, drift
from roofline.validate.loop.measure import Measured, measured
from roofline.validate.loop.whole_model import ModelRun, model_run

__all__ = ["Calibrated", "Drift", "Measured", "ModelRun", "calibrated", "drift", "measured", "model_run"]
