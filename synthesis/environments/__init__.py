"""The environments track: from knowledge to verified environments with executable tools.

A check ends at the first broken rule or promise, and its `Rejected` names it. Any stage may end an item by
`Rejected` or `BadReply`, which are counted by reason, and stop the run by `TeacherUnavailable` or `SandboxUnavailable`,
after which the same command goes on.

config         The configuration of the environments track, and those of the splits beside one training split.
distractors/   Distractors: tools that are offered beside the needed ones.
pipeline       The environments track in stage order: knowledge in, a record directory of proven environments out.
proving/       Proving: Python source for each sub-question, run in the sandbox until only the gold call is right.
questions/     Questions: QA instances with their decompositions, scored, and the documents of their tools.
selection/     Selection: quotas of environments, splits that share nothing, thresholds, and counts.
verification   Verification of finished environments: every promise of the record, replayed.
worker         Work on one item of the environments track: a draft, its proof, a finished environment.
state          Stateful environments (beyond the paper): tools change a state that later calls read.
own_functions  Environments of a user's own Python functions and questions, proven like those that a teacher writes.
"""
