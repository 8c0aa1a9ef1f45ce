"""Scoring: predictions against measured kernels, whole models and memory footprints."""
