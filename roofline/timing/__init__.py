"""Expected times of kernels, and of an engine's passes, with 80% intervals.

In: a placed network, an `Engine` and the fitted constants of `hwspecs/calibration/`. Out: `Estimate`s (10th, 50th and
90th percentile, in seconds) and their basis. `kernels/` has one module for each kind of kernel.
"""

from roofline.timing.chains import engine_calibration
from roofline.timing.intervals import Estimate

__all__ = ["Estimate", "engine_calibration"]
