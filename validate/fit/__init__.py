"""Fitting: calibration constants from kernel rows, engine profiles from whole-model figures."""
