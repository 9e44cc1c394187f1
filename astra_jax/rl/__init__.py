"""Multi-turn GRPO.

config                       every key of a run
rollouts, batch_filling      groups of episodes until a batch of them has reward variance
advantage, batch, grpo_loss  the arithmetic, as pure functions
train                        loss, one update, all updates
stage                        the run around them; metrics beside it
unapplied_step               why a step was not applied
"""
