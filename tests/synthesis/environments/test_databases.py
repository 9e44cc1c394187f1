"""A state may be a SQLite database: proven by queries, closed to files, the same bytes for the same calls."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from astra_jax.episodes.rollout import Start
from astra_jax.evaluate.attacks import gold
from astra_jax.evaluate.baselines import Calls, Seen, run_program
from sandbox.client import AsyncSandboxClient, ExecuteReply, Limits
from synthesis.answers.state_conditions import ends_as_asked
from synthesis.environments.proving.tool_source import check_source
from synthesis.environments.state import prove_stateful, with_queries
from synthesis.records import Environment, EnvironmentTool, StateCondition, SubQuestion, ToolCall
from synthesis.stage import Rejected
from tests.synthesis.altered import altered
from tests.synthesis.environments.in_this_process import InThisProcess
from tests.synthesis.environments.made import all_kept, document, faults, read, tiny_config, verdict

LOTS = "CREATE TABLE lots (name TEXT PRIMARY KEY, price INTEGER); INSERT INTO lots VALUES {};"
BEFORE = {"sql": LOTS.format("('a', 1), ('b', 2)"), "queries": {}}
AFTER = {"sql": LOTS.format("('a', 1), ('b', 7)"), "queries": {}}
ALL = "SELECT name, price FROM lots ORDER BY name"


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory, sandbox_url: str) -> Path:
    scenarios, varieties = {"multi_hop": 1, "parallel_multi_hop": 1}, {"stateful": 1, "stateful_database": 3}
    out = tmp_path_factory.mktemp("made") / "out"
    return all_kept(tiny_config(seed=5, count=8, out=out, varieties=varieties, scenarios=scenarios), sandbox_url)


def databases(kept: Path) -> list[Environment]:
    return [each for each in read(kept) if each.has_database]


async def told(url: str, body: str, state: Any = BEFORE, **limits: float) -> ExecuteReply:
    """Run a tool with this body on a database."""
    source = "def tool(state):\n" + "".join(f"    {line}\n" for line in body.splitlines())
    tool = EnvironmentTool(document=document("tool"), source=source, takes_database=True)
    async with AsyncSandboxClient(url) as client:
        return await client.execute(tool.module_source(), "tool", {}, state=state, limits=Limits(**limits))


async def test_gold_ends_as_asked_and_neither_no_call_nor_another_amount_does(kept: Path, sandbox_url: str) -> None:
    environment, right = databases(kept)[0], gold(databases(kept)[0])
    first, amount = environment.gold_messages()[1].tool_calls, environment.tools[0].document.required[2]

    def less(seen: Seen) -> Calls | str:  # as gold, with another amount in the calls of the first turn
        return right(seen) if seen.turn else [(each.name, {**each.arguments, amount: 1}) for each in first]

    start = Start(environment, environment.all_tools)
    async with AsyncSandboxClient(sandbox_url) as client:
        perfect, wrong = [await run_program(each, start, client, max_turns=20) for each in (right, less)]
    assert perfect.counts.num_solved == perfect.counts.num_subtasks == len(environment.sub_tasks) + 1
    assert perfect.state == environment.final_state != wrong.state
    assert not any(ends_as_asked(environment, state) for state in (wrong.state, environment.state, None))


def test_a_tampered_query_row_or_statement_does_not_verify(kept: Path, tmp_path: Path, sandbox_url: str) -> None:
    assert (verdict(kept, sandbox_url), len(databases(kept))) == ("verified 8/8", 6)
    environment, (held, moved) = databases(kept)[0], databases(kept)[0].state_conditions
    state, final = environment.state or {}, environment.final_state or {}
    nothing = StateCondition(path=("SELECT 1",), relation="equals", value=[[1]])
    unordered = altered(held, path=("SELECT amount, name FROM holdings",))
    damaged = {
        "state is not as the task asks": {"state_conditions": (held, altered(moved, value=[]))},
        "conditions miss a change": {"state_conditions": (moved,)},
        "conditions hold from the start": {"state_conditions": (nothing,)},
        "database cannot be examined": {"state_conditions": (unordered, moved)},
        "no condition on the state": {"state_conditions": ()},
        "wrong final state": {"final_state": {**final, "sql": state["sql"]}},
        "wrong rows of queries": {"state": {**state, "queries": {key: [] for key in state["queries"]}}},
    }
    found = faults(tmp_path / "out", sandbox_url, *(altered(environment, **change) for change in damaged.values()))
    assert found == list(damaged)


HOSTILE = """
found = []
def tries(name, act):
    try: act()
    except Exception: return
    found.append(name)
for statement in ("ATTACH '/tmp/a.db' AS a", "ATTACH ':memory:' AS a", "VACUUM INTO '/tmp/b.db'", "PRAGMA user_version",
                  "SELECT load_extension('x')", "CREATE TEMP TABLE t (a)", "CREATE VIRTUAL TABLE v USING fts5 (a)",
                  "SELECT random()", "SELECT datetime('now')", "INSERT INTO lots VALUES ('c', julianday('now'))",
                  "CREATE TRIGGER t AFTER INSERT ON lots BEGIN SELECT 1; END", "UPDATE sqlite_master SET sql = ''"):
    tries(statement, lambda: state.execute(statement).fetchall())
state.set_authorizer(None)  # from here on the jail alone protects
for path in ("/etc/passwd", "/a.db", "/usr/a.db", "/proc/self/mem", "file:/etc/hosts?mode=ro"):
    tries(path, lambda: state.execute(f"ATTACH '{path}' AS a{len(found)}").fetchall()
          or state.execute(f"CREATE TABLE a{len(found)}.t (a)"))
    tries(path, lambda: type(state)(path, uri=True).execute("CREATE TABLE t (a)"))
tries("extension", lambda: (state.enable_load_extension(True), state.load_extension("/lib/libc.so.6")))
return found
"""


async def test_neither_sql_nor_a_hostile_program_reaches_a_file_or_an_extension(sandbox_url: str) -> None:
    assert (await told(sandbox_url, HOSTILE)).value == []


async def test_a_tool_reaches_no_name_of_the_program_and_may_have_its_own(sandbox_url: str) -> None:
    for name in ("sqlite3", "_rows", "_opened", "examined", "program"):
        reply = await told(sandbox_url, f"return {name}")
        assert "NameError" in (reply.error.message if reply.error else "")
    own = "state.row_factory = lambda cursor, row: {'n': row[0]}\nreturn [*state.execute('SELECT count(*) FROM lots')]"
    assert (await told(sandbox_url, own)).value == [{"n": 2}]


async def test_a_table_that_takes_no_further_row_cannot_be_examined() -> None:
    sql = "CREATE TABLE t (a TEXT PRIMARY KEY, n INTEGER CHECK (n > 5)); INSERT INTO t VALUES ('x', {});"
    query = "SELECT a, n FROM t WHERE a LIKE 'x%' ORDER BY a"
    states = [{"sql": sql.format(n), "queries": {}} for n in (9, 8)]
    with pytest.raises(Rejected, match="no row of 1s can be added"):
        await with_queries(
            InThisProcess(), [StateCondition(path=(query,), relation="equals", value=[["x", 8]])], *states
        )


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ("state.execute('WITH n(i) AS (VALUES(1) UNION ALL SELECT i FROM n) SELECT max(i) FROM n')", "timeout"),
        ("for n in range(40000): state.execute('INSERT INTO lots VALUES (?, 1)', (f'{n:200}',))", "output_limit"),
        ("state.execute(\"INSERT INTO lots VALUES ('c', zeroblob(900000000))\")", "memory"),
    ],
)  # fmt: skip
async def test_steps_and_bytes_of_a_database_have_a_call_s_limits(body: str, kind: str, sandbox_url: str) -> None:
    reply = await told(sandbox_url, body, wall_seconds=10, cpu_seconds=2)
    assert (reply.error and reply.error.kind.value, reply.state) == (kind, None)


async def test_the_same_call_gives_the_same_bytes_and_leaves_nothing_for_the_next_one(sandbox_url: str) -> None:
    adds = "state.execute('INSERT INTO lots VALUES (?, .1 + .2)', 'c')\nreturn [*state.execute('SELECT * FROM lots')]"
    replies = [await told(sandbox_url, adds, {**BEFORE, "queries": {ALL: []}}) for _ in range(2)]
    assert replies[0].value == [["a", 1], ["b", 2], ["c", 0.1 + 0.2]] == replies[1].value
    assert replies[0].state == replies[1].state == {**(replies[0].state or {}), "queries": {ALL: replies[0].value}}


@pytest.mark.parametrize(
    ("query", "rows", "reason"),
    [
        (ALL, [["a", 1], ["b", 7]], None),
        (ALL, [["b", 7], ["a", 1]], "state is not as the task asks"),
        ("SELECT price FROM lots WHERE name < 'b?' ORDER BY name", [[1], [7]], "conditions miss a change"),
        ("SELECT group_concat(price) FROM lots", [["1,7"]], "database cannot be examined"),
        ("DELETE FROM lots RETURNING name, price", [["a", 1], ["b", 7]], "database cannot be examined"),
    ],
)  # fmt: skip
async def test_queries_only_read_and_show_every_change(query: str, rows: Any, reason: str | None) -> None:
    conditions = [StateCondition(path=(query,), relation="equals", value=rows)]
    with nullcontext() if reason is None else pytest.raises(Rejected, match=reason):
        _, last = await with_queries(InThisProcess(), conditions, BEFORE, AFTER)
        assert last["queries"] == {query: rows}


async def test_a_call_that_leaves_the_same_state_with_another_argument_is_rejected() -> None:
    source = "def paint(color, state):\n    state['painted'] = True\n    return color[::-1]"
    call = ToolCall(id="c", name="paint", arguments={"color": "red"})
    asked = SubQuestion(id="q", question="?", answer="der", call=call)
    tool = EnvironmentTool(document=document("paint", color="string"), source=source)
    with pytest.raises(Rejected, match="state ignores an argument"):
        await prove_stateful(InThisProcess(), [tool], [asked], {})


@pytest.mark.parametrize(
    "call",
    [
        "state.execute(x)",
        "state.execute(f'SELECT {x}')",
        "state.executescript('a' + x)",
        "state.execute(sql=x)",
        "[*map(state.execute, [x])]",
    ],
)
def test_no_argument_of_a_call_becomes_a_statement(call: str) -> None:
    check_source(f"def f(x, state):\n    return {call}", document("f", x="string"), ())  # without a database
    with pytest.raises(Rejected, match="statement is not constant"):
        check_source(f"def f(x, state):\n    return {call}", document("f", x="string"), (), takes_database=True)
