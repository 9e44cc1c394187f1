"""Hosts and devices of a run, and the places of arrays on them.

hosts      The hosts of a run: they join before anything else touches JAX, end together, and share a disk.
placement  The devices of a training run: the first one alone, or a mesh of all devices of all hosts.
layouts    The mesh on which a policy decodes, over the learner's devices, and the layout of its weights there.
watch      A watch over the hosts of a job: one that is gone, or that all others wait for, is named, and all end.
"""
