"""Reports on one or several scenarios as a self-contained HTML file or as Markdown.

`subjects.py` reads the scenarios, `content.py` has the sections of both formats, `web.py` puts those of HTML below the
live page with its answers recorded, `write.py` writes Markdown and files.
"""
