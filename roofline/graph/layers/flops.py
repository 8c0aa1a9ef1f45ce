"""FLOPs of elementwise work, by element unless said otherwise; a transcendental function counts as one."""

from __future__ import annotations

NORM_FLOPS = {
    "rmsnorm": 4,  # square, sum, times 1/rms, times weight
    "layernorm": 7,  # sum, subtract mean, square, sum, times 1/deviation, times weight, plus bias
}
ACTIVATION_FLOPS = {
    "relu": 1,  # maximum
    "relu2": 2,  # maximum, square
    "silu": 4,  # negate, exponential, add, divide
    "gelu": 8,  # tanh form: three multiplications for the cubic, add, scale, tanh, add, multiply
    "gelu_new": 8,  # the same, in as many operators of PyTorch
}
SOFTMAX_FLOPS = 5  # maximum, subtract, exponential, sum, divide
ROPE_FLOPS = 3  # times cosine, times sine, add
SIGMOID_FLOPS = 4  # negate, exponential, add, divide
GATED_FLOPS = ACTIVATION_FLOPS["silu"] + 1
SHIFT_FLOPS = 3  # subtract the previous token, times the learned vector, add
INDEX_FLOPS = 3  # of a score: relu, times the head's weight, sum over heads
PAGE_FLOPS = 4  # an upper bound of q k in a page: times the least, times the greatest, the larger, add
MAMBA_FLOPS = 7  # of an element of the state (Gu and Dao 2023): exp(dt A) 2, dt x B 1, update 2, times C and sum 2
DECAY_FLOPS = 3  # of a pair of tokens and a head: subtract cumulative decays, exponential, multiply
RWKV4_FLOPS = 16  # two exponentials of maxima for each of output and state, weighted sums, division, sigmoid gate
SINKHORN_FLOPS = 4  # of an iteration: add and divide, along rows and along columns
GATE_FLOPS = 8  # of Engram: product of a key with its vector of the stream, square root, sigmoid, gated addition
