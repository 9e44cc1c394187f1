"""The `astra` command, one file per group of subcommands; heavy imports happen inside the one that runs.

command        the command line is read, one subcommand runs, every end is one line and an exit code
arguments      what several command lines share
surroundings   what a command holds while it works: a lock, the sandbox, the teacher
quickstart · synthesize · records · sandbox · training · evaluate · convert · plan · report
compile_cache  compiled programs are kept
"""
