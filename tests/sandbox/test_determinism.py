"""The same call gives the same bytes, on any worker, in any order, after any other calls."""

import random
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

_EXPRESSIONS = [
    "random.random()", "random.choice('abcdef')", "random.sample(range(100), 5)", "str(uuid.uuid4())",
    "str(uuid.uuid1())", "secrets.token_hex(8)", "os.urandom(6).hex()", "random.Random().getrandbits(64)",
    "random.SystemRandom().random()", "time.time()", "time.strftime('%Y-%m-%d %H:%M:%S')",
    "datetime.datetime.now().isoformat()", "time.perf_counter()", "datetime.date.today().isoformat()",
    "datetime.datetime.now(datetime.UTC).isoformat()", "time.ctime()", "list({'x', 'y', 'z', 'longer', 'words'})",
    "hash('text')", "hash((1, 'a', None))", "[*{str(i) for i in range(20)}]", "sorted({'b': 1, 'a': 2}.items())",
    "str({frozenset('abc'), 1, 'q'})", "os.getpid()", "tempfile.mktemp()", "json.dumps({'é': [1.5, True]})",
    "str(decimal.Decimal(1) / 7)", "os.getrandom(8).hex()", "list(os.times())", "sum(x / 3 for x in range(100))",
]  # fmt: skip
_IMPORTS = "import datetime, decimal, json, os, random, secrets, tempfile, time, uuid\n"


def random_tool(rng: random.Random) -> str:
    """A tool that mixes sources of disorder."""
    body = ", ".join(rng.sample(_EXPRESSIONS, rng.randint(2, 6)))
    effects = rng.choice(["print({'a', 'b', 'c'})", "random.seed()", "x = [object() for _ in range(99)]", "pass"])
    failure = rng.choice(["", "", "", "    raise ValueError([object(), lambda: 0])\n"])
    return f"{_IMPORTS}def f(n, state):\n    {effects}\n    state['seen'] = [{body}]\n{failure}    return [{body}]\n"


def replies(url: str, tools: list[str]) -> list[bytes]:
    """The reply of each tool without its usage, in bytes."""

    def call(pair):
        index, source = pair
        document = {"source": source, "function": "f", "arguments": {"n": index}, "state": {}, "seed": index}
        content = client.post("/v1/execute", json=document).content
        return content[: content.index(b'"usage"')]

    with httpx.Client(base_url=url, trust_env=False, timeout=60) as client, ThreadPoolExecutor(8) as threads:
        return list(threads.map(call, enumerate(tools)))


@pytest.mark.parametrize("count", [60, pytest.param(1000, marks=pytest.mark.slow)])
def test_random_tools_repeat_byte_for_byte(sandbox_url, count):
    rng = random.Random(count)
    tools = [random_tool(rng) for _ in range(count)]
    first, second, third = (replies(sandbox_url, tools) for _ in range(3))
    assert first == second == third


def test_another_seed_gives_another_randomness(client):
    source = "import random, uuid\ndef f():\n    return [random.random(), str(uuid.uuid4())]\n"
    one, again, other = (client.execute(source, "f", {}, seed=seed).value for seed in (1, 1, 2))
    assert one == again
    assert [mine == others for mine, others in zip(one, other, strict=True)] == [False, False]
    assert one[0] == random.Random(1).random()


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("[datetime.datetime.now().isoformat(), time.time() < time.time()]", ["2026-01-01T00:00:00.001000", True]),
        ("repr(datetime.datetime.now())", "datetime.datetime(2026, 1, 1, 0, 0, 0, 1000)"),
        ("type(datetime.datetime.now()) is datetime.datetime", True),
        ("isinstance(datetime.datetime.now(), datetime.date)", True),
        ("repr(datetime.datetime(2025, 1, 2) - datetime.timedelta(1))", "datetime.datetime(2025, 1, 1, 0, 0)"),
    ],
)
def test_clocks_and_dates_begin_where_it_is_documented(client, expression, value):
    assert client.execute(f"import datetime, time\ndef f(): return {expression}\n", "f", {}).value == value
