"""Output formats: terminal tables and progress, JSON, CSV, Markdown."""
