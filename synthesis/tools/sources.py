"""Sources of tool documents: files and folders of any known format, told apart by their contents.

.json          a crawled server, a `tools/list` answer, OpenAI `tools`, RapidAPI endpoints, an OpenAPI specification, or
               several servers: rows that have `tools`, or a listing of an MCP registry
.jsonl         one of the above, or one RapidAPI tool, per line
.yaml, .yml    one of the above
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from synthesis.errors import SynthesisError
from synthesis.records import JsonValue
from synthesis.stage import Rejected
from synthesis.tools.crawled import read_crawled
from synthesis.tools.documents import SourceServer
from synthesis.tools.mcp_registry import read_registry
from synthesis.tools.openapi import read_openapi
from synthesis.tools.rapidapi import read_endpoints, read_function_line
from synthesis.tools.tools_list import read_tools_list

EXAMPLES_DIRECTORY: Final = Path(__file__).parent / "examples"
"""The tool documents that the project ships."""
SUFFIXES: Final = (".json", ".jsonl", ".yaml", ".yml")
_READERS: Final = (read_crawled, read_openapi, read_endpoints, read_function_line, read_tools_list)


class SourceMissing(SynthesisError):
    """A named file or folder is not there, or holds no tool documents."""


def source_files(source: Path) -> list[Path]:
    """Return the files of a source, sorted by name: itself, or those of a known suffix under the folder.

    Raises:
        SourceMissing: there is no such file or folder, or nothing in it can be a tool document.
    """
    if source.is_file():
        return [source]
    if not source.is_dir():
        raise SourceMissing(f"{source} does not exist; name a file or folder of tool documents")
    files = sorted(path for path in source.rglob("*") if path.suffix in SUFFIXES and path.is_file())
    if not files:
        raise SourceMissing(f"{source} holds no tool documents ({', '.join(SUFFIXES)}); check the path")
    return files


def read_servers(path: Path) -> Iterator[SourceServer | Rejected]:
    """Yield each server of a file as it was found, or the reason why it cannot be read.

    A line that cannot be read is one reason; the other lines are read.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")  # some editors begin a file with a byte-order mark
    except (OSError, ValueError) as error:
        yield _unreadable(path.name, error)
        return
    parts = [(path.name, text)]
    if path.suffix == ".jsonl":  # `splitlines` also cuts at U+2028, inside of a text
        # Files that were joined have a byte-order mark in the middle.
        lines = ((number, line.strip().lstrip("\ufeff")) for number, line in enumerate(text.split("\n"), 1))
        parts = [(f"{path.name}:{number}", line) for number, line in lines if line]
    for where, part in parts:
        try:
            yield from _servers_of(part, path, where)
        except (ValueError, RecursionError) as error:
            yield _unreadable(where, error)


def _unreadable(where: str, error: BaseException) -> Rejected:
    # The first line alone: the rest of a YAML error quotes the file.
    said = error.strerror if isinstance(error, OSError) else f"{type(error).__name__}: {str(error).splitlines()[0]}"
    return Rejected("unreadable document", f"{where}: {said}")


def _servers_of(text: str, path: Path, where: str) -> Iterator[SourceServer | Rejected]:
    """Yield the server of a text, of each row of a data set whose rows have `tools`, or of a registry's listing."""
    repairs: tuple[str, ...] = ()
    if path.suffix in (".yaml", ".yml"):
        from synthesis.tools.yaml_documents import parsed_yaml  # here: most sources are JSON

        document, repairs = parsed_yaml(text)
    else:  # Python reads NaN and Infinity, which are no JSON and could not be written again
        document = json.loads(text, parse_constant=_refuse_constant)
    if (listed := read_registry(document)) is not None:
        for each in listed:
            yield replace(each, repairs=(*each.repairs, *repairs)) if isinstance(each, SourceServer) else each
        return
    rows = [(document, where)]
    if isinstance(document, list) and document and all(isinstance(row, dict) and "tools" in row for row in document):
        rows = [(row, f"{where}, row {number}") for number, row in enumerate(document, 1)]
    for row, place in rows:
        found = next(filter(None, (read(row, path.stem) for read in _READERS)), None)
        if found is None:
            yield Rejected("unknown format", f"{place} is none of the formats of tool documents")
        else:
            yield replace(found, repairs=(*found.repairs, *repairs))


def _refuse_constant(name: str) -> JsonValue:
    raise ValueError(f"{name} is not JSON")
