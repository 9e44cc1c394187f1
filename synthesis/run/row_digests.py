"""Digests beside the rows of an SQLite file: a row that was damaged on disk is noticed, and never used.

Decided: docs/decisions/synthesis.md, “A record holds its digest, and `records verify` replays everything it can”.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from hashlib import sha256


def row_digest(*values: str | bytes | float | None) -> str:
    """Return the SHA-256 of the values of a row, texts as UTF-8.

    >>> row_digest("kite", 1) == row_digest(b"kite", 1), row_digest("kite", 1) == row_digest("kite", 1.0)
    (True, False)
    """
    encoded = [value.encode() if isinstance(value, str) else value for value in values]
    return sha256(repr(encoded).encode()).hexdigest()


def digest_in_sql(database: sqlite3.Connection, columns: Sequence[str]) -> str:
    """Return the SQL expression for the digest of the named columns, which the connection then knows."""
    database.create_function("row_digest", -1, row_digest, deterministic=True)
    # As bytes: SQLite hands no function a text that is not UTF-8, and a damaged one may not be.
    values = (f"CASE typeof({name}) WHEN 'text' THEN CAST({name} AS BLOB) ELSE {name} END" for name in columns)
    return f"row_digest({', '.join(values)})"
