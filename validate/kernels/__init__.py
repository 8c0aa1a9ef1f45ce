"""Benchmarks of real kernels, in Triton and in PyTorch, and their work as operators of the simulator."""
