"""The rules of "right", each once, shared by synthesis, `astra records verify`, reward and evaluation.

written_values what a text says: a number, a quantity, a date
same_answer    two JSON values
counting       sub-tasks solved by tool outputs: n̂, n and c of the F1 reward
expectation    last words that must refuse or ask back
final_answer   whether the final message tells the gold answer
"""
