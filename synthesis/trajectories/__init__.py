"""The trajectories track, in the paper's order.

tool_graph, chains                          what can follow what; candidate chains, verified
tasks, follow_ups, augmentation, task_scores, near_duplicate_tasks
collection                                  the conversation with the tools
reward_axes                                 seven axes, one scalar
config, worker, pipeline, statistics        pipeline.py says in which order
"""
