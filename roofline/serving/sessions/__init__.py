"""Sessions of many turns on a deployment: their workload, the prefix cache that they share, simulation and theory.

In: a `Scenario` and a `Workload` of sessions. Out: hit rates of the cache's tiers, latencies of turns, throughput and
cost, at each number of sessions. `cache` is the prefix tree with the engine's eviction, `simulation` runs turns on it,
`theory` has the same in closed form.
"""
