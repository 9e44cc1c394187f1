"""Distractors: tools that are offered beside the needed ones.

irrelevant_tools  Irrelevant tools: executable distractors, in bands of similarity to an environment's own tools.
siblings          Siblings: distractors with the parameters of an own tool that give another answer, as proven here.
"""
