"""Supervised fine-tuning.

config                                   every key of a run
data, sample_source, schedule, batches   records into rows of tokens, by a pure schedule
train                                    loss, one update, all updates
stage                                    the run around them; metrics beside it
"""
