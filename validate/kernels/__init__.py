"""Benchmarks of real kernels, in Triton and in PyTorch, and their work as operators of the simulator.

In: a case, the sizes of one kernel in a format. Out: its inputs, a float64 reference, and a call of each backend.
Nothing is timed here (`validate.measure`).
"""
