"""Measurement files: rows of kernels in the measurement schema, and tables of whole-model figures.

In: CSV and Parquet files. Out: checked rows and cases, each a scenario with what was measured, and the reason for each
row that is left out.
"""
