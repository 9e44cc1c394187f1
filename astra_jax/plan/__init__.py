"""What a training step will need on a pod that is not there: memory, FLOPs, collective bytes, and what bounds it."""
