"""What a policy can do: held-out environments, and intervals for every figure."""
