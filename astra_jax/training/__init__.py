"""One training run: everything that SFT and RL share around their steps.

config        The config keys that SFT and RL share.
run           One training run, from its newest checkpoint to its last step: all that surrounds a step.
optimizer     AdamW with global-norm clipping and a learning-rate schedule, without updates that are not finite.
accumulation  The gradients of a batch in parts, one after the other: the same figures in less memory.
packing       The choice of the samples that share a row, by their lengths alone.
metrics       The metrics of a run: one JSON line per step in `metrics.jsonl`, without gaps or repeats after a resume.
wandb_run     A Weights & Biases run that follows `metrics.jsonl`; a resume sends the missing lines.
run_record    The folder of a training run or an evaluation, on which all hosts agree before any of them writes.
termination   Ctrl-C and SIGTERM end every command with one line and no traceback; nothing finished is lost.
certified     The demand on environments that RL learns from: a whole certificate, and a bound on attacks.
lost_time     Lost time: the seconds of a run that went into compiling, saving and restoring, and the time of day of
              each step.
"""
