"""Scoring: predictions against measured kernels, whole models, and servers under load.

In: rows of `validate.tables`. Out: errors and the share inside the 80% interval, by group, beside those of the bound.
"""
