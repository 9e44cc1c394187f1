"""Proving: Python source for each sub-question, run in the sandbox until only the gold call is right.

call_batches      Call batches: calls that many proofs make at the same time go to the sandbox in one request.
merging           Merging: homogeneous sub-questions share one tool whose data covers all their variants.
module_reach      The reach of a tool's code through its imports: other modules, and functions that run text as code.
needed_packages   Packages beside the standard library that the sandbox has and tools may import.
other_rows        Calls for other rows of a tool's data, which tell a lookup from a constant.
proof             The proof of a tool: in the sandbox its gold call gives the gold answer, and no changed call does.
sub_environments  Sub-environments: a tool, its gold call and the proof, for each sub-question that needs a tool.
tool_source       The rules for a tool's code: one function of JSON arguments, checked on its syntax tree.
long_documents    Long documents: tools documented at the length of a real service's reference, by rule.
"""
