"""Measuring: which points, on which device, and how a kernel or a decoder is timed."""
