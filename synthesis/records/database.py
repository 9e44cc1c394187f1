"""The program behind a tool whose state is a database; it runs in the sandbox, in the tool's process.

    {"sql": text, "queries": {query: rows}} ──► connection ──► tool ──► the same, with text and rows as they are now

SQL may read and change rows, and make tables and indexes. All else is refused (ATTACH, PRAGMA, extensions, triggers),
and so are functions whose values do not repeat. Python code can lift this; then it meets the walls of the sandbox.
"""

import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any

_READS = "FUNCTION READ RECURSIVE SELECT"
_ALL = f"{_READS} CREATE_INDEX CREATE_TABLE DELETE INSERT REINDEX SAVEPOINT TRANSACTION UPDATE"
_DO_NOT_REPEAT = (
    "random randomblob date time datetime julianday strftime unixepoch timediff current_date current_time "
    "current_timestamp sqlite_version sqlite_source_id load_extension"
)


@contextmanager
def _opened(sql: str) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        for name in _DO_NOT_REPEAT.split():
            connection.create_function(name, -1, _refuse)
        _allow(connection, _ALL)
        connection.executescript(sql)
        yield connection


def _refuse(*_: object) -> None:
    raise ValueError("the function's value does not repeat")


def _allow(connection: sqlite3.Connection, actions: str) -> None:
    allowed = {getattr(sqlite3, f"SQLITE_{name}") for name in actions.split()}
    connection.set_authorizer(lambda action, *_: sqlite3.SQLITE_OK if action in allowed else sqlite3.SQLITE_DENY)


def _statements(connection: sqlite3.Connection) -> list[str]:
    connection.set_authorizer(None)
    connection.row_factory, connection.text_factory = None, str  # a tool may have set its own
    return list(connection.iterdump())


def _rows(sql: str, queries: Iterable[str]) -> dict[str, list[list[Any]]]:
    with _opened(sql) as connection:
        _allow(connection, _READS)
        return {query: [list(row) for row in connection.execute(query)] for query in queries}


def _on_database(tool: Callable[..., Any]) -> Callable[..., Any]:
    def called(*, state: dict[str, Any], **arguments: Any) -> Any:
        with _opened(state["sql"]) as connection:
            value = tool(**arguments, state=connection)
            state["sql"] = "\n".join(_statements(connection))
        state["queries"] = _rows(state["sql"], state["queries"])  # apart from the tool's own connection
        return value

    return called


def examined(state: dict[str, Any]) -> dict[str, Any]:
    """Return the state as a call would leave it, and the rows of its queries after each change of one row or value.

    Raises:
        ValueError: the order of a query's rows depends on the order in which rows were written; or a table takes none
            of the rows that are added to try the queries.
    """
    with _opened(state["sql"]) as connection:
        queries, statements = state["queries"], _statements(connection)
    sql = "\n".join(statements)
    backwards = sorted(statements[-2:0:-1], key=lambda each: not each.startswith("CREATE TABLE"))
    rows = _rows(sql, queries)
    if rows != _rows("\n".join(backwards), queries):
        raise ValueError("a query has no ORDER BY that tells the order of all its rows")
    with _opened(sql) as connection:
        tampered, changes = [], list(_changes(connection))
    untried = {change.partition(" VALUES ")[0] for change in changes if change.startswith("INSERT")}
    for change in changes:
        with suppress(sqlite3.IntegrityError):  # a change that the tables do not take
            tampered.append(_rows(f"{sql}\n{change}", queries))
            untried.discard(change.partition(" VALUES ")[0])
    if untried:
        raise ValueError(f"no row of 1s can be added to try the queries: {sorted(untried)}; leave constraints out")
    return {"state": {"sql": sql, "queries": rows}, "tampered": tampered}


def _changes(connection: sqlite3.Connection) -> Iterator[str]:
    tables = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%' ORDER BY name"
    for (table,) in connection.execute(tables).fetchall():
        columns = [name for name, *_ in connection.execute(f'SELECT * FROM "{table}"').description]
        for first in ("NULL", "'?'"):  # a key that SQLite counts may be NULL alone
            yield f'INSERT INTO "{table}" VALUES ({first}{", 1" * (len(columns) - 1)})'
        for (rowid,) in connection.execute(f'SELECT rowid FROM "{table}"').fetchall():
            yield f'DELETE FROM "{table}" WHERE rowid = {rowid}'
            for name in columns:
                other = f'iif(typeof("{name}") = \'text\', "{name}" || \'?\', ifnull("{name}", 0) + 1)'
                yield f'UPDATE "{table}" SET "{name}" = {other} WHERE rowid = {rowid}'
