"""Measuring: which points, on which device, and how a kernel or a decoder is timed.

In: benchmarks of `validate.kernels`, a device and minutes. Out: rows in the measurement schema, with the kernel and
the software.
"""
