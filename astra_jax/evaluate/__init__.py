"""What a policy can do: held-out environments, with intervals for every figure; logged episodes again (`replay`).

`mismatch` splits what the log-probs of sampler and learner differ by, by cause.
"""
