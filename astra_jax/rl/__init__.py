"""Multi-turn GRPO.

config         The configuration of an RL run, and the record of the run.
rollouts       The groups of an RL run: environments are rolled out until a batch has reward variance.
batch_filling  Adaptive batch filling: rollouts go on until enough groups are valid; surplus groups wait.
advantage      Group-relative advantages (GRPO, arXiv 2402.03300) and the standard deviation of a group's rewards.
batch          The rows of an RL step: the episodes of valid groups, with advantages on the sampled tokens.
grpo_loss      The objective of RL: the loss of each token, the paper's GRPO unless a config names another function.
train          Multi-turn GRPO as ASTRA has it: strictly online, no KL term, no entropy term, batch-level token mean.
stage          The whole RL stage: it checks its parts, opens the run, trains by `train_rl`, and writes the policy.
held_out       Evaluation in held-out environments during an RL run, and a copy of the policy with the best score.
metrics        The metrics of an RL step, one line of `metrics.jsonl`.
solved_rates   The solved rate of each environment since an RL run began, and the curriculum that decides by it.
"""
