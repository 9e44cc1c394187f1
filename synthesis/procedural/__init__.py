"""The embedded teacher: seeded, offline. It answers by grammar and computation, so that gold answers are computed.

teacher         `ProceduralTeacher`
trajectories    argument_values, task_grammar, agent_turns, emulated_responses, follow_ups, judgements
environments    worlds, table_worlds, world_questions, world_actions, tool_options
"""
