"""The search for changes: the goal, the moves, their simulated trials, combinations, and the plan.

In: a `Scenario`, a `Goal` and `Move`s, each a change of the scenario. Out: `Trial`s with their figures, the best
combination of moves that meets the limits, and where each move stops helping.
"""
