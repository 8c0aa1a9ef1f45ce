"""Sizing: the service asked for, deployments that meet its targets, their load, energy and cost, and the choice."""
