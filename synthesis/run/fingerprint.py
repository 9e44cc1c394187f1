"""The fingerprint of a result: config, contents of its inputs, and source of the code, as one flat table.

Two tables are compared line by line, so that a refusal can list the differences. Numbers and truth values stand as they
are, other values as digests: no path, key or text of the user gets into a manifest. Rows of an SQLite file have digests
beside them: a row that was damaged on disk is noticed, and never used.

Decided: docs/decisions/synthesis.md, “A record holds its digest, and `records verify` replays everything it can”.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from synthesis.run.destination import DestinationRefused
from synthesis.run.json_values import JsonValue, canonical_json

_SHOWN_AT_ONCE: Final = 8
_ABSENT: Final = "absent"

Fingerprint = dict[str, JsonValue]
"""Value or digest of each setting, input or file that decides a result, by name (`seed`, `source of …`)."""


class MadeOtherwise(DestinationRefused):
    """An earlier result was made with another config, other inputs or other code; the message lists the differences."""


def digest(value: JsonValue) -> str:
    """Name a JSON value by its hash.

    >>> digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1}), len(digest(None))
    (True, 16)
    """
    return sha256(canonical_json(value).encode()).hexdigest()[:16]


def flattened(config: Mapping[str, Any], *, leave_out: Collection[str] = ()) -> Fingerprint:
    r"""Write the values of a config one per line, nested keys with dots, without those of `leave_out`.

    >>> flattened({"seed": 1, "wandb": None, "model": {"layers": 2, "remat": "full"}}, leave_out={"model.remat"})
    {'seed': 1, 'wandb': None, 'model.layers': 2}
    >>> flattened({"name": "a"}) == {"name": digest("a")}
    True
    """

    def lines(prefix: str, values: Mapping[str, Any]) -> Iterator[tuple[str, JsonValue]]:
        for key, value in values.items():
            name = f"{prefix}{key}"
            if name in leave_out:
                continue
            if isinstance(value, Mapping) and value:  # an empty table keeps its line, or emptying it would not show
                yield from lines(f"{name}.", value)
            else:
                yield name, value if value is None or isinstance(value, (bool, int, float)) else digest(value)

    return dict(lines("", config))


def differences(before: Mapping[str, JsonValue], now: Mapping[str, JsonValue]) -> list[str]:
    """List the differences between two fingerprints, one for each line.

    >>> differences({"seed": 0, "epochs": 2, "source of a.py": "1f"}, {"seed": 1, "source of a.py": "2e"})
    ['epochs: 2 before, absent now', 'seed: 0 before, 1 now', 'source of a.py: changed']
    """
    found = []
    for name in sorted(before.keys() | now.keys()):
        both = [table.get(name, _ABSENT) for table in (before, now)]
        said = ["another" if isinstance(value, str) and value != _ABSENT else str(value) for value in both]
        is_digest = all(isinstance(table.get(name), str) for table in (before, now))
        if both[0] != both[1]:
            found.append(f"{name}: changed" if is_digest else f"{name}: {said[0]} before, {said[1]} now")
    return found


def require_same(where: Path, before: Mapping[str, JsonValue], now: Mapping[str, JsonValue], *, advice: str) -> None:
    """Refuse to go on with a result of another fingerprint.

    Raises:
        MadeOtherwise: the two differ; the message lists the differences and ends with the advice.
    """
    differing = differences(before, now)
    if differing:
        more = f"; and {len(differing) - _SHOWN_AT_ONCE} more" if len(differing) > _SHOWN_AT_ONCE else ""
        listed = "; ".join(differing[:_SHOWN_AT_ONCE]) + more
        raise MadeOtherwise(
            f"{where}: this result was made with another config, other inputs or other code: {listed}. {advice}"
        )


def digest_of_files(files: Iterable[Path]) -> str:
    """Name the bytes of some files, in the order given; `absent` if one is missing."""
    hashed = sha256()
    for path in files:
        if not path.is_file():
            return _ABSENT
        hashed.update(sha256(path.read_bytes()).digest())  # file by file, so that it matters where one ends
    return hashed.hexdigest()[:16]


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
