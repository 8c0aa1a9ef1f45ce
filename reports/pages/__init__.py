"""Reports on one or several scenarios as a self-contained HTML file or as Markdown.

`subjects.py` reads the scenarios, `content.py` has the sections of both formats, `controls.py` the interactive controls
and `grid.py` their precomputed figures, `web.py` renders HTML, `write.py` Markdown and files.
"""
