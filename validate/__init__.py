"""Measuring real kernels, fitting calibrations, scoring predictions, and the check that CI runs.

In: devices, measurement files and published figures. Out: measurement rows, calibration and engine files, errors.
`kernels/` and `measure/` time kernels, `tables/` reads rows, `fit/` fits constants, `score/` compares predictions with
measurements, `check/` guards committed predictions, and `loop/` is what `roofline validate` does on one device.
"""
