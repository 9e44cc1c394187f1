"""Launch of a run on a pod: a JobSet for Kubernetes, or a script for Compute Engine.

launch    The files of a run on a pod: a JobSet for Kubernetes, or a script for Compute Engine.
machines  Hosts and machine types of a TPU slice.
jobset.yaml         The JobSet with its config: one pod a host, the sandbox's token from a secret.
instance_group.sh   Commands of `gcloud` that make a slice of virtual machines, all at once, and start the run on each.
"""
