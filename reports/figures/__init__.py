"""Figures: rooflines, times, memory, sweeps, and predictions against measurements.

Every drawing function returns a matplotlib figure; `style.save` writes it as SVG, PNG or PDF by the file's ending.
`drawing.draw` returns the figure of a `request.FigureSpec` with its data.
"""
