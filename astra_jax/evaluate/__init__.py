"""Evaluation of a policy: in held-out environments, with intervals, and on logged episodes.

environments  Held-out evaluation: the episodes of a policy in environments that it has never seen, and their figures.
baselines     `lexical`, a program that learns nothing and sees the documents and questions that a policy sees.
slices        Slices: the same figures on the environments of one kind, for every kind that a record tells of.
side_by_side  Finished evaluations side by side: whether two can be compared, and by how much they differ.
intervals     Intervals of figures: bootstrap over environments.
conduct       Figures of the course of episodes: each is a ratio of two sums over episodes.
replay        Samples a logged episode again with the same policy, seed and slot, and compares every token.
endpoint      The address of a server that serves a policy, its key, and the first contact with it.
astra_rows    Rows of ASTRA's published RL data, read as environments that attacks can act in.
attacks       Policies that must not succeed in an environment, as pure functions of what they have seen so far.
certify       How a certificate is made: all attacks, and the gold policy, act in each environment of a set.
tool_style    Blind classifiers of tools: is a tool an environment's own, or a distractor? They see no question.
text_loss     The loss of a policy on a public text: the cost of training on tool calls for the language that it knew
              before.
"""
