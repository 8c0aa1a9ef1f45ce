"""The search for changes: the goal, the moves, their simulated trials, combinations, and the plan."""
