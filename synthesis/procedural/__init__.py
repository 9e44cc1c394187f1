"""The embedded teacher: seeded and offline, it answers by grammar and computation.

agent_turns         The embedded teacher as agent: it makes the calls of the task, repeats failed ones, and sums up.
argument_values     Values for arguments and outputs, drawn by their names, types, formats and limits.
emulated_responses  The embedded teacher as tool server: responses by output schema, things kept in the state by noun
                    and id.
environments        Answers to the questions of the environments track, computed in generated worlds.
follow_ups          The embedded teacher as a user with more to ask for.
grounding           Names and codes in an answer that stand in no source, and labels before another property's value.
hard_questions      Questions of hard worlds: frames around noun phrases that no tool's document has.
hard_wording        The wording of a hard world: questions in a lay person's words, tools in words of the trade.
judgements          The embedded teacher as judge: each score is computed from the conversation and the task's chain.
same_intent         The test whether two tools do the same, by the nouns of their names and the kinds of their
                    parameters.
stateful            Answers about tools on a state: moves of funds, and a last read.
table_worlds        Worlds of given knowledge: generated for a domain that is known, or read from tables.
task_grammar        A grammar of requests: imperative clauses made of tool descriptions, with the facts in them.
teacher             The embedded teacher: it answers every question by grammar and computation, offline, from a seed.
tool_options        Optional parameters of generated tools: units, pages, precisions and masks.
tool_wording        The wording of generated tools' names and documents; held-out tools have another one.
trajectories        Answers to the questions of the trajectories track.
world_questions     Questions about a generated world: walks over its relations, in English and Chinese.
worlds              Generated relational worlds: the entities of a domain, their attributes and their relations.
output_completion   The embedded teacher on results: a call gives records of the tool's noun, with the fields by which
                    tools address it.
"""
