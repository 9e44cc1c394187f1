"""A policy in environments.

ledger       The token ledger: the exact tokens of one episode, and the writer of each.
episode      One episode: the policy in one environment, until it stops calling tools or runs into a limit.
tool_mixing  Mixing irrelevant tools in: which distractors an episode is shown, and in which order all tools stand.
rollout      Rollouts: groups of episodes of one policy, each at its own pace, with their tools in the sandbox.
rewards      The reward of an episode: the F1 of solved sub-tasks (ASTRA, section on RL), and others beside it.
finished     A finished episode as a reward sees it: the question with its gold answers, and all messages and calls.
figures      Figures of finished episodes: the paper's F1, and those that are reported beside it.
log          The episode log: finished episodes as JSON lines, with the id and the writer of every token.
saved        Finished episodes as JSON, for a checkpoint and for other hosts, and back, equal in every token and figure.
"""
