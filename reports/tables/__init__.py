"""Rows of sweeps: terminal tables, CSV, JSON lines, Parquet and resumable files."""
