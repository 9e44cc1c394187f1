"""Hostile tools, and the answer that each must get."""

from sandbox.contract.promise import FAST, Promise, module, promise
from sandbox.protocol import Limits

_C = "import ctypes, errno\nlibc = ctypes.CDLL(None, use_errno=True)\n"
_CHEAP = Limits(wall_seconds=1.0, cpu_seconds=0.5, memory_bytes=64 << 20)

TIME = [
    promise("an endless loop times out", "timeout", "while True: pass", limits=_CHEAP),
    promise("sleeping past the wall limit times out", "timeout", "import time\ntime.sleep(60)", limits=_CHEAP),
    promise(
        "catching every exception does not stop the clock",
        "timeout",
        "while True:\n    try:\n        while True: pass\n    except BaseException: pass",
        limits=_CHEAP,
    ),
    promise("a loop inside C times out", "timeout", "import itertools\nreturn sum(itertools.count())", limits=_CHEAP),
    promise(
        "a catastrophic regular expression times out",
        "timeout",
        "import re\nreturn re.match(r'(a+)+$', 'a' * 60 + 'b') is None",
        limits=_CHEAP,
    ),
    promise(
        "a deadlock times out",
        "timeout",
        "import threading\nlock = threading.Lock()\nlock.acquire()\nlock.acquire()",
        limits=_CHEAP,
    ),
    promise(
        "ignoring signals does not help",
        "timeout",
        "import signal\nfor number in range(1, 32):\n    try: signal.signal(number, signal.SIG_IGN)\n"
        "    except (OSError, ValueError): pass\nwhile True: pass",
        limits=_CHEAP,
    ),
    promise(
        "a looping thread times out",
        "timeout",
        "import threading\ndef loop():\n    while True: pass\nt = threading.Thread(target=loop)\nt.start()\nt.join()",
        limits=_CHEAP,
    ),
    module("a loop at import times out", "timeout", "while True: pass\ndef f(): return 1", limits=_CHEAP),
    promise(
        "an exception whose text loops times out",
        "timeout",
        "class E(Exception):\n    def __str__(self):\n        while True: pass\nraise E",
        limits=_CHEAP,
    ),
    promise("a power tower ends", "timeout memory", "return len(str(9 ** 9 ** 9))", limits=_CHEAP),
    promise("input finds the end of its stream", "exception", "return input()"),
    promise(
        "exit handlers do not run", "ok", "import atexit, time\natexit.register(time.sleep, 60)\nreturn 1", value=1
    ),
    promise(
        "a thread left behind ends with its call",
        "ok",
        "import threading, time\ndef loop():\n    while True: pass\n"
        "threading.Thread(target=loop, daemon=True).start()\nreturn 1",
        value=1,
    ),
]

MEMORY = [
    promise("one huge allocation is refused", "memory", "return len([0] * 10 ** 10)"),
    promise("steady growth is refused", "memory", "kept = []\nwhile True: kept.append(bytearray(1 << 20))"),
    promise("a doubling string is refused", "memory", "text = 'x'\nwhile True: text += text"),
    promise(
        "many small objects are refused",
        "memory",
        "kept = []\nwhile True: kept.append([len(kept)])",
        limits=_CHEAP.model_copy(update={"cpu_seconds": 5.0, "wall_seconds": 10.0}),
    ),
    promise("mapping memory is refused", "memory", "import mmap\nreturn len(mmap.mmap(-1, 1 << 34))"),
    promise(
        "surviving MemoryError does not stop the clock",
        "timeout",
        "kept = []\nwhile True:\n    try: kept.append(bytearray(1 << 20))\n    except MemoryError: pass",
        limits=_CHEAP,
    ),
    promise(
        "a zip bomb is refused",
        "memory",
        "import zlib\npack = zlib.compressobj(1)\nparts = [pack.compress(bytes(1 << 20)) for _ in range(200)]\n"
        "return len(zlib.decompress(b''.join(parts) + pack.flush()))",
        limits=FAST.model_copy(update={"cpu_seconds": 6.0, "wall_seconds": 12.0}),
    ),
    promise(
        "memory outside the limit's reach is refused",
        "ok",
        _C + "return [libc.memfd_create(b'x', 0), libc.shmget(0, 1 << 20, 0o1600)]",
        value=[-1, -1],
    ),
    promise("deep recursion is an exception", "exception", "def g(n): return g(n + 1)\nreturn g(0)"),
    promise(
        "recursion without a limit ends",
        "crashed memory timeout",
        "import sys\nsys.setrecursionlimit(10 ** 9)\ndef g(n): return g(n + 1)\nreturn g(0)",
    ),
    promise(
        "overflowing the C stack ends the call alone",
        "crashed memory",
        "import sys\nsys.setrecursionlimit(10 ** 6)\nx = []\nfor _ in range(10 ** 6): x = [x]\nreturn repr(x)",
    ),
]

PROCESSES = [
    promise("fork is forbidden", "forbidden", "import os\nwhile True: os.fork()"),
    promise("programs are forbidden", "forbidden", "import subprocess\nreturn subprocess.run(['/bin/ls']).returncode"),
    promise("the shell is not there", "ok", "import os\nreturn os.system('echo out; exit 0') == 0", value=False),
    promise("exec is forbidden", "forbidden", "import os\nos.execv('/python/bin/python', ['python'])"),
    promise("spawn is forbidden", "forbidden", "import os\nreturn os.posix_spawn('/bin/ls', ['ls'], {})"),
    promise(
        "multiprocessing is forbidden",
        "forbidden exception",
        "import multiprocessing\np = multiprocessing.Process(target=print)\np.start()",
    ),
    promise(
        "a thread bomb is stopped",
        "exception memory",
        "import threading, time\nthreading.stack_size(65536)\n"
        "while True: threading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
    ),
    promise(
        "honest threads work",
        "ok",
        "from concurrent.futures import ThreadPoolExecutor\n"
        "with ThreadPoolExecutor(4) as pool: return sum(pool.map(abs, range(-9, 1)))",
        value=45,
    ),
    promise("killing everybody is forbidden", "forbidden", "import os\nos.kill(-1, 9)"),
    promise("killing the parent is forbidden", "forbidden", "import os\nos.kill(1, 9)"),
    promise("raising a priority is forbidden", "forbidden", "import os\nos.nice(-5)"),
    promise(
        "tracing is not there",
        "ok",
        _C + "return [libc.ptrace(16, 1, 0, 0), ctypes.get_errno() == errno.EPERM]",
        value=[-1, True],
    ),
    promise(
        "another process's memory cannot be read",
        "ok",
        _C + "return [libc.process_vm_readv(1, 0, 0, 0, 0, 0), ctypes.get_errno() == errno.EPERM]",
        value=[-1, True],
    ),
    promise(
        "limits cannot be raised",
        "exception forbidden",
        "import resource\nresource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))",
    ),
    promise("leaving with status 0 is a crash", "crashed", "import os\nos._exit(0)"),
    promise("leaving with another status is a crash", "crashed", "import os\nos._exit(42)"),
    promise("abort is a crash", "crashed", "import os\nos.abort()"),
    promise("a segmentation fault is a crash", "crashed", "import ctypes\nctypes.string_at(0)"),
    promise("sys.exit is an exception", "exception", "import sys\nsys.exit(0)"),
    promise("KeyboardInterrupt is an exception", "exception", "raise KeyboardInterrupt"),
    promise("root cannot be had", "ok", "import os\nreturn 0 in os.getresuid()", value=False),
    promise(
        "new namespaces are refused",
        "ok",
        _C + "return [libc.unshare(0x10000000), libc.mount(b'x', b'/tmp', b'tmpfs', 0, None)]",
        value=[-1, -1],
    ),
]

OUTPUT = [
    promise("a print flood is stopped", "output_limit", "while True: print('x' * 1000)"),
    promise("a flood on stderr is stopped", "output_limit", "import sys\nwhile True: sys.stderr.write('x' * 1000)"),
    promise(
        "a swallowed flood still counts",
        "output_limit",
        "for _ in range(100):\n    try: print('x' * 1000)\n    except BaseException: pass\nreturn 1",
    ),
    promise("a result too large is refused", "output_limit", "return 'x' * 100_000"),
    promise(
        "raw descriptors lead nowhere",
        "ok",
        "import os\nos.write(1, b'x' * 100000)\nos.write(2, b'y' * 100000)\nreturn 1",
        value=1,
        stdout="",
    ),
    promise(
        "closing stdout hurts nobody",
        "ok",
        "import sys\nprint('a')\nsys.stdout.close()\nreturn 1",
        value=1,
        stdout="a\n",
    ),
    promise("stdout may be replaced", "ok", "import sys\nsys.stdout = None\nreturn 1", value=1),
    promise("odd characters are printed", "ok", "print('é\\ud800\\x00')\nreturn 1", stdout="é\\ud800\x00\n"),
]

FILES = [
    promise("the host's files cannot be read", "forbidden", "return open('/etc/passwd').read()"),
    promise("nor through a detour", "forbidden", "return open('/tmp/../etc/passwd').read()"),
    promise(
        "nor through a symbolic link",
        "forbidden exception",
        "import os\nos.symlink('/etc/passwd', '/tmp/link')\nreturn open('/tmp/link').read()",
    ),
    promise("the host's directories cannot be listed", "forbidden", "import os\nreturn os.listdir('/home')"),
    promise("the root cannot be written", "forbidden", "open('/escape', 'w')"),
    promise("the standard library cannot be written", "forbidden", "import os\nopen(os.__file__, 'a')"),
    promise("devices are not there", "forbidden", "open('/dev/mem', 'rb')"),
    promise("devices cannot be made", "forbidden", "import os\nos.mknod('/tmp/null', 0o20666, os.makedev(1, 3))"),
    promise("pipes with names cannot be made", "forbidden", "import os\nos.mkfifo('/tmp/pipe')"),
    promise("the root cannot be changed", "forbidden", "import os\nos.chroot('/tmp')"),
    promise(
        "a file that fills the disk is stopped",
        "exception",
        "with open('/tmp/big', 'wb') as file:\n    while True: file.write(bytes(1 << 20))",
    ),
    promise("a sparse giant is stopped", "exception", "with open('/tmp/big', 'wb') as file: file.truncate(1 << 40)"),
    promise(
        "a flood of files is stopped",
        "exception",
        "for index in range(100_000): open(f'/tmp/{index}', 'w').close()",
    ),
    promise(
        "a deep tree of directories is harmless",
        "ok exception",
        "import os\nfor _ in range(900):\n    os.mkdir('d')\n    os.chdir('d')\nreturn 1",
    ),
    promise(
        "a private /tmp can be used",
        "ok",
        "import tempfile\nwith tempfile.TemporaryFile() as file:\n    file.write(b'abc')\n    file.seek(0)\n"
        "    return file.read().decode()",
        value="abc",
    ),
]

NETWORK = [
    promise("TCP is forbidden", "forbidden", "import socket\nsocket.create_connection(('127.0.0.1', 80), 1)"),
    promise(
        "UDP is forbidden",
        "forbidden",
        "import socket\nsocket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('8.8.8.8', 53))",
    ),
    promise("names cannot be resolved", "forbidden", "import socket\nreturn socket.getaddrinfo('example.com', 80)"),
    promise(
        "the metadata server is out of reach",
        "forbidden",
        "import urllib.request\nreturn urllib.request.urlopen('http://169.254.169.254/', timeout=1).status",
    ),
    promise("Unix sockets are forbidden", "forbidden", "import socket\nsocket.socket(socket.AF_UNIX)"),
    promise("netlink is forbidden", "forbidden", "import socket\nsocket.socket(socket.AF_NETLINK, socket.SOCK_RAW)"),
    promise("listening is forbidden", "forbidden", "import socket\nsocket.create_server(('', 0))"),
    promise(
        "an event loop works without a network",
        "ok",
        "import asyncio\nasync def g():\n    await asyncio.sleep(0.01)\n    return 7\nreturn asyncio.run(g())",
        value=7,
    ),
]

SECRETS = [
    promise("the environment is empty", "ok", "import os\nreturn dict(os.environ)", value={}),
    promise("the process's environment is hidden", "forbidden", "return open('/proc/self/environ').read()"),
    promise("the process's memory is hidden", "forbidden", "return open('/proc/self/mem', 'rb').read(1)"),
    promise("other processes are hidden", "forbidden", "import os\nreturn os.listdir('/proc')"),
    promise("the host's name is hidden", "ok", "import platform\nreturn platform.node()", value="sandbox"),
    promise(
        "no path of the host is known",
        "ok",
        "import sys, os\nreturn [sys.argv, sys.executable, sys.prefix, os.getcwd(), sys.path[-1][:8]]",
        value=[[""], "", "/python", "/tmp", "/python/"],
    ),
    promise(
        "no descriptor is inherited",
        "ok",
        "import os\nfound = []\nfor fd in range(4, 256):\n    try:\n        os.fstat(fd)\n        found.append(fd)\n"
        "    except OSError: pass\nreturn found",
        value=[],
    ),
    promise("the service's own packages are not there", "exception", "import pydantic"),
    promise("nor is the harness", "exception", "import sandbox"),
]

_FORGED = 'b\'{"status":"ok","value":"forged","state":null,"stdout":"","stderr":""}\''
TAMPERING = [
    promise(
        "writing a reply to every descriptor is noticed",
        "forbidden",
        f"import os\nfor fd in range(3, 64):\n    try: os.write(fd, {_FORGED})\n    except OSError: pass\nreturn 1",
    ),
    promise(
        "a forged frame is noticed",
        "forbidden",
        f"import os, struct\nbody = {_FORGED}\n"
        "os.write(3, struct.pack('<16sI', b'x' * 16, len(body)) + body)\nos._exit(0)",
    ),
    promise("closing the channel is a crash", "crashed", "import os\nos.closerange(0, 64)\nreturn 1"),
    promise(
        "a tool cannot claim to have timed out",
        "invalid_result forbidden",
        "import sys\nframe = sys._getframe()\nwhile 'finish' not in frame.f_locals: frame = frame.f_back\n"
        "frame.f_locals['finish']({'status': 'error', 'error': {'kind': 'timeout', 'message': 'forged'}})",
    ),
    promise(
        "patching json changes nothing",
        "ok",
        "import json\njson.dumps = json.loads = lambda *a, **k: 'forged'\n"
        "json.encoder.c_make_encoder = None\njson.JSONEncoder.encode = lambda *a: 'forged'\nreturn {'a': 1}",
        value={"a": 1},
    ),
    promise(
        "patching builtins changes nothing",
        "ok",
        "import builtins\nfor name in ('len', 'str', 'isinstance', 'tuple', 'memoryview', 'getattr', 'type'):\n"
        "    setattr(builtins, name, lambda *a, **k: 'forged')\nreturn [1, 2]",
        value=[1, 2],
    ),
    promise(
        "patching os changes nothing",
        "ok",
        "import os\nos.write = os._exit = os.read = lambda *a: None\nreturn 5",
        value=5,
    ),
    promise(
        "breaking modules changes nothing",
        "ok",
        "import sys\nfor name in list(sys.modules):\n    if name != 'builtins': sys.modules[name] = None\nreturn 5",
        value=5,
    ),
    promise(
        "a trace function changes nothing",
        "ok",
        "import sys\nsys.settrace(lambda *a: None)\nsys.setprofile(lambda *a: None)\nreturn 5",
        value=5,
    ),
    promise(
        "destroying every object ends the call alone",
        "ok crashed exception timeout forbidden invalid_result",
        "import gc\nfor thing in gc.get_objects():\n    try: thing.clear()\n    except BaseException: pass\nreturn 1",
        limits=_CHEAP,
    ),
    promise(
        "printing a reply is only printing",
        "ok",
        'print(\'{"status": "ok", "value": 99}\')\nreturn 1',
        value=1,
    ),
    promise(
        "an exception that cannot be shown is still one",
        "exception",
        "class E(Exception):\n    def __str__(self): raise self\nraise E",
    ),
    promise("a bare BaseException is an exception", "exception", "raise BaseException('x')"),
    promise(
        "changing the code of the harness by its frame ends the call alone",
        "ok crashed exception forbidden invalid_result",
        "import sys\nframe = sys._getframe()\nwhile frame:\n    for value in list(frame.f_globals.values()):\n"
        "        if hasattr(value, '__code__'):\n"
        "            try: value.__code__ = (lambda *a, **k: 'forged').__code__\n"
        "            except BaseException: pass\n    frame = frame.f_back\nreturn 1",
    ),
    promise(
        "unpickling a shell gets none",
        "ok",
        "import pickle\nreturn pickle.loads(b\"cos\\nsystem\\n(S'id'\\ntR.\") == 0",
        value=False,
    ),
]

RESULTS = [
    promise("NaN is not a result", "invalid_result", "return float('nan')"),
    promise("nor is infinity", "invalid_result", "return {'a': [float('-inf')]}"),
    promise("nor are bytes", "invalid_result", "return b'abc'"),
    promise("nor a set", "invalid_result", "return {1, 2}"),
    promise("nor a function", "invalid_result", "return f"),
    promise("nor a generator", "invalid_result", "return (x for x in 'abc')"),
    promise("nor a date", "invalid_result", "import datetime\nreturn datetime.date(2025, 1, 1)"),
    promise("nor a coroutine", "invalid_result", "async def g(): pass\nreturn g()"),
    promise("nor a cycle", "invalid_result", "x = []\nx.append(x)\nreturn x"),
    promise("nor a key that is no scalar", "invalid_result", "return {(1, 2): 3}"),
    promise("nor half a character", "invalid_result", "return 'a\\ud800'"),
    promise("nor an integer of ten thousand digits", "invalid_result", "return 10 ** 10_000"),
    promise("nor a tower of lists", "invalid_result", "x = []\nfor _ in range(100_000): x = [x]\nreturn x"),
    promise("a tuple is a list", "ok", "return (1, (2, None))", value=[1, [2, None]]),
    promise(
        "text of any script passes", "ok", "return {'é\\x00': '汉字 🎉 \\u2028'}", value={"é\x00": "汉字 🎉 \u2028"}
    ),
    promise("large integers pass", "ok", "return 2 ** 200", value=2**200),
    promise(
        "values that pretend are taken for what they are",
        "ok",
        "class I(int):\n    def __repr__(self): return '\"forged\"'\n"
        "class S(str):\n    def __str__(self): return 'forged'\n"
        "return [I(3), S('s')]",
        value=[3, "s"],
    ),
]

SOURCES = [
    module("a syntax error is an invalid source", "invalid_source", "def f(:\n"),
    module("so is a null byte", "invalid_source", "def f():\n    return '\0'\n"),
    module("so is a function that is not there", "invalid_source", "def g(): return 1"),
    module("so is a value in its place", "invalid_source", "f = 3"),
    module("so are ten thousand brackets", "invalid_source", "f = " + "(" * 10_000),
    module("so is a tower of operators", "invalid_source", "f = " + "-" * 200_000 + "1"),
    module("so is half a character", "invalid_source", "f = '\ud800'"),
    module("coding cookies are not obeyed", "ok", "# -*- coding: rot13 -*-\ndef f(): return 'é'", value="é"),
    module("a module that raises is an exception", "exception", "raise ValueError('at import')\ndef f(): return 1"),
    module(
        "main blocks do not run", "ok", "def f(): return 1\nif __name__ == '__main__': raise SystemExit(3)", value=1
    ),
    promise(
        "a module of one's own can be imported",
        "ok",
        "import sys\nopen('/tmp/mine.py', 'w').write('x = 5')\nsys.path.insert(0, '/tmp')\nimport mine\nreturn mine.x",
        value=5,
    ),
    module(
        "dataclasses with postponed annotations work",
        "ok",
        "from __future__ import annotations\nfrom dataclasses import asdict, dataclass\n"
        "@dataclass\nclass P:\n    x: int = 1\n"
        "def f(): return asdict(P())",
        value={"x": 1},
    ),
]

_STATE = {"items": [1]}
STATE = [
    module(
        "a tool changes its state", "ok", "def f(state): state['n'] = 1", state=_STATE, new_state={"items": [1], "n": 1}
    ),
    module("a tool without the parameter leaves it alone", "ok", "def f(): return 1", state=_STATE, new_state=_STATE),
    module(
        "a tool that fails changes nothing",
        "exception",
        "def f(state):\n    state.clear()\n    raise ValueError",
        state=_STATE,
        new_state=None,
    ),
    module("state must stay JSON", "invalid_result", "def f(state): state['x'] = {1}", state=_STATE),
    module("state must not hold itself", "invalid_result", "def f(state): state['x'] = state", state=_STATE),
    module("state must stay bounded", "output_limit", "def f(state): state['x'] = 'x' * 100_000", state=_STATE),
    module(
        "an argument cannot stand in for the state",
        "exception",
        "def f(state): return state",
        state=_STATE,
        arguments={"state": {"forged": 1}},
    ),
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
LEFTOVERS = [
    promise(
        "nothing is left for the next call",
        "ok",
        _LOOK,
        *[_LEAVE] * 8,
        value=[[], True, False, False, {}, False, 0.8444218515250481, "0o700", "/tmp"],
    ),
    promise(
        "the same call gives the same randomness and the same time",
        "ok",
        "import datetime, os, random, secrets, time, uuid\n"
        "return [str(uuid.uuid4()), secrets.token_hex(4), os.urandom(4).hex(), random.Random().random(), time.time(),\n"
        "        datetime.datetime.now().isoformat(), datetime.date.today().isoformat(), hash('a') % 9, os.getpid()]",
    ),
]

HOSTILE: list[Promise] = [
    *TIME, *MEMORY, *PROCESSES, *OUTPUT, *FILES, *NETWORK, *SECRETS, *TAMPERING, *RESULTS, *SOURCES, *STATE, *LEFTOVERS,
]  # fmt: skip
