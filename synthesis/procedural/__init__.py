"""The embedded teacher: seeded and offline, it answers by grammar and computation.

agent_turns         The embedded teacher as agent: it makes the calls of the task, repeats failed ones, and sums up.
argument_values     Values for arguments and outputs, drawn by their names, subjects, schemas and examples.
emulated_responses  The embedded teacher as tool server: responses by output schema, things kept in the state by noun
                    and id.
environments        Answers to the questions of the environments track, computed in generated worlds.
grounding           Names and codes in an answer that stand in no source, and labels before another property's value.
hard_questions      Questions of hard worlds, in words that no tool's document has, and how naturally they are put.
hard_wording        The wording of a hard world: its questions, its tools and their siblings, all from one lexicon.
judgements          The embedded teacher as judge: each score is computed from the conversation and the task's chain.
stateful            Stateful tasks: moves of funds, and a last read; on a JSON object, or on a SQLite database by SQL.
table_worlds        Worlds of given knowledge: generated for a domain that is known, or read from tables.
task_grammar        A grammar of requests: frames around clauses made of tool descriptions, with the facts.
teacher             The embedded teacher: it answers every question by grammar and computation, offline, from a seed.
tool_wording        The wording of generated tools' names and documents; held-out tools have another one.
trajectories        Answers to the questions of the trajectories track.
world_questions     Questions about a generated world: walks over its relations, in English and Chinese.
worlds              Generated relational worlds: the entities of a domain, their attributes and their relations.
hard_options        Optional parameters of hard worlds' tools, whose settings the questions ask for in words.
hard_worlds         Values of a hard world that hang together: many-to-one relations, inverses that agree, values within
                    their range.
tool_shapes         Shapes of hard worlds' tools: the way their code finds a value, and the record in which it replies.
text_shapes         Texts of a shape: a regular expression is turned round, and a text that it matches is drawn.
output_completion   The embedded teacher on results: a call gives records of the tool's noun, with the fields by which
                    tools address it.
written_words       Words, frames and ranges of the embedded teacher, from the TOML files of this folder.
reworded            Questions and tools of a reworded world: one meaning in two wordings, and siblings of other
                    meanings.
"""
