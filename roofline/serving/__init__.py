"""An engine under load: its scheduler, in steady state and request by request.

In: a `Scenario` and the arrivals of requests. Out: TTFT, TPOT, throughput, goodput and cost of the deployment.
"""
