"""Templates, style and script of the report."""
