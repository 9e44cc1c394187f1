"""Supervised fine-tuning.

config         The configuration of an SFT run, and the record of the run.
conversations  Conversations in OpenAI's form: a file of JSON lines with `messages` and, if tools are called, `tools`.
data           SFT samples: messages rendered to tokens, with loss on the assistant's tokens only.
sample_source  Random access to SFT samples of known lengths, rendered when they are needed.
schedule       The schedule of samples over the rows of all steps: a pure function of their lengths and a seed.
batches        The batches of an SFT run: records in, padded or packed rows out, made ahead of the step.
train          Supervised fine-tuning: trajectories and gold episodes in, a checkpoint out.
stage          The whole SFT stage: it checks its parts, opens the run, trains by `train_sft`, and writes the policy.
"""
