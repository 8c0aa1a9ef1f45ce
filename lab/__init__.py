"""How the shipped constants were made, and how well they predict: not part of the installed package.

In: public tables of kernels, of whole models and of servers. Out: calibrations, engine profiles, levels of intervals,
held-out errors, the gallery. Everything here imports `roofline`; nothing there imports this.
"""
