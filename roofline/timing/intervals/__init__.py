"""Intervals: how far a measured time may be from the expected one. Every width is made here.

An 80% interval is from the 10th to the 90th percentile. Of one kernel, with the percentiles p10 and p90 of measured
over predicted time in its regime of sizes and the standard deviation s of the logarithm that the levels between the
measured constants and their use add (version, device, engine, format: `intervals.levels`):

    kernel   log(high / mid)^2 = (w o log p90)^2 + (1.2816 s)^2              `intervals.kernels`
             o = 2 outside the range of sizes that were measured, else 1; w = 1, more for weight-only kernels elsewhere
             p10, p90 at least 0.6 and 1.6 of a kernel without measurements; one that runs in place of a tuned one has
             p10, p50 and p90 of what such kernels cost besides (`timing.variants`)

Errors of the kernels of a pass are correlated within a kind, and across kinds. With the correlation r of shapes of one
kind, R of kinds, and e_k the error in seconds of a kernel that runs n_k times (`intervals.passes`):

    kind     E_K^2 = r (sum n_k e_k)^2 + (1 - r) sum (n_k e_k)^2,          all n_k layers of a shape err together
    pass     E^2   = R (sum E_K)^2 + (1 - R) sum E_K^2
    with the engine's own spread x:   (high - mid)^2 = (g E)^2 + ((x - 1) mid)^2,      g its share of kernel errors

Under load (`serving.outcome.spreads`), with p10 and p90 of a prefill or decode step over its p50 (`low`, `high`), the
scheduler's spread s, the part d of the deployment, the error a of accepted drafts, and the further errors e:

    mean     p10 = 1 - hypot(s d (1 - low), a),   p90 = 1 + hypot(s d (high - 1), a),   then log p^2 + e^2
    median   0.65 of these distances, without drafts: a mean has kernels that compile (`intervals.deployments`)

These e of a pass are independent of each other and of kernels, with p10 and p90 of

    none, up to 3   a version soon after a model's architecture, or before the oldest one fitted     `releases`
    0.88, 1.4       an engine on a vendor's devices, no step of it measured there (vLLM on AMD)      `releases`
    0.87, 1.15      families whose kernels are of few published figures (CDNA3), gpt-oss on Blackwell `releases`
    0.6, 2          layers over several nodes, or ranks that exchange by MoRI                        `deployments`

A collective through a host covers the machines of the host's kind (`timing.collectives`). Times of passes add with
full correlation, and a scheduler's spread widens the latencies under load (`serving.outcome`). The ratio of two
predictions has the error of the difference of their kernels, so that what they share cancels (`passes.ratio_error`).
"""

from roofline.timing.intervals.estimate import INVERSE, READINGS, Estimate, Reading

__all__ = ["INVERSE", "READINGS", "Estimate", "Reading"]
