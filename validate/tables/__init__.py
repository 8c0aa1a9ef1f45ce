"""Measurement files: rows of kernels in the measurement schema, and tables of whole-model figures."""
