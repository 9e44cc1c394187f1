"""The needs of a step on a pod that is not there: memory, FLOPs, collective bytes, and the bound on its time.

plan             `astra plan`: compiles the steps of a run for a pod that is not there, and tells their memory and time.
chips            Data sheets of TPU chips, per chip.
costs            FLOPs, bytes and collectives of a step, counted from its jaxpr: loop bodies times their trip count,
                 recompute shown.
learner_steps    The learner's steps of `astra sft` and `astra rl`, ready to be compiled for a plan.
abstract_step    A jitted step of a run with the shapes that it would be called with on a mesh; nothing is allocated or
                 compiled.
compiled_memory  The compiler's answer about memory, kept on disk: the same program for the same topology is compiled
                 once.
rollout_steps    Programs of a rollout of `astra rl` in their largest shapes: reading prompts and tool responses,
                 sampling.
clock            A device without a model, and a clock that jumps: schedules can be tried at the size of a pod, in no
                 time.
"""

PLAN_ENVIRONMENT = {"JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}
"""Set before JAX is imported: these keep JAX on the CPU and libtpu from looking for a TPU machine's metadata."""
