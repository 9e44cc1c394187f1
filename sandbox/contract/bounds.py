"""Promises about time, memory, processes and output: no tool takes more than its share."""

from sandbox.contract.promise import CHEAP, ROOMY, module, promise, table

TIME = [
    *table(
        "timeout",
        {
            "an endless loop times out": "while True: pass",
            "sleeping past the wall limit times out": "import time\ntime.sleep(60)",
            "catching every exception does not stop the clock": "while True:\n    try:\n        while True: pass\n"
            "    except BaseException: pass",
            "a loop inside C times out": "import itertools\nreturn sum(itertools.count())",
            "a catastrophic regular expression times out": "import re\n"
            "return re.match(r'(a+)+$', 'a' * 60 + 'b') is None",
            "a deadlock times out": "import threading\nlock = threading.Lock()\nlock.acquire()\nlock.acquire()",
            "ignoring signals does not help": "import signal\nfor number in range(1, 32):\n"
            "    try: signal.signal(number, signal.SIG_IGN)\n    except (OSError, ValueError): pass\nwhile True: pass",
            "a looping thread times out": "import threading\ndef loop():\n    while True: pass\n"
            "t = threading.Thread(target=loop)\nt.start()\nt.join()",
            "an exception whose text loops times out": "class E(Exception):\n    def __str__(self):\n"
            "        while True: pass\nraise E",
        },
        limits=CHEAP,
    ),
    module("a loop at import times out", "timeout", "while True: pass\ndef f(): return 1", limits=CHEAP),
    promise("a power tower ends", "timeout memory", "return len(str(9 ** 9 ** 9))", limits=CHEAP),
    promise("input finds the end of its stream", "exception", "return input()"),
    *table(
        "ok",
        {
            "exit handlers do not run": "import atexit, time\natexit.register(time.sleep, 60)\nreturn 1",
            "a thread left behind ends with its call": "import threading\ndef loop():\n    while True: pass\n"
            "threading.Thread(target=loop, daemon=True).start()\nreturn 1",
        },
        value=1,
    ),
]

# Larger buffers of sockets and pipes would hold more, and no limit of a process counts them.
_QUEUE = """
import fcntl, os, socket
most = 0
for make in (socket.socketpair, os.pipe):
    kept, queued = [], 0
    try:
        while True: kept.append(make())
    except OSError: pass  # no more descriptors
    for one, other in kept:
        for end in ((one, other) if make is socket.socketpair else (other,)):
            for level, option in ((1, 7), (1, 8), (1, 32), (1, 33)):
                try: end.setsockopt(level, option, 1 << 30)
                except (OSError, AttributeError): pass
            descriptor = end if isinstance(end, int) else end.fileno()
            try: fcntl.fcntl(descriptor, 1031, 1 << 20)
            except OSError: pass
            os.set_blocking(descriptor, False)
            try:
                while queued < 1 << 30: queued += os.write(descriptor, bytes(1 << 16))
            except BlockingIOError: pass
    for pair in kept:
        for end in pair: os.close(end) if isinstance(end, int) else end.close()
    most = max(most, queued)
return most < 16 << 20 or most
"""

_OWN_DESCRIPTORS = """
import ctypes, os, socket, threading
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
VM, FS, FILES, SIGHAND, VFORK, THREAD, NEWNS = 0x100, 0x200, 0x400, 0x800, 0x4000, 0x10000, 0x20000
thread = VM | FS | FILES | SIGHAND | THREAD
stacks, found = [], []
def clone(flags):
    stacks.append(ctypes.create_string_buffer(1 << 14))
    top = ctypes.addressof(stacks[-1]) + (1 << 14) & ~15
    return libc.clone(ctypes.cast(libc.pause, ctypes.c_void_p), ctypes.c_void_p(top), ctypes.c_int(flags), None)
for name, flags in {
    'descriptors of its own': thread & ~FILES, 'a folder of its own': thread & ~FS, 'a process': VM | FS | FILES,
    'a process that is waited for': VM | VFORK, 'new namespaces': thread | NEWNS, 'a handle of itself': thread | 0x1000,
    'signal handlers of its own': thread & ~SIGHAND & ~THREAD, 'descriptors and memory of its own': THREAD | SIGHAND,
}.items():
    if clone(flags) > 0: found.append(name)
if libc.syscall(ctypes.c_long(435), None, ctypes.c_long(0)) != -1 or ctypes.get_errno() != 38: found.append('clone3')
held = []
def hold():
    libc.syscall(ctypes.c_long(436), ctypes.c_uint(9999), ctypes.c_uint(9999), ctypes.c_uint(2))  # CLOSE_RANGE_UNSHARE
    libc.unshare(FILES)
    try:
        while True: held.append(os.dup(0))
    except OSError: pass
for _ in range(4):
    each = threading.Thread(target=hold)
    each.start(), each.join()
if len(held) > 64: found.append(f'{len(held)} descriptors')
for fd in set(held):
    try: os.close(fd)
    except OSError: pass  # of another table
try:
    one, other = socket.socketpair()
    socket.send_fds(one, [b'x'], [one.fileno()])
    found.append('a descriptor on its way')
except PermissionError: pass
return found
"""
_MANY_THREADS = """
import threading
from concurrent.futures import ThreadPoolExecutor
together = threading.Barrier(64, timeout=20)  # of threads that are all there at once
with ThreadPoolExecutor(64) as pool: return len(set(pool.map(lambda n: together.wait(), range(64))))
"""

MEMORY = [
    *table(
        "memory",
        {
            "one huge allocation is refused": "return len([0] * 10 ** 10)",
            "steady growth is refused": "kept = []\nwhile True: kept.append(bytearray(1 << 20))",
            "a doubling string is refused": "text = 'x'\nwhile True: text += text",
            "mapping memory is refused": "import mmap\nreturn len(mmap.mmap(-1, 1 << 34))",
        },
    ),
    promise(
        "many small objects are refused",
        "memory",
        "kept = []\nwhile True: kept.append([len(kept)])",
        limits=CHEAP.model_copy(update={"cpu_seconds": 12.0, "wall_seconds": 30.0}),
    ),
    promise(
        "surviving MemoryError does not stop the clock",
        "timeout",
        "kept = []\nwhile True:\n    try: kept.append(bytearray(1 << 20))\n    except MemoryError: pass",
        limits=CHEAP,
    ),
    promise(
        "a zip bomb is refused",
        "memory",
        "import zlib\npack = zlib.compressobj(1)\nparts = [pack.compress(bytes(1 << 20)) for _ in range(200)]\n"
        "return len(zlib.decompress(b''.join(parts) + pack.flush()))",
        limits=ROOMY.model_copy(update={"cpu_seconds": 12.0}),
    ),
    promise(
        "a tool of 16 MB leaves less than another 16 MB unread in sockets and pipes",
        "ok",
        _QUEUE,
        value=True,
        limits=ROOMY.model_copy(update={"memory_bytes": 16 << 20}),
    ),
    promise("deep recursion is an exception", "exception", "def g(n): return g(n + 1)\nreturn g(0)"),
    promise(
        "so it is through C, in a thread as well",
        "ok",
        "import threading\nfound = []\nclass A:\n    def __getattr__(self, name): return getattr(self, name)\n"
        "def run():\n    try: A().x\n"
        "    except RecursionError: found.append('an exception')\n"
        "run()\nthread = threading.Thread(target=run)\nthread.start(), thread.join()\nreturn found",
        value=["an exception"] * 2,
        limits=ROOMY.model_copy(update={"memory_bytes": 256 << 20}),
    ),
    promise(
        "recursion without a limit ends",
        "crashed memory timeout",
        "import sys\nsys.setrecursionlimit(10 ** 9)\ndef g(n): return g(n + 1)\nreturn g(0)",
    ),
    promise(
        "overflowing the C stack ends the call alone",
        "crashed memory timeout exception",  # from Python 3.12 on the interpreter notices
        "import sys\nsys.setrecursionlimit(10 ** 6)\nx = []\nfor _ in range(10 ** 6): x = [x]\nreturn repr(x)",
    ),
]

PROCESSES = [
    *table(
        "forbidden",
        {
            "fork is forbidden": "import os\nwhile True: os.fork()",
            "programs are forbidden": "import subprocess\nreturn subprocess.run(['/bin/ls']).returncode",
            "exec is forbidden": "import os\nos.execv('/python/bin/python', ['python'])",
            "spawn is forbidden": "import os\nreturn os.posix_spawn('/bin/ls', ['ls'], {})",
            "killing all processes is forbidden": "import os\nos.kill(-1, 9)",
            "killing the parent is forbidden": "import os\nos.kill(1, 9)",
            "raising a priority is forbidden": "import os\nos.nice(-5)",
        },
    ),
    *table(
        "forbidden exception",
        {
            "multiprocessing is forbidden": "import multiprocessing\n"
            "p = multiprocessing.Process(target=print)\np.start()",
            "limits cannot be raised": "import resource as r\nr.setrlimit(r.RLIMIT_AS, (r.RLIM_INFINITY,) * 2)",
        },
    ),
    *table(
        "ok",
        {
            "the shell is not there": "import os\nreturn os.system('echo out; exit 0') == 0",
            "root cannot be had": "import os\nreturn 0 in os.getresuid()",
        },
        value=False,
    ),
    *table(
        "crashed",
        {
            "leaving with status 0 is a crash": "import os\nos._exit(0)",
            "leaving with another status is a crash": "import os\nos._exit(42)",
            "abort is a crash": "import os\nos.abort()",
            "a segmentation fault is a crash": "import ctypes\nctypes.string_at(0)",
        },
    ),
    promise("sys.exit is an exception", "exception", "import sys\nsys.exit(0)"),
    promise("KeyboardInterrupt is an exception", "exception", "raise KeyboardInterrupt"),
    promise(
        "a thread bomb is stopped",
        "exception memory",
        "import threading, time\nthreading.stack_size(65536)\n"
        "while True: threading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
    ),
    *[
        promise(
            f"sixty-four threads work in {megabytes} MB",
            "ok",
            _MANY_THREADS,
            value=64,
            limits=ROOMY.model_copy(update={"memory_bytes": megabytes << 20}),
            is_slow=True,
        )
        for megabytes in (64, 128, 256, 512, 1024, 2048)
    ],
    promise("all threads of a call have its 64 descriptors together", "ok", _OWN_DESCRIPTORS, value=[]),
]

OUTPUT = [
    *table(
        "output_limit",
        {
            "a print flood is stopped": "while True: print('x' * 1000)",
            "a flood on stderr is stopped": "import sys\nwhile True: sys.stderr.write('x' * 1000)",
            "a swallowed flood still counts": "for _ in range(100):\n"
            "    try: print('x' * 1000)\n    except BaseException: pass\nreturn 1",
            "a result too large is refused": "return 'x' * 100_000",
        },
    ),
    promise(
        "raw descriptors lead nowhere",
        "ok",
        "import os\nos.write(1, b'x' * 100000)\nos.write(2, b'y' * 100000)\nreturn 1",
        stdout="",
    ),
    promise("closing stdout breaks no reply", "ok", "import sys\nprint('a')\nsys.stdout.close()", stdout="a\n"),
    promise("stdout may be replaced", "ok", "import sys\nsys.stdout = None\nreturn 1", value=1),
    promise("odd characters are printed", "ok", "print('é\\ud800\\x00')\nreturn 1", stdout="é\\ud800\x00\n"),
]
