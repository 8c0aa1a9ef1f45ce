"""One module per command: its JSON document, and that document as blocks or tables."""
