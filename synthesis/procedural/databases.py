"""Stateful tasks on a SQLite database: funds in one table, and each move of them a row of another."""

from __future__ import annotations

import sqlite3

from synthesis.procedural.stateful import write_state_conditions, write_stateful_task
from synthesis.prompts.stateful import StateConditions, StatefulTask, WriteStateConditions, WriteStatefulTask
from synthesis.records import EnvironmentTool, StateCondition

_TABLES = """\
CREATE TABLE holdings (name TEXT PRIMARY KEY, amount INTEGER NOT NULL CHECK (amount >= 0));
CREATE TABLE moves (source TEXT NOT NULL, target TEXT NOT NULL, amount INTEGER NOT NULL);
INSERT INTO holdings VALUES {};"""
_MOVE = '''\
def {0.name}({1}, {2}, {3}, state) -> int:
    """{0.description}."""
    rows = dict(state.execute("SELECT name, amount FROM holdings"))
    for each in ({1}, {2}):
        if each not in rows:
            raise ValueError(f"unknown name: {{each}}")
    if {1} == {2} or not 0 < {3} <= rows[{1}]:
        raise ValueError(f"cannot move {{{3}}} from {{{1}}} to {{{2}}}")
    state.execute("UPDATE holdings SET amount = amount - ? WHERE name = ?", ({3}, {1}))
    state.execute("UPDATE holdings SET amount = amount + ? WHERE name = ?", ({3}, {2}))
    state.execute("INSERT INTO moves VALUES (?, ?, ?)", ({1}, {2}, {3}))
    return rows[{1}] - {3}
'''
_READ = '''\
def {0.name}({1}, state) -> int:
    """{0.description}."""
    rows = state.execute("SELECT amount FROM holdings WHERE name = ?", ({1},)).fetchall()
    if not rows:
        raise ValueError(f"unknown name: {{{1}}}")
    return rows[0][0]
'''
_HELD = "SELECT name, amount FROM holdings ORDER BY name"
_MOVED = "SELECT source, target, amount FROM moves ORDER BY source, target, amount"


def write_task(request: WriteStatefulTask, seed: int) -> StatefulTask:
    """Write a stateful task; if its state is to be a database, its tools read and change it by SQL.

    Raises:
        BadReply: there is no such task.
    """
    task = write_stateful_task(request, seed)
    if not request.database:
        return task
    (funds,) = task.state.values()
    rows = ", ".join("('{}', {})".format(name.replace("'", "''"), amount) for name, amount in funds.items())
    tools = tuple(
        EnvironmentTool(document=tool.document, source=code.format(tool.document, *tool.document.required))
        for tool, code in zip(task.tools, (_MOVE, _READ), strict=True)
    )
    return task.model_copy(update={"state": {"sql": _TABLES.format(rows)}, "tools": tools})


def write_conditions(request: WriteStateConditions, seed: int) -> StateConditions:
    """Say how the state ends, read from the arguments of the calls alone; of a database, by the rows of two queries.

    Raises:
        BadReply: the knowledge cannot be read by rule, or a call names nothing in the state.
    """
    if not request.database:
        return write_state_conditions(request, seed)
    database = sqlite3.connect(":memory:")
    database.executescript(request.state["sql"])
    funds = dict(database.execute(_HELD))
    moves = sorted(list(call.arguments.values()) for call in request.calls if len(call.arguments) == 3)
    for source, target, amount in moves:
        funds[source] -= amount
        funds[target] += amount
    ends = {_HELD: [list(item) for item in sorted(funds.items())], _MOVED: moves}
    return StateConditions(
        conditions=tuple(StateCondition(path=(query,), relation="equals", value=rows) for query, rows in ends.items())
    )
