"""Sizing: a service, deployments that meet its targets, their load, energy and cost, and the choice.

In: a model and a `Service` (its rate or users, lengths and targets). `configurations` lists what may serve it, `bounds`
rules out what cannot be among the best, `deployments` serves the others. Out: a `Sizing`, the best by each objective.
"""
