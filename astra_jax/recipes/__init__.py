"""Whole recipes: stages of synthesis, training and evaluation in one run.

quickstart             The whole recipe on this machine: real tool documents in, a trained HuggingFace checkpoint out.
quickstart_evaluation  The quickstart's evaluation: greedy episodes in three kinds of unseen environments.
stages                 The stages of a quickstart, each measured, and the folder that they work in.
data_sets              Record directories as data sets to show: our statistics beside the paper's.
tool_servers           Help for the real tool servers of the shipped configs: they answer the same on any day.
interface              The Python interface: a policy, environments, and episodes of the one in the others.
project                A project of one's own: configs, a reward, functions and questions, and a tiny base to try them
                       with.
"""
