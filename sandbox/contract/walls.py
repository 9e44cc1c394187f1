"""Promises about files, the network, secrets, and traces of one call in the next."""

from sandbox.contract.promise import SAME, promise, table

_OPEN = """
import os
own = arguments.get('path', '/root/x')
found = []
for path in (own, os.path.dirname(own), '/etc/passwd', '/etc/hostname', '/proc/self/environ', '/proc/1/root',
             '/sys/kernel', '/dev/shm'):
    try: found.append([path, os.open(path, os.O_RDONLY)])
    except OSError: pass
return found
"""

FILES = [
    *table(
        "forbidden",
        {
            "the host's files cannot be read": "return open('/etc/passwd').read()",
            "nor through a detour": "return open('/tmp/../etc/passwd').read()",
            "the host's directories cannot be listed": "import os\nreturn os.listdir('/home')",
            "the root cannot be written": "open('/escape', 'w')",
            "the standard library cannot be written": "import os\nopen(os.__file__, 'a')",
            "devices are not there": "open('/dev/mem', 'rb')",
            "devices cannot be made": "import os\nos.mknod('/tmp/null', 0o20666, os.makedev(1, 3))",
            "pipes with names cannot be made": "import os\nos.mkfifo('/tmp/pipe')",
            "the root cannot be changed": "import os\nos.chroot('/tmp')",
        },
    ),
    promise(
        "nor through a symbolic link",
        "forbidden exception",
        "import os\nos.symlink('/etc/passwd', '/tmp/link')\nreturn open('/tmp/link').read()",
    ),
    promise("nothing of the host can be opened", "ok", _OPEN, value=[]),
    *table(
        "exception",
        {
            "a file that fills the disk is stopped": "with open('/tmp/big', 'wb') as file:\n"
            "    while True: file.write(bytes(1 << 20))",
            "a sparse giant is stopped": "with open('/tmp/big', 'wb') as file: file.truncate(1 << 40)",
            "a flood of files is stopped": "for index in range(100_000): open(f'/tmp/{index}', 'w').close()",
        },
        needs_namespaces=True,
    ),
    promise(
        "a deep tree of directories is harmless",
        "ok exception",
        "import os\nfor _ in range(900):\n    os.mkdir('d')\n    os.chdir('d')\nreturn 1",
        needs_namespaces=True,
    ),
    promise(
        "a private /tmp can be used",
        "ok",
        "import tempfile\nwith tempfile.TemporaryFile() as file:\n    file.write(b'abc')\n    file.seek(0)\n"
        "    return file.read().decode()",
        value="abc",
        needs_namespaces=True,
    ),
]

# On a broken service the attempts succeed. They change times and an extra attribute and no content, so they do no harm
# to a library or to the file of the package `module`. Given the `path` of a file that may be lost, the call also tries
# to destroy it.
CHANGE_FILE = """
import importlib, os
path = arguments.get('path') or importlib.import_module(arguments.get('module', 'os')).__file__ or os.__file__
folder = os.path.dirname(path)
def mode_of(path):
    try: return os.stat(path).st_mode & 0o7777
    except OSError: return 0o600
def handle(): return os.open(path, os.O_RDONLY)
attempts = {
    'mode': lambda: os.chmod(path, mode_of(path)), 'mode by descriptor': lambda: os.fchmod(handle(), mode_of(path)),
    'mode of a link': lambda: os.chmod(path, mode_of(path), follow_symlinks=False),
    'mode below a folder': lambda: os.chmod(os.path.basename(path), mode_of(path), dir_fd=os.open(folder, os.O_PATH)),
    'mode through /proc': lambda: os.chmod(f'/proc/self/fd/{os.open(path, os.O_PATH)}', mode_of(path)),
    'mode of its folder': lambda: os.chmod(folder, mode_of(folder)), 'times of its folder': lambda: os.utime(folder),
    'times': lambda: os.utime(path, (1, 1)), 'times by descriptor': lambda: os.utime(handle(), (1, 1)),
    'owner': lambda: os.chown(path, -1, -1), 'owner of a link': lambda: os.lchown(path, -1, -1),
    'owner by descriptor': lambda: os.fchown(handle(), -1, -1),
    'attribute': lambda: os.setxattr(path, 'user.escape', b'x'),
    'attribute by descriptor': lambda: os.setxattr(handle(), 'user.escape', b'x'),
    'size': lambda: os.truncate(path, os.stat(path).st_size), 'content': lambda: os.open(path, os.O_APPEND | 1),
    'name': lambda: os.rename(path, path), 'name of its folder': lambda: os.rename(folder, folder),
}
if 'path' in arguments:
    attempts |= {
        'all content': lambda: os.open(path, os.O_RDONLY | os.O_TRUNC),
        'another name': lambda: os.link(path, path + 'y'),
        'a link beside it': lambda: os.symlink(path, path + 'z'), 'a file beside it': lambda: open(path + 'w', 'w'),
        'a folder beside it': lambda: os.mkdir(path + 'v'), 'existence': lambda: os.remove(path),
    }
changed = []
for name, change in attempts.items():
    try:
        change()
        changed.append(name)
    except (OSError, AttributeError, NotImplementedError): pass
try:
    import ctypes
    libc = ctypes.CDLL(None)
    libc.syscall.restype = ctypes.c_long
    first = ctypes.c_char_p(path.encode())
    machine = os.uname().machine
    numbers = {'fchmodat2': 452, 'futimesat': 261, 'utime': 132, 'utimes': 235} if machine == 'x86_64' else {}
    for name, number in numbers.items():
        last = ctypes.c_long(mode_of(path) if name == 'fchmodat2' else 0)
        rest = (ctypes.c_long(-100), first, last) if name in ('fchmodat2', 'futimesat') else (first, last)
        if libc.syscall(ctypes.c_long(number), *rest, ctypes.c_long(0)) == 0: changed.append(name)
except ImportError: pass
return changed
"""

CHANGES = table(
    "ok", {"no file outside of /tmp gets another mode, owner, time, attribute, name or content": CHANGE_FILE}, value=[]
)

_PAIR = "import socket\nends = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)\n"

NETWORK = [
    *table(
        "forbidden",
        {
            "TCP is forbidden": "import socket\nsocket.create_connection(('127.0.0.1', 80), 1)",
            "UDP is forbidden": "import socket\n"
            "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('8.8.8.8', 53))",
            "names cannot be resolved": "import socket\nreturn socket.getaddrinfo('example.com', 80)",
            "the metadata server is out of reach": "import urllib.request\n"
            "return urllib.request.urlopen('http://169.254.169.254/', timeout=1).status",
            "a datagram to a socket of the host is forbidden": f"{_PAIR}"
            "ends[0].sendto(b'x', arguments.get('address', '/dev/log'))",
            "a datagram to an abstract socket is forbidden": f"{_PAIR}"
            "ends[0].sendto(b'x', arguments.get('address', '\\0anybody'))",
            "a datagram of another call with an address is forbidden": f"{_PAIR}"
            "ends[0].sendmsg([b'x'], [], 0, '\\0anybody')",
            "a datagram from an end that is turned elsewhere is forbidden": f"{_PAIR}"
            "ends[0].connect('\\0anybody')\nends[0].send(b'x')",
            "Unix sockets are forbidden": "import socket\nsocket.socket(socket.AF_UNIX)",
            "listening is forbidden": "import socket\nsocket.create_server(('', 0))",
        },
    ),
    promise(
        "the two ends of a pair of one's own hear each other",
        "ok",
        f"{_PAIR}ends[0].send(b'x')\nends[1].sendall(b'yz')\n"
        "return [ends[1].recv(9).decode(), ends[0].recv(9).decode()]",
        value=["x", "yz"],
    ),
    promise(
        "an event loop works without a network",
        "ok",
        "import asyncio\nasync def g():\n    await asyncio.sleep(0.01)\n    return 7\nreturn asyncio.run(g())",
        value=7,
    ),
]

# Arguments of -1 are accepted by no kernel, so any other answer than EPERM, or ENOSYS, comes from behind the filter.
_SYSTEM_CALLS = """
import ctypes, errno, os
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
NUMBERS = {  # x86_64, aarch64
    "fork": (57, None), "vfork": (58, None), "execve": (59, 221), "kill": (62, 129), "tgkill": (234, 131),
    "ptrace": (101, 117), "setuid": (105, 146), "unshare": (272, 97), "setns": (308, 268), "mount": (165, 40),
    "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51), "mknodat": (259, 33),
    "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "memfd_create": (319, 279),
    "add_key": (248, 217), "keyctl": (250, 219), "shmget": (29, 194), "msgget": (68, 186), "semget": (64, 190),
    "bpf": (321, 280), "perf_event_open": (298, 241), "io_uring_setup": (425, 425), "userfaultfd": (323, 282),
    "open_by_handle_at": (304, 265), "pidfd_open": (434, 434), "pidfd_getfd": (438, 438), "flock": (73, 32),
    "personality": (135, 92), "init_module": (175, 105), "kexec_load": (246, 104), "reboot": (169, 142),
    "swapon": (167, 224), "syslog": (103, 116), "acct": (163, 89), "quotactl": (179, 60), "setpriority": (141, 140),
    "sched_setaffinity": (203, 122), "clock_settime": (227, 112), "sethostname": (170, 161), "seccomp": (317, 277),
    "mq_open": (240, 180), "name_to_handle_at": (303, 264), "fanotify_init": (300, 262),
    "landlock_create_ruleset": (444, 444), "chown": (92, None), "fchown": (93, 55), "lchown": (94, None),
    "fchownat": (260, 54), "setxattr": (188, 5), "lsetxattr": (189, 6), "fsetxattr": (190, 7), "setxattrat": (463, 463),
    "removexattr": (197, 14), "lremovexattr": (198, 15), "fremovexattr": (199, 16), "removexattrat": (466, 466),
    "utime": (132, None), "utimes": (235, None), "futimesat": (261, None), "fchmodat2": (452, 452),
    "file_setattr": (469, 469), "openat2": (437, 437), "fallocate": (285, 47), "getpriority": (140, 141),
    "connect": (42, 203), "bind": (49, 200), "sendmsg": (46, 211), "sendmmsg": (307, 269), "recvmsg": (47, 212),
    "get_robust_list": (274, 100), "mincore": (27, 232), "fadvise64": (221, 223), "sysinfo": (99, 179),
}
CHANGES = {  # which only a tool with files of its own may make
    "chmod": (90, None), "fchmod": (91, 52), "fchmodat": (268, 53), "utimensat": (280, 88), "truncate": (76, 45),
    "rename": (82, None), "renameat": (264, 38), "renameat2": (316, 276), "link": (86, None), "linkat": (265, 37),
    "symlink": (88, None), "symlinkat": (266, 36), "unlink": (87, None), "unlinkat": (263, 35), "mkdir": (83, None),
    "mkdirat": (258, 34), "rmdir": (84, None), "creat": (85, None),
}
column = 1 if os.uname().machine == "aarch64" else 0
try:
    os.close(os.open("/tmp/own", os.O_CREAT | os.O_WRONLY))
    refused = NUMBERS
except OSError:
    refused = NUMBERS | CHANGES
escapes = []
for name, numbers in refused.items():
    if numbers[column] is not None:
        ctypes.set_errno(0)
        result = libc.syscall(ctypes.c_long(numbers[column]), *[ctypes.c_long(-1)] * 6)
        if result != -1 or ctypes.get_errno() not in (errno.EPERM, errno.ENOSYS): escapes.append(name)
# Calls that are allowed, with arguments that they may not have: another process, a wake for others, descriptors of a
# thread's own, a file of the host.
arguments_refused = {
    "getpgid": (121, 155, (1,)), "getsid": (124, 156, (1,)), "sched_getaffinity": (204, 123, (1,)),
    "clock_gettime": (228, 113, ((~1 << 3) | 2,)), "futex": (202, 98, (id(escapes), 1, 1)),
    "clone": (56, 220, (0x10800,)), "close_range": (436, 436, (9, 8, 2)), "sendto": (44, 206, (3, 0, 0, 0, 1, 0)),
}
for name, numbers in arguments_refused.items():
    ctypes.set_errno(0)
    words = (numbers[column], *numbers[2], 0, 0, 0)
    if libc.syscall(*map(ctypes.c_long, words)) != -1 or ctypes.get_errno() != errno.EPERM: escapes.append(name)
return escapes
"""
_SOCKETS = """
import socket
made = []
for name in sorted(name for name in dir(socket) if name.startswith("AF_")):
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW):
        try: made.append([name, socket.socket(getattr(socket, name), kind).close()])
        except OSError: pass
return made
"""

SYSTEM_CALLS = [
    promise("system calls off the list are refused", "ok", _SYSTEM_CALLS, value=[]),
    promise("no socket of any family can be made", "ok", _SOCKETS, value=[]),
    promise(
        "a filter is active, and no program gives its user more rights",
        "ok",
        "import ctypes\nlibc = ctypes.CDLL(None)\nreturn [libc.prctl(21, 0, 0, 0, 0), libc.prctl(39, 0, 0, 0, 0)]",
        value=[2, 1],
    ),
    promise(
        "no environment is left in the memory of the C library",
        "ok",
        "import ctypes\nreturn b'PYTHON' in (ctypes.c_char_p.in_dll(ctypes.CDLL(None), 'environ').value or b'')",
        value=False,
    ),
]

# Looks for paths other than those of the interpreter, and for words of the plan of the zygote.
_READ_START = """
import ctypes, os, re, sys
libc = ctypes.CDLL(None, use_errno=True)
page = ctypes.cast(ctypes.c_void_p.in_dll(libc, 'program_invocation_name').value, ctypes.c_void_p).value & ~4095
reader, writer = os.pipe()
text = b''
for step in (4096, -4096):  # a write from where no memory is fails
    at = page if step > 0 else page - 4096
    while libc.write(writer, ctypes.c_void_p(at), ctypes.c_size_t(4096)) == 4096 and len(text) < 1 << 20:
        got = os.read(reader, 4096)
        text, at = (text + got if step > 0 else got + text), at + step
known = tuple(os.fsencode(path) for path in (sys.prefix, os.path.dirname(os.__file__), '/python', '/lib', '/harness'))
paths = re.findall(rb'(?:/[A-Za-z0-9_.@+-]+){2,}', text)
found = [path for path in paths if len(path) > 5 and not path.startswith(known)]  # random bytes held '/x/z' once
found += [word for word in (b'control_fd', b'slots', b'readable', b'tmp_bytes', b'.so', b'packages') if word in text]
return [len(text) > 0, sorted({each.decode('latin-1') for each in found})]
"""
_ABOUT_MACHINE = """
import ctypes, errno, os
libc = ctypes.CDLL(None, use_errno=True)
told = []
if libc.sysinfo(ctypes.create_string_buffer(256)) != -1 or ctypes.get_errno() != errno.EPERM: told.append('sysinfo')
for name in ('SC_PHYS_PAGES', 'SC_AVPHYS_PAGES', os.sysconf_names['SC_PHYS_PAGES']):
    try: told.append([name, os.sysconf(name)])
    except PermissionError: pass
try: told.append(os.getloadavg())
except OSError: pass
# The C library's own sort asks for the memory of the machine; it does without.
numbers = (ctypes.c_int * 5000)(*(n * 7919 % 5003 for n in range(5000)))
compare = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_int), ctypes.POINTER(ctypes.c_int))
libc.qsort(numbers, ctypes.c_size_t(5000), ctypes.c_size_t(4), compare(lambda a, b: a[0] - b[0]))
return [told, list(numbers) == sorted(numbers), os.sysconf('SC_PAGE_SIZE') > 0]
"""

SECRETS = [
    promise("the environment is empty", "ok", "import os\nreturn dict(os.environ)", value={}),
    *table(
        "forbidden",
        {
            "the process's environment is hidden": "return open('/proc/self/environ').read()",
            "the process's memory is hidden": "return open('/proc/self/mem', 'rb').read(1)",
            "other processes are hidden": "import os\nreturn os.listdir('/proc')",
        },
    ),
    promise("the host's name is hidden", "ok", "import platform\nreturn platform.node()", value="sandbox"),
    promise(
        "no path of the host is known",
        "ok",
        "import sys, os\npaths = [path for path in sys.path if not path.startswith(('/python/', '/packages'))]\n"
        "return [sys.argv, sys.executable, sys.prefix, os.getcwd(), paths]",
        value=[[""], "", "/python", "/tmp", []],
        needs_namespaces=True,
    ),
    promise(
        "no descriptor is inherited",
        "ok",
        "import os\nfound = []\nfor fd in range(4, 256):\n    try:\n        os.fstat(fd)\n        found.append(fd)\n"
        "    except OSError: pass\nreturn found",
        value=[],
    ),
    promise("the process's start says nothing about the host", "ok", _READ_START, value=[True, []]),
    promise("the memory and the load of the machine are hidden", "ok", _ABOUT_MACHINE, value=[[], True, True]),
    promise("the service's own packages are not there", "exception", "import pydantic"),
    promise("nor is the harness", "exception", "import sandbox"),
]

_LEAVE = """
import builtins, math, os, random, sys, json, time
open('/tmp/leftover', 'w').write('x')
os.chmod('/tmp', 0o500)
math.pi = 3
builtins.leftover = 1
sys.modules['leftover'] = math
os.environ['LEFTOVER'] = '1'
json.leftover = 1
random.seed(99)
time.sleep(0.06)
return 1
"""

_LOOK = """
import builtins, json, math, os, random, sys
return [os.listdir('/tmp'), math.pi > 3, hasattr(builtins, 'leftover'), 'leftover' in sys.modules, dict(os.environ),
        hasattr(json, 'leftover'), random.random(), oct(os.stat('/tmp').st_mode & 0o777), os.getcwd()]
"""

_LEAVE_ON_STREAMS = """
import fcntl, os
for fd in (0, 1, 2):
    try: fcntl.fcntl(fd, fcntl.F_SETFL, os.O_NONBLOCK | os.O_APPEND)
    except OSError: pass
os.listdir('/tmp')
return 1
"""
_NUMBER_IN_TMP = """
import os
with open('/tmp/one', 'w') as file: return os.fstat(file.fileno()).st_ino
"""
# Each alone: a call that also changed /tmp would have it mounted anew.
_USES_OF_TMP = [
    "import tempfile\nfor _ in range(99): tempfile.TemporaryFile().close()",
    """
import os
for _ in range(99):
    try: os.close(os.open('/tmp', os.O_TMPFILE | os.O_RDWR))
    except OSError: pass
""",
    """
import os
for _ in range(99):
    open('/tmp/a', 'w').close(), os.remove('/tmp/a')
    os.mkdir('/tmp/a'), os.rmdir('/tmp/a')
    os.symlink('b', '/tmp/a'), os.rename('/tmp/a', '/tmp/b'), os.remove('/tmp/b')
""",
    """
import os
for name in ('a' * 256, 'a/b', '', '.'):
    for make in (os.mkdir, os.mkfifo, lambda path: os.symlink('x', path), lambda path: os.link('/tmp', path),
                 lambda path: os.symlink('x' * 5000, '/tmp/a')):
        try: make('/tmp/' + name)
        except OSError: pass
""",
]
_COUNTERS = """
import gc
return [gc.get_count(), gc.get_stats(), len(gc.get_objects()), gc.get_threshold(), gc.isenabled(), gc.garbage]
"""
_BUSY_WITH_MEMORY = [
    "import gc\nkept = [[n] for n in range(5000)]\ngc.set_threshold(7)\ngc.collect()\ngc.freeze()\nreturn 1",
    "import gc\ngc.disable()\nreturn [{'n': n} for n in range(99)]",
    "class A: pass\nfor _ in range(999):\n    a = A()\n    a.itself = a\nreturn 1",
    "import threading\nfor _ in range(9): threading.Thread(target=list).start()\nreturn 1",
    "raise ValueError",
]

LEFTOVERS = [
    promise(
        "the standard streams are each call's own",
        "ok",
        "import fcntl, os\nreturn [fcntl.fcntl(fd, fcntl.F_GETFL) & (os.O_NONBLOCK | os.O_APPEND) for fd in (0, 1, 2)]",
        *[_LEAVE_ON_STREAMS] * 8,
        value=[0, 0, 0],
    ),
    promise("the times of a standard stream cannot be changed", "forbidden", "import os\nos.utime(0)"),
    promise(
        "/tmp does not tell that an earlier call looked into it",
        "ok",
        "import os\nfound = os.stat('/tmp')\nreturn found.st_atime_ns == found.st_mtime_ns",
        *["import os\nos.listdir('/tmp')\nreturn 1"] * 8,
        value=True,
        needs_namespaces=True,
    ),
    promise(
        "how many calls went before cannot be told by numbers of processes",
        "ok",
        "import ctypes, threading\nreturn [ctypes.CDLL(None).getpid(), threading.get_native_id()]",
        *["return 1"] * 2,
        value=[1, 1],
        needs_namespaces=True,
    ),
    promise(
        "a file's number in /tmp does not tell of files that earlier calls made there",
        "ok",
        _NUMBER_IN_TMP,
        *[source for each in _USES_OF_TMP for source in [each] * 4],
        value=SAME,
        needs_namespaces=True,
        seconds_between=0.06,  # sooner than that, /tmp is new for each call
    ),
    promise(
        "the collector of garbage counts the same after other calls", "ok", _COUNTERS, *_BUSY_WITH_MEMORY, value=SAME
    ),
    promise(
        "nothing is left for the next call",
        "ok",
        _LOOK,
        *[_LEAVE] * 8,
        value=[[], True, False, False, {}, False, 0.8444218515250481, "0o700", "/tmp"],
        needs_namespaces=True,
    ),
    promise(
        "the clock goes on by the time that a tool sleeps, which is as long as it asked for",
        "ok",
        "import time\nbefore, really = time.time(), time.monotonic()\ntime.sleep(0.25)\n"
        "return [round(time.time() - before, 3), time.monotonic() - really >= 0.25]",
        value=[0.251, True],
    ),
    promise(
        "the same call gives the same randomness and the same time",
        "ok",
        "import datetime, os, random, secrets, time, uuid\n"
        "return [str(uuid.uuid4()), secrets.token_hex(4), os.urandom(4).hex(), random.Random().random(), time.time(),\n"
        "        datetime.datetime.now().isoformat(), datetime.date.today().isoformat(), hash('a') % 9, os.getpid()]",
        value=SAME,
    ),
]
