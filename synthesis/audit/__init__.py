"""The audit of a judge: faults planted into trajectories, and the share of them that passes.

audit    The audit of a judge: the share of sound trajectories that it passes, and of those with each kind of planted
         fault.
planted  Faults planted into sound trajectories: nine kinds, each in values and calls of other conversations.
"""
