"""Runs Python that nobody has read: a service that answers every call with a typed reply and survives every tool.

    with local_sandbox(workers=2) as url, SandboxClient(url) as client:
        reply = client.execute("def add(a, b): return a + b", "add", {"a": 1, "b": 2})

What stands between a tool and the machine (tier `namespaces`, the strongest; every layer is tried at start):

- fresh user, mount, pid, network, IPC, UTS and cgroup namespaces for each worker; the tool is an unprivileged user;
- a root of tmpfs with read-only binds of the interpreter's own files and of the packages that the operator lists,
  nothing else of the host, no /proc, no device but /dev/null, whose times and mode cannot be changed;
- one private /tmp per call, 16 MB, remounted when a call has touched it, without times of reading;
- no environment, no inherited descriptor but the channel of the one reply; standard streams opened anew for each call;
- no capability, `no_new_privs`, a seccomp allow-list (x86-64 and aarch64), Landlock where the kernel has it;
- rlimits on memory, CPU, files, threads; wall and CPU time watched from outside the process;
- one process per call, forked from a warm interpreter that never reads a payload and never runs a tool.

Tier `landlock` (no namespaces: containers that refuse them) keeps the last three lines, reads only the standard library
and those packages, writes nowhere (no /tmp), changes no file's mode, owner, times or attributes, and cannot hide
whether a path exists, the host's name or the kernel's version.
See `docs/sandbox.md`.

What is NOT protected:

- the kernel is shared: an exploit of a system call on the allow-list escapes. For code of hostile people, rather than
  of a model, put a virtual machine or gVisor around the service;
- a tool owns its own reply: whatever it does to its process, it can only choose the value, the text and the kind among
  those a tool may cause. It cannot claim a time-out or a crash, fail the service, or answer another call: what the
  service says to itself travels on descriptors that are closed before a tool's code is read;
- packages that the operator lists are trusted: they are imported outside the jail once, at start. A tool reaches all
  that they hold; what they can do, it can do by itself, with its own system calls;
- timing, caches and load are observable between calls that run at the same time. No call wakes another that waits on a
  page both have mapped (private futexes alone), but by ending a thread whose end is noted on such a page it still can;
- without namespaces, reading a library file leaves its time of reading as on any host, and /tmp's times are the host's;
- memory is limited per call, and a call starts only while all in flight may use theirs together, with 32 MB each for
  what lies in /tmp, sockets and pipes, out of four fifths of the machine or the container. What the kernel keeps beside
  that (page tables, caches) counts only where cgroup v2 is writable; and that no more than 16 MB lie in sockets and
  pipes holds on hosts that keep the kernel's default of `net.core.wmem_default` (208 kB);
- calls that wait are held in memory, up to 16 MB each, and each connection has a few MB in the kernel: whoever may call
  may fill it. Replies that callers do not read have at most 256 MB together; then the oldest are given up;
- in namespaces the threads of one worker's calls share one bound (160), so a thread bomb can deny threads to its
  neighbours for as long as it lives; elsewhere each call has 64 of its own;
- who may call the service is a bearer token at most; TLS is the load balancer's business.

What does NOT repeat, where the same call otherwise gives the same bytes:

- addresses: `id()` and `hash` of an object that defines none, and the order of a set of such objects (a tool's own
  functions, classes, instances). They follow from what the warm interpreter did before its fork, and differ in the
  first call of a source, whose process compiles it. Sets of text, numbers, tuples of them, enum members and dataclasses
  repeat; with `None` or a built-in type among them they repeat on one kind of machine;
- real time: `time.monotonic`, what `resource` counts, the times of files (in /tmp as well), whose turn it is among
  threads. `time.sleep` takes the time that it says, and the clock goes on by just that;
- numbers of threads, inodes and devices; the real clock and entropy of the system for C code that is not Python's or
  SQLite's (`ctypes`, packages), and for SQLite in a Python that hides SQLite's symbols.
"""
