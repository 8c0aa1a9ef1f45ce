"""Sweeps as rows: CSV, Parquet and resumable files."""
