"""Promises about replies: their writer, results, sources, and the state that travels with a call."""

from sandbox.contract.promise import CHEAP, module, modules, promise, table

_FORGED = 'b\'{"status":"ok","value":"forged","state":null,"stdout":""}\''
_HARM = "ok crashed exception forbidden invalid_result"

TAMPERING = [
    *table(
        "forbidden",
        {
            "writing a reply to every descriptor is noticed": "import os\nfor fd in range(3, 64):\n"
            f"    try: os.write(fd, {_FORGED})\n    except OSError: pass\nreturn 1",
            "a forged frame is noticed": f"import os, struct\nbody = {_FORGED}\n"
            "os.write(3, struct.pack('<16sI', b'x' * 16, len(body)) + body)\nos._exit(0)",
            "the service's own words are only bytes when a tool writes them": "import os\n"
            "for word in (b'not restricted!!' + bytes(4) + b'pretended', b'restricted', b'e' + bytes(64),\n"
            '             b\'{"ready": false, "error": "pretended"}\'):\n    os.write(3, word)\nos._exit(120)',
        },
    ),
    *table(
        "crashed",
        {
            "a tool that gives its process the status of a failed isolation has crashed": "import os\nos._exit(120)",
            "closing the channel is a crash": "import os\nos.closerange(0, 64)\nreturn 1",
        },
    ),
    promise(
        "a tool cannot claim to have timed out",
        "invalid_result forbidden",
        "import sys\nframe = sys._getframe()\nwhile 'finish' not in frame.f_locals: frame = frame.f_back\n"
        "frame.f_locals['finish']({'status': 'error', 'error': {'kind': 'timeout', 'message': 'forged'}})",
    ),
    *table(
        "ok",
        {
            "patching json changes nothing": "import json\njson.dumps = json.loads = lambda *a, **k: 'forged'\n"
            "json.encoder.c_make_encoder = None\njson.JSONEncoder.encode = lambda *a: 'forged'\nreturn [1, 2]",
            "patching builtins changes nothing": "import builtins\n"
            "for name in ('len', 'str', 'isinstance', 'tuple', 'memoryview', 'getattr', 'type'):\n"
            "    setattr(builtins, name, lambda *a, **k: 'forged')\nreturn [1, 2]",
            "patching os changes nothing": "import os\nos.write = os._exit = os.read = lambda *a: None\nreturn [1, 2]",
            "breaking modules changes nothing": "import sys\nfor name in list(sys.modules):\n"
            "    if name != 'builtins': sys.modules[name] = None\nreturn [1, 2]",
            "a trace function changes nothing": "import sys\n"
            "sys.settrace(lambda *a: None)\nsys.setprofile(lambda *a: None)\nreturn [1, 2]",
            "printing a reply is only printing": 'print(\'{"status": "ok", "value": 99}\')\nreturn [1, 2]',
        },
        value=[1, 2],
    ),
    *table(
        "exception",
        {
            "an exception that cannot be shown is still one": "class E(Exception):\n    def __str__(self): raise self\n"
            "raise E",
            "a bare BaseException is an exception": "raise BaseException('x')",
        },
    ),
    promise(
        "destroying every object ends the call alone",
        f"{_HARM} timeout",
        "import gc\nfor thing in gc.get_objects():\n    try: thing.clear()\n    except BaseException: pass\nreturn 1",
        limits=CHEAP,
    ),
    promise(
        "changing the code of the harness by its frame ends the call alone",
        _HARM,
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

# The encoder that the harness bound in advance, given another way to end.
_ENCODED_BY_THE_TOOL = """
import sys
frame = sys._getframe()
while 'encode' not in frame.f_locals: frame = frame.f_back
encode = frame.f_locals['encode']
texts = iter([%r])  # of the value; the state follows
dict(zip(encode.__code__.co_freevars, encode.__closure__))['join'].cell_contents = lambda chunks: next(texts, 'null')
"""
_ODD = {
    "a number that overflows": "1e999", "a negative one": "[-1e999]", "a constant that is not JSON": "NaN",
    "one key twice": '{"a":1,"a":2}', "an escaped half of a character": '"\\ud800"',
    "a number of five thousand digits": "1" * 5000, "two values": "1,2", "no value": "", "another spelling": "[1.50]",
    "five hundred lists within each other": "[" * 500 + "]" * 500,
}  # fmt: skip

RESULTS = [
    *table(
        "invalid_result",
        {
            "NaN is not a result": "return float('nan')",
            "nor is infinity": "return {'a': [float('-inf')]}",
            "nor are bytes": "return b'abc'",
            "nor a set": "return {1, 2}",
            "nor a function": "return f",
            "nor a generator": "return (x for x in 'abc')",
            "nor a date": "import datetime\nreturn datetime.date(2025, 1, 1)",
            "nor a coroutine": "async def g(): pass\nreturn g()",
            "nor a cycle": "x = []\nx.append(x)\nreturn x",
            "nor a key that is no scalar": "return {(1, 2): 3}",
            "nor half a character": "return 'a\\ud800'",
            "nor an integer of ten thousand digits": "return 10 ** 10_000",
            "nor an object with one key twice": "return {1: 'a', '1': 'b'}",
            **{f"nor {value} that the tool encoded": _ENCODED_BY_THE_TOOL % text for value, text in _ODD.items()},
            "nor a hundred and one lists within each other": "x = []\nfor _ in range(100): x = [x]\nreturn x",
            "nor a tower of lists": "x = []\nfor _ in range(100_000): x = [x]\nreturn x",
        },
    ),
    promise("a hundred of them are one", "ok", "x = []\nfor _ in range(99): x = [x]\nreturn x"),
    promise("a tuple is a list", "ok", "return (1, (2, None))", value=[1, [2, None]]),
    promise(
        "text of any script passes", "ok", "return {'é\\x00': '汉字 🎉 \\u2028'}", value={"é\x00": "汉字 🎉 \u2028"}
    ),
    promise("large integers pass", "ok", "return 2 ** 200", value=2**200),
    promise(
        "values that pretend to be others keep their own value",
        "ok",
        "class I(int):\n    def __repr__(self): return '\"forged\"'\n"
        "class S(str):\n    def __str__(self): return 'forged'\n"
        "return [I(3), S('s')]",
        value=[3, "s"],
    ),
]

SOURCES = [
    *modules(
        "invalid_source",
        {
            "a syntax error is an invalid source": "def f(:\n",
            "so is a null byte": "def f():\n    return '\0'\n",
            "so is a function that is not there": "def g(): return 1",
            "so is a value in its place": "f = 3",
            "so are ten thousand brackets": "f = " + "(" * 10_000,
            "so is a tower of operators": "f = " + "-" * 200_000 + "1",
            "so is half a character": "f = '\ud800'",
        },
    ),
    module("coding cookies are not obeyed", "ok", "# -*- coding: rot13 -*-\ndef f(): return 'é'", value="é"),
    module("a module that raises is an exception", "exception", "raise ValueError('at import')\ndef f(): return 1"),
    *modules(
        "ok",
        {
            "main blocks do not run": "def f(): return {'x': 1}\nif __name__ == '__main__': raise SystemExit(3)",
            "dataclasses with postponed annotations work": "from __future__ import annotations\n"
            "from dataclasses import asdict, dataclass\n@dataclass\nclass P:\n    x: int = 1\n"
            "def f(): return asdict(P())",
        },
        value={"x": 1},
    ),
    promise(
        "a module of one's own can be imported",
        "ok",
        "import sys\nopen('/tmp/mine.py', 'w').write('x = 5')\nsys.path.insert(0, '/tmp')\nimport mine\nreturn mine.x",
        value=5,
        needs_namespaces=True,
    ),
]

_STATE = {"items": [1]}
_CHANGED = {"items": [1], "n": 1}
_CLEARED = "def f(state):\n    state.clear()\n    raise ValueError"
_BOUNDED = "def f(state): state['x'] = 'x' * 100_000"
_FORGED_STATE = {"state": {"forged": 1}}

STATE = [
    module("a tool changes its state", "ok", "def f(state): state['n'] = 1", state=_STATE, new_state=_CHANGED),
    module("a tool without the parameter leaves it alone", "ok", "def f(): return 1", state=_STATE, new_state=_STATE),
    module("a tool that fails changes nothing", "exception", _CLEARED, state=_STATE, new_state=None),
    module("state must stay JSON", "invalid_result", "def f(state): state['x'] = {1}", state=_STATE),
    module("state must not hold itself", "invalid_result", "def f(state): state['x'] = state", state=_STATE),
    module("state must stay bounded", "output_limit", _BOUNDED, state=_STATE),
    module(
        "an argument cannot stand in for the state",
        "exception",
        "def f(state): return state",
        state=_STATE,
        arguments=_FORGED_STATE,
    ),
]
