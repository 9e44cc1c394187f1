"""A policy in environments.

ledger       the exact tokens, and who wrote each
episode      turns, tool calls in the sandbox, stop reasons
tool_mixing  which distractors are shown
rollout      groups of episodes over the decode engine
rewards      the paper's reward and others, and `figures` of many episodes
log, saved   episodes as JSON lines, and in a checkpoint
"""
