"""Fitting: calibration constants from kernel rows, engine profiles from whole-model figures.

In: checked rows of `validate.tables`. Out: `Fit`s with their residuals and ranges, and profiles, both as YAML files.
"""
