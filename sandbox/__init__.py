"""Runs Python that no person has read: a service that answers every call with a typed reply and survives every tool.

    with local_sandbox(workers=2) as url, SandboxClient(url) as client:
        reply = client.execute("def add(a, b): return a + b", "add", {"a": 1, "b": 2})

These walls stand between a tool and the machine in the tier `namespaces`. Each is attacked when the service starts.

- Each worker has fresh user, mount, pid, network, IPC, UTS and cgroup namespaces. The tool is an unprivileged user.
- The root is a tmpfs with read-only binds of the interpreter's own files and of the folder of packages.
  It has no /proc, no device but /dev/null, and nothing else of the host.
- Each call has a private /tmp of 16 MB. It is mounted anew when a call has touched it, and keeps no times of reading.
- The environment is empty, the standard streams are opened anew for each call, and the channel of the one reply is the
  only descriptor that a call inherits.
- A tool has no capability and `no_new_privs`. A seccomp filter (x86-64 and aarch64) allows a list of system calls;
  Landlock is added where the kernel has it.
- rlimits bound memory, CPU time, files and threads. Wall and CPU time are also watched from outside the process.
- Each call is one process, forked from a warm interpreter that never reads a payload and never runs a tool.

The tier `landlock` is for containers that refuse namespaces. It keeps the last three walls. A tool reads only the
standard library and the packages, writes nowhere (it has no /tmp), and cannot change a file's mode, owner, times
or attributes. It can find out whether a path exists, where Python and this package lie, the host's name and the
kernel's version. `docs/sandbox.md` says where each tier is used.

These are NOT protected:

- The kernel is shared: an exploit of a system call on the list escapes. If the code comes from hostile people rather
  than from a model, put a virtual machine or gVisor around the service.
- A tool owns its reply. It may do anything to its process, but can only choose the value, the text, and a kind of error
  that tools may cause. It cannot claim a time-out or a crash, fail the service, or answer another call: the service
  talks to itself on descriptors that are closed before a tool's code is read.
- Packages are trusted: they are imported outside the jail once, at start. A tool reaches all that they hold, with its
  own system calls.
- Timing, caches and load can be observed by calls that run at the same time. No call wakes another that waits on a page
  that both have mapped (only private futexes are allowed), except by ending a thread whose end is noted on such a page.
- The interpreter's own files name the folder in which it was built, and the monotonic clock tells since when the
  machine has run. In the tier `landlock`, a read changes a library file's time of reading.
- Memory is limited per call. A call starts only while the limits of all calls in flight, with 32 MB each for /tmp,
  sockets and pipes, fit into four fifths of the machine or container. Other memory of the kernel (page tables, caches)
  is not counted. Sockets and pipes hold at most 16 MB a call if the host keeps the kernel's default of
  `net.core.wmem_default` (208 kB).
- Waiting calls are held in memory, up to 8 MB each, and each connection takes a few MB in the kernel: callers can fill
  it. Callers can also hold all connections without a request, and a body of 8 MB keeps the others waiting.
- A call has 64 threads besides its first. In namespaces before Linux 5.14 the calls of one worker share this bound, so
  a thread bomb can take threads from its neighbours while it lives.
- A bearer token is the only check of callers. TLS is the load balancer's business.

The same call gives the same bytes, with these exceptions:

- Addresses: `id()`, the `hash` of an object that defines none, and the order of a set of such objects or of types. Sets
  of text, numbers, tuples of them, enum members and dataclasses repeat.
- Counts of all memory of the interpreter (`gc.get_freeze_count`, `sys.getallocatedblocks`), real time
  (`time.monotonic`, figures of `resource`, times of files), the order in which threads run, and numbers of threads,
  devices, sockets and pipes.
- The system's clock and entropy, for C code that asks the system itself (SQLite, `ctypes`, packages).

server        The service over HTTP: `python -m sandbox.server --host 127.0.0.1 --port 8377 --workers 2`.
endpoints     The endpoints of the service: every failure that is not a tool's becomes an HTTP status.
execution     From a validated request to a reply: sources and their byte code by hash, and the verdict on a call that
              ended.
pool          The pool: workers (one jail each), the fair queue before them, and their recovery.
worker        A worker: one jail, the control socket to its zygote, and the calls inside it.
isolation     The tiers of isolation, and the start of a jail, as seen from outside of it.
self_test     The tier of isolation that holds on this machine: found by a start in it, and attacks on it, never
              assumed.
contract/     The promises to callers, each with a name; any provider of the interface can be checked against them.
jail/         The code inside the jail: the zygote and the harness of one call. It imports only the standard library.
protocol      Requests and replies of the service. Nothing here knows how a tool is run.
client        Callers of the service: one client for asyncio, and a blocking one that runs it in a thread.
local         A real service process of one's own on this machine, for as long as a `with` block lasts.
bearer_token  The bearer token that callers and service share: read from the environment on either side, and shown
              nowhere.
cgroup        The memory, cores and threads that this process may use: the machine's, or a container's limit if that is
              less.
errors        The errors of the sandbox.
interpreter   The interpreter that jails run: its files, and the shared libraries that a process of it has loaded.
metrics       Counters of the service in the Prometheus text format.
packages      Packages that tools may import: one folder that `pip install --target FOLDER NAME ...` has made.
program       A program of others, confined: the command line that starts it behind the walls of `sandbox.jail.program`.
strict_json   JSON as both sides of the service mean it: finite numbers, bounded nesting, and one spelling of each
              reply.
web_pages     Requests of web pages: a page in a browser on this machine can send requests to servers on 127.0.0.1.
"""
