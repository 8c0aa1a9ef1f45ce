"""Models read off their class in Transformers: linear layers, norms, tables, and attention by its calls."""
