"""The gallery: study files with their figures (SVG) and data (CSV), and an index."""
