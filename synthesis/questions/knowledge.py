"""Knowledge: the sources of questions, and their reading from files.

    *.json       a passage {"text", "lang", "domain"}, or a list of them
    *.jsonl      lines with "question", or with "knowledge_corpus" (a passage, or empty: the domain alone), and "domain"
    *.txt, *.md  a passage, of the domain that the file is named after
    *.csv        a table; the tables of one folder belong together
    *.sqlite     all its tables (also *.db)
    *.parquet    a table; needs pyarrow
    a folder     everything of the above in it

Without files, knowledge is the name of a domain, whose facts the teacher makes up consistently from a seed.
"""

from __future__ import annotations

import csv
import json
import re
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import Field

from synthesis.errors import InputUnusable
from synthesis.records import Difficulty, JsonValue, Language, NeededPackage, Record

MAX_TABLE_ROWS: Final = 1000
_CJK: Final = re.compile(r"[\u4e00-\u9fff]")
_INTEGER: Final = re.compile(r"-?(0|[1-9]\d{0,14})")
_DECIMAL: Final = re.compile(r"-?\d{1,12}\.\d{1,6}")

Table = list[dict[str, JsonValue]]

Unseen = Literal["worlds", "tools", "domains"]
"""Contents that no other split shares: entities and answers, with `tools` also tools, with `domains` also the domain
(see `splits.py`)."""


class Knowledge(Record):
    """One source of questions."""

    kind: Literal["domain", "passage", "question", "tables"] = "domain"
    domain: str
    language: Language
    text: str = ""
    """The passage, the question, or the tables as JSON: table name to rows; empty for a domain alone."""
    seed: int = 0
    name_parts: int | None = None
    """Number of first and of second parts of names in a generated world; None for all parts."""
    unseen: Unseen = Field(default="worlds", exclude_if=lambda unseen: unseen == "worlds")
    """Level at which the split is unseen; above `worlds`, tools are named and worded in other ways."""
    difficulty: Difficulty = Field(default="plain", exclude_if=lambda difficulty: difficulty == "plain")
    packages: tuple[NeededPackage, ...] = Field(default=(), exclude_if=lambda packages: not packages)
    """Packages beside the standard library that the code of tools may import."""


def read_knowledge(paths: Sequence[Path]) -> list[Knowledge]:
    """Read files and folders, in order of their names.

    Raises:
        InputUnusable: a path is missing, of an unknown kind, or holds a file that its reader refuses.
    """
    found: list[Knowledge] = []
    for path in paths:
        if not path.exists():
            raise InputUnusable(f"{path} does not exist; name a knowledge file or folder")
        files = sorted(file for file in path.iterdir() if file.suffix in _READERS) if path.is_dir() else [path]
        tables: dict[str, Table] = {}
        for file in files:
            if file.suffix not in _READERS:
                raise InputUnusable(f"expected one of {sorted(_READERS)}, found {file.name}; convert it first")
            try:
                read = _READERS[file.suffix](file)
            except (ValueError, KeyError, TypeError, AttributeError, csv.Error, sqlite3.Error) as error:
                raise InputUnusable(f"{file} cannot be read as {file.suffix}: {error}") from error
            if isinstance(read, dict):
                tables.update(read)
            else:
                found += read
        if tables:
            found.append(_tables(path, tables))
    if not found:
        raise InputUnusable(f"there is no knowledge in {[str(path) for path in paths]}; name other files")
    return found


def language_of(text: str) -> Language:
    """Return the language of a text: Chinese if a tenth of its characters are Chinese.

    >>> language_of("房租 is rent in Chinese, they say"), language_of("房租是多少？")
    ('en', 'zh')
    """
    return "zh" if len(_CJK.findall(text)) * 10 >= len(text) > 0 else "en"


def _tables(path: Path, tables: Mapping[str, Table]) -> Knowledge:
    for name, rows in tables.items():
        if len(rows) > MAX_TABLE_ROWS:
            raise InputUnusable(
                f"expected at most {MAX_TABLE_ROWS} rows per table, found {len(rows)} in {name} of {path}; "
                "select the rows that questions are to be about"
            )
    text = json.dumps(tables, ensure_ascii=False, allow_nan=False)  # columns keep their order: the first ones name
    headers = "".join(column for rows in tables.values() for row in rows[:1] for column in row)
    language: Language = "zh" if _CJK.search(headers) else "en"
    return Knowledge(kind="tables", domain=path.stem, language=language, text=text)


def _passages(path: Path) -> list[Knowledge]:
    read = json.loads(path.read_text(encoding="utf-8"))
    return [
        Knowledge(
            kind="passage",
            domain=item["domain"],
            language=item.get("lang") or language_of(item["text"]),
            text="\n\n".join(part for part in (item.get("title", ""), item["text"]) if part),
        )
        for item in (read if isinstance(read, list) else [read])
    ]


def _text(path: Path) -> list[Knowledge]:
    text = path.read_text(encoding="utf-8")
    return [Knowledge(kind="passage", domain=path.stem, language=language_of(text), text=text)]


def _lines(path: Path) -> list[Knowledge]:
    found = []
    for line in path.read_text(encoding="utf-8").split("\n"):  # `splitlines` also cuts at U+2028 inside of a text
        if not line.strip():
            continue
        item = json.loads(line)
        text = item["question"] if "question" in item else item["knowledge_corpus"]
        kind: Literal["question", "passage", "domain"] = "passage" if text else "domain"
        kind = "question" if "question" in item else kind
        language = language_of(text or item["domain"])
        found.append(Knowledge(kind=kind, domain=item["domain"], language=language, text=text))
    return found


def _csv(path: Path) -> dict[str, Table]:
    with path.open(encoding="utf-8-sig", newline="") as lines:
        reader = csv.DictReader(lines, strict=True)
        rows: Table = [{name: _cell(value) for name, value in row.items()} for row in reader]
    if any(None in row for row in rows):  # where `DictReader` puts the cells that have no column
        raise ValueError("a row has more cells than the header")
    return {path.stem: rows}


def _cell(text: Any) -> JsonValue:
    """Return a CSV cell, as a number if it is written as one; a code with leading zeros stays a text."""
    if not isinstance(text, str) or not text.strip():
        return None
    if _INTEGER.fullmatch(text.strip()):
        return int(text)
    return float(text) if _DECIMAL.fullmatch(text.strip()) else text.strip()


def _sqlite(path: Path) -> dict[str, Table]:
    tables: dict[str, Table] = {}
    with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as connection:
        connection.row_factory = sqlite3.Row
        listing = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%' ORDER BY name"
        for (name,) in connection.execute(listing).fetchall():
            quoted = name.replace('"', '""')
            # One row more than is allowed, so that `_tables` sees that there are too many.
            rows = connection.execute(f'SELECT * FROM "{quoted}"').fetchmany(MAX_TABLE_ROWS + 1)
            tables[name] = [{k: None if isinstance(row[k], bytes) else row[k] for k in row.keys()} for row in rows]  # noqa: SIM118
    return tables


def _parquet(path: Path) -> dict[str, Table]:
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise InputUnusable(f"reading {path} needs pyarrow: pip install pyarrow") from error
    rows = json.dumps(parquet.read_table(path).to_pylist(), default=str)  # dates and decimals as they are written
    return {path.stem: json.loads(rows, parse_constant=lambda _: None)}  # NaN stands for a value that is missing


_READERS: Final[Mapping[str, Any]] = {
    ".json": _passages,
    ".jsonl": _lines,
    ".txt": _text,
    ".md": _text,
    ".csv": _csv,
    ".sqlite": _sqlite,
    ".db": _sqlite,
    ".parquet": _parquet,
}
