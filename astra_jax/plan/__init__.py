"""The needs of a step on a pod that is not there: memory, FLOPs, collective bytes, and the bound on its time."""

PLAN_ENVIRONMENT = {"JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}
"""Set before JAX is imported: keeps JAX on the CPU and libtpu from looking for a TPU machine's metadata."""
