"""The needs of a step on a pod that is not there: memory, FLOPs, traffic, and the bound on its time.

plan             `astra plan`: compiles the steps of a run for a pod that is not there, and tells their memory and time.
chips            Data sheets of TPU chips and of GPUs, per chip.
costs            FLOPs, bytes and collectives of a step, counted from its jaxpr: loops by their trip count.
learner_steps    The learner's steps of `astra sft` and `astra rl`, ready to be compiled for a plan.
abstract_step    A jitted step of a run with the shapes of its arguments on a mesh; nothing is allocated.
compiled_memory  The compiler's answer about memory, kept on disk: no program is compiled twice.
rollout_steps    Programs of a rollout of `astra rl` in their largest shapes: they read and they sample.
fit              The layout of a run that is quickest on a topology, by the plan's own clock: `astra plan --fit`.
clock            A device without a model, and a clock that jumps: schedules can be tried at the size of a pod, in no
                 time.
planned_clock    The seconds of an update's calls on a topology, at best: by the rooflines of the run's own programs.
time_line        A whole update of RL on a clock: rollouts by the real schedule, resharding and learning, without model
                 or machine.
what_ifs         The time line of a run's update beside those of other rows, groups, tools and chips: `astra plan
                 --time-line`.
workload         Lengths and times of the episodes of an update that is simulated: those of a recorded run, or the
                 paper's turns.
"""

PLAN_ENVIRONMENT = {"JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}
"""Set before JAX is imported: these keep JAX on the CPU and libtpu from looking for a TPU machine's metadata."""
