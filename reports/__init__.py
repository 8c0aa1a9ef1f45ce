"""Rendering: simulation results as terminal tables, documents, figures and pages.

In: analyses, advice, sizings, sweeps and scores. Out: text, JSON, CSV, Markdown, HTML, Parquet, SVG, PNG. No arithmetic
beyond formatting lives here.
"""
