"""What a policy can do: held-out environments, with intervals for every figure; logged episodes again (`replay`)."""
