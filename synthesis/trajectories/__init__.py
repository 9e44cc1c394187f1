"""The trajectories track: from tool documents to judged conversations.

augmentation  Augmentation: a task in other words, harder, or said by another persona, with the same facts and language.
chains        Chains: candidates are verified by rule, then by votes; a failing chain is dropped and counted.
collection    Collection: the teacher as agent and a tool backend talk, until a turn has no tool call.
config        The configuration of the trajectories track; defaults are the paper's where it has them.
follow_ups    Follow-ups: later requests of a conversation, which ask for the rest of its chain.
pipeline      The trajectories track in stage order: tool documents in, a record directory of judged conversations out.
reward_axes   The seven reward axes: decided by rule where a rule can, else by the teacher; none has a default.
selection     Selection: near-duplicate tasks, conversations too long for a student, and thresholds of a finished run.
statistics    Statistics of a set of trajectories, in the figures of the paper's table.
tasks         Tasks: a user's request for a chain of calls, its facts checked against the schemas, and its three scores.
tool_graph    The tool graph: consecutive tools of proposed chains are edges, weighted by number of proposals.
verification  Verification of trajectories: calls, failures and scores of the record, replayed where possible.
worker        Work on one item of the track: a server's chains, a task, or a task's conversation and reward.
bindings      Bindings: the results of earlier calls that give an argument of a later one.
data_flow     Data flow in a conversation: arguments whose values stand first in the response of an earlier turn.
"""
