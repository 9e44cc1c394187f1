"""The rules of "right", each once, shared by synthesis, `astra records verify`, reward and evaluation.

counting          The counts of the F1 reward: solved sub-tasks, all sub-tasks, and tool calls.
expectation       Episodes that must not answer: whether their last words refuse, or ask back, as expected.
final_answer      The final answer: whether the message that ends an episode tells the gold answer.
same_answer       The one rule of "the same answer": the same value in any notation, or a stated alias; no substring.
schema_fault      Checks a value by a JSON Schema: a call's arguments, or a tool's response.
state_conditions  Conditions on the last state of an episode, as data: no code runs to check them.
tool_response     The text of a tool's reply, as an agent reads it.
written_values    The value of a text: a number, a quantity with its unit, a date, or the text itself.
"""
