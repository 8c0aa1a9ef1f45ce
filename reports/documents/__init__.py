"""One module for each answer: its JSON document and its page."""
