"""The `astra` command, one file per group of subcommands; heavy imports happen inside the one that runs.

command        The `astra` command: one subcommand for every stage of the method.
arguments      The options that several commands share, and the reader of a command line.
surroundings   The resources that a command holds while it works: the lock of its destination, the sandbox, the teacher.
compile_cache  The cache of compiled programs on disk: a command that runs again does not compile again.
benchmarks     `astra evaluate setup | bfcl | tau2 | acebench | aime | report`: public benchmarks, and a report on runs.
config         `astra config`: every key of a kind of config, with its default and one line of explanation.
convert        `astra convert hf-to-orbax|orbax-to-hf`: checkpoints to and from HuggingFace.
doctor         `astra doctor`: the causes of a log-prob mismatch (`mismatch`), and of an RL step that was not applied.
evaluate       `astra evaluate`: held-out figures of a policy, and its episodes; public benchmarks are in
               `benchmarks.py`.
plan           `astra plan`: memory, FLOPs and roofline of a pod that is not there.
quickstart     `astra quickstart`: the whole recipe with a tiny Qwen3.
records        `astra records show|stats|verify|audit|export`: print, count, verify, audit and export records.
replay         `astra replay`: runs logged episodes again, and compares every token.
report         `astra report`: one self-contained HTML page.
rescore        `astra rescore`: other rewards for episodes that are logged already.
sandbox        `astra sandbox serve`: the service that runs model-written code.
serve          `astra serve`: the command line of the server.
synthesize     `astra synthesize tools|trajectories|environments`: training data.
training       `astra sft` and `astra rl`: the two training stages.

Each other file is the command of its name: config, convert, doctor, evaluate, plan, quickstart, records, replay,
report, rescore, sandbox, serve, synthesize, and training for `astra sft` and `astra rl`.
"""
