"""The knowledge that questions are about, and a main question decomposed into sub-questions.

decomposition  Decompositions: a main question's sub-questions, their dependency graph, and Φ that joins answers.
knowledge      Knowledge: the sources of questions, and their reading from files.
"""
