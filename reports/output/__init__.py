"""Output formats: terminal tables and progress, JSON, CSV, Markdown.

In: `Block`s, documents and rows. Out: text, in the width of the terminal or plain for a file.
"""
