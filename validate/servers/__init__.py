"""A live server measured beside its prediction: `roofline validate server`.

In: the address of an OpenAI-compatible endpoint, a scenario, and limits of the load. Out: measured and predicted
latencies, and a profile of the deployment's own.
"""
