"""The commands of `roofline validate` on this machine: measure, calibrate, run a model, detect drift.

Each function does what one command does and returns a result whose `lines` are its text.
"""

from roofline.validate.loop.calibrate import CalibrationResult, run_calibrate
from roofline.validate.loop.device_drift import DriftResult, run_drift
from roofline.validate.loop.whole_model import ModelResult, run_model
from roofline.validate.measure.bench import MeasureResult, run_measure

__all__ = [
    "CalibrationResult",
    "DriftResult",
    "MeasureResult",
    "ModelResult",
    "run_calibrate",
    "run_drift",
    "run_measure",
    "run_model",
]
