"""The questions, one file each, in the order of the tracks; `rendering` is their form, `judges` are together.

The instructions of each end with one worked example, which says that it is one.

trajectories   chain_proposal, chain_vote, task_writing, augmentation, task_scoring, follow_up_writing,
               agent_turn, simulated_user, user_continuation, emulated_tool_response, judges
environments   qa_instance, decomposition_quality, tool_necessity, tool_document_writing, tool_document_scaling,
               tool_call_writing, tool_implementation_writing, tool_merging, parameter_omission,
               stateful_task_writing, state_conditions, stateful_tools; packages is what all that ask for code add
"""
