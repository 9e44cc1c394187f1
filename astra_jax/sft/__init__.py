"""Supervised fine-tuning.

config                                   every key of a run
data, sample_source, schedule, batches   records into rows of tokens, by a pure schedule
train                                    loss, step and run; start and metrics beside it
"""
