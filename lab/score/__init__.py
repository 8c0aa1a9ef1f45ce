"""Errors of the shipped constants: kernels held out, correlations, memory footprints."""
