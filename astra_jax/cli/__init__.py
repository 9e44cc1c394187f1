"""The `astra` command, one file per group of subcommands; heavy imports happen inside the one that runs.

command        The command line is read, one subcommand runs, each end is one line and an exit code.
arguments      The options that several commands share, and the reader of a command line.
surroundings   The resources that a command holds while it works: a lock, the sandbox, the teacher.
compile_cache  The cache of compiled programs on disk: a command that runs again does not compile again.
benchmarks     `astra evaluate setup | bfcl | tau2 | acebench | aime | report`.

Each other file is the command of its name: config, convert, doctor, evaluate, plan, quickstart, records, replay,
report, rescore, sandbox, serve, synthesize, and training for `astra sft` and `astra rl`.
"""
