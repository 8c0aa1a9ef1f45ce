"""Real kernels: what they compute as operators of the simulator, in Triton, and through PyTorch's own libraries."""
