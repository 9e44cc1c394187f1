"""Stateful environments: tools that change the episode's state, and the proofs of them.

state_proof  Proofs of a stateful task: its conditions agree with the last state, and further tools use the state.
stateful     Stateful environments (beyond the paper): tools change a state that later calls read.
"""
