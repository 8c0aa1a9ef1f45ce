"""How values and tables become text: terminal tables, JSON, CSV, Markdown and progress."""
