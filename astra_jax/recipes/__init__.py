"""Whole recipes: stages of synthesis, training and evaluation in one run.

quickstart             The whole recipe on this machine: real tool documents in, a trained HuggingFace checkpoint out.
quickstart_evaluation  The quickstart's evaluation: each policy at three temperatures, on three kinds of environments it
                       has never seen.
stages                 The stages of a quickstart, each measured, and the folder that they work in.
data_sets              Record directories as data sets to show: the statistics of synthesis beside the paper's figures
                       of its own data.
tool_servers           Help for the real tool servers of the shipped configs: they answer the same on any day and any
                       machine.
"""
