"""The `astra` command, one file per group of subcommands; heavy imports happen when one runs.

command        Runs one subcommand of `astra`, and makes an exit code and one line of each failure.
arguments      The reader of a command line, and the options that several commands share.
surroundings   The resources that a command holds while it works: the lock of its destination, the sandbox, the teacher.
compile_cache  The cache of compiled programs on disk: a command that runs again does not compile again.
benchmarks     `astra evaluate setup | bfcl | tau2 | acebench | aime | report`: public benchmarks, and a report on runs.
config         `astra config`: every key of a kind of config, with its default, type, bounds and one line of
               explanation.
records        `astra records show|stats|verify|attack|audit|export`: print, count, check and export records.
rescore        `astra rescore`: other rewards for episodes that are logged already, without model, tools or sandbox.
serve          `astra serve`: the command line of the server.
synthesize     `astra synthesize tools|functions|trajectories|environments`: training data.
training       `astra sft` and `astra rl`: the two training stages.
commands       Every subcommand of `astra`: its options, their help, and the function that runs it.
episodes       `astra evaluate environments | text` and `astra replay`: a policy speaks, anew or as it has spoken, or
               reads.
doctor         `astra doctor`: what this machine has, what is missing, and how to get it.
chat           `astra chat`: talk to a policy in the terminal, with the tools of an environment, which run in the
               sandbox.
completion     `astra completion`: a script by which a shell completes commands, options and files.
"""
