"""Fits of the shipped constants: kernels, engine profiles, schedulers, levels of intervals."""
