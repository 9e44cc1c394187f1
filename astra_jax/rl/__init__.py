"""Multi-turn GRPO.

config                       every key of a run
rollouts, batch_filling      groups of episodes until a batch of them has reward variance
advantage, batch, grpo_loss  the arithmetic, as pure functions
train                        loss, step and run; start and metrics beside it
"""
