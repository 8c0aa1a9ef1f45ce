"""What is expected: calibrated times of kernels, and of the passes that an engine makes of them, with intervals.

In: a placed network, an `Engine` and the fitted constants of `hwspecs/calibration/`. Out: `Estimate`s (10th, 50th and
90th percentile, in seconds) and what they rest on. One module of `kernels/` for each kind of kernel.
"""

from roofline.timing.calibration import Calibrations
from roofline.timing.estimate import Estimate

__all__ = ["Calibrations", "Estimate"]
