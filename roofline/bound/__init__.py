"""The roofline bound of every operator, and the memory of a network.

In: a `Network` and a `Hardware`. Out: bound times in seconds with their limit (compute, memory or link), and bytes of
weights, KV cache, recurrent states and activations.
"""

from roofline.bound.memory import Memory, active_parameters, kv_bytes_per_token, parameters, state_bytes_per_sequence

__all__ = ["Memory", "active_parameters", "kv_bytes_per_token", "parameters", "state_bytes_per_sequence"]
