"""Rows of sweeps: terminal tables, CSV, JSON lines, Parquet and resumable files.

In: chunks of a `Sweep` as they are evaluated. Out: a table or a file, which an interrupted sweep continues.
"""
