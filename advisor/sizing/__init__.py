"""Sizing: a service, deployments that meet its targets, their load, energy and cost, and the choice."""
