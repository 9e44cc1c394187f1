"""The knowledge that questions are about, and a main question decomposed into sub-questions.

decomposition  Decompositions: a main question's sub-questions, their dependency graph, and Φ that joins answers.
knowledge      Knowledge: what questions are made from, and how it is read from files.
"""
