"""The code inside the jail: the zygote and the harness of one call. It imports only the standard library.

launcher     Builds one jail and starts its zygote: `python -I -S -c "…launcher.main()" '<json plan>'`, one process per
             worker.
zygote       The zygote, process 1 of a jail: a warm interpreter that forks a child for each call and never reads a
             request.
harness      Runs one call in its own child process: the last restrictions, the tool, one framed reply, the end.
seccomp      The filters of system calls: one table of calls with the processes that may make them, one builder of BPF
             programs.
limits       The limits of a tool's call and of a harness's program: one table of the kernel's rlimits, and the count of
             threads.
landlock     The Landlock rules of a call, for the kernels that have it.
linux        The Linux system calls of isolation that Python's standard library does not offer, through ctypes.
determinism  Makes a call repeat byte for byte: randomness follows from the request's seed, clocks from how often they
             are read.
packages     The operator's packages inside a jail: imported before the first call, and seeded at the beginning of each.
program      Confines one program of others, such as a harness: `python -I -S -c "…program.main()" '<json plan>'`.
root         The root of a confined process: an empty file system in memory, in which chosen files of the host are
             shown.
"""
