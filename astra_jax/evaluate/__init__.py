"""The abilities of a policy: held-out environments, with intervals for every figure, and logged episodes again.

replay        a logged episode is run or sampled again, and compared token by token
scoring       the log-probs of sampled tokens by the learner's program
mismatch      the difference of sampler and learner, split by cause
endpoint      the address of a server, its key, and the first contact
"""
