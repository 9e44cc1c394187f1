"""The environments track, in the paper's order.

quotas, qa_instances, drafts, quality       what is asked for, drawn, scored: QS(τ)
sub_environments, tool_scaling, stateful    a tool, a call and an answer per sub-question
needed_packages                             what tools import beside the standard library
tool_source, call_batches, proof            Python source, proven in the sandbox
merging                                     homogeneous tools become one
irrelevant_tools, embeddings, refusals, splits
verification                                every gold call replayed on the finished record
config, worker, pipeline, statistics        pipeline.py says in which order
"""
