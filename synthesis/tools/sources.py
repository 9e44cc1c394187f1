"""Sources of tool documents: files and folders of any known format, told apart by their contents.

.json    a crawled server, a `tools/list` answer, OpenAI `tools`, RapidAPI endpoints, an OpenAPI specification, or a
         listing of an MCP registry, which is several servers
.jsonl   one RapidAPI tool, or one of the above, per line
.yaml    an OpenAPI specification
.py      typed functions
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
from synthesis.tools.python_functions import read_python_functions
from synthesis.tools.rapidapi import read_endpoints, read_function_line
from synthesis.tools.tools_list import read_tools_list

EXAMPLES_DIRECTORY: Final = Path(__file__).parent / "examples"
"""The tool documents that the project ships."""
SUFFIXES: Final = (".json", ".jsonl", ".yaml", ".yml", ".py")
_READERS: Final = (read_crawled, read_openapi, read_endpoints, read_function_line, read_tools_list)
_UNREADABLE: Final = (ValueError, RecursionError, SyntaxError)


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
        if path.suffix == ".jsonl":
            yield from _servers_of_lines(text, path)
        elif path.suffix == ".py":
            yield read_python_functions(text, path.stem)
        elif path.suffix in (".yaml", ".yml"):
            from synthesis.tools.yaml_documents import parsed_yaml  # here: most sources are JSON

            document, repairs = parsed_yaml(text)
            found = _server(document, path.stem, path.name)
            yield replace(found, repairs=(*found.repairs, *repairs)) if isinstance(found, SourceServer) else found
        else:
            yield from _servers_of(_parsed_json(text), path.stem, path.name)
    except OSError as error:
        yield Rejected("unreadable document", f"{path.name}: {error.strerror}")
    except _UNREADABLE as error:
        yield _unreadable(path.name, error)


def _servers_of_lines(text: str, path: Path) -> Iterator[SourceServer | Rejected]:
    """Yield the server of each line; a line that cannot be read hides no other."""
    for number, line in enumerate(text.split("\n"), 1):  # `splitlines` also cuts at U+2028, inside of a text
        if line := line.strip().lstrip("\ufeff"):  # files that were joined have a mark in the middle
            try:
                yield from _servers_of(_parsed_json(line), path.stem, f"{path.name}:{number}")
            except _UNREADABLE as error:
                yield _unreadable(f"{path.name}:{number}", error)


def _unreadable(where: str, error: BaseException) -> Rejected:
    # The first line alone: the rest of a YAML error quotes the file.
    return Rejected("unreadable document", f"{where}: {type(error).__name__}: {str(error).splitlines()[0]}")


def _servers_of(document: JsonValue, name: str, where: str) -> Iterator[SourceServer | Rejected]:
    """Yield the server of a document, of each row of a data set whose rows have `tools`, or of a registry's listing."""
    if (listed := read_registry(document)) is not None:
        yield from listed
    elif isinstance(document, list) and document and all(isinstance(row, dict) and "tools" in row for row in document):
        for number, row in enumerate(document, 1):
            yield _server(row, name, f"{where}, row {number}")
    else:
        yield _server(document, name, where)


def _server(document: JsonValue, name: str, where: str) -> SourceServer | Rejected:
    found = next(filter(None, (read(document, name) for read in _READERS)), None)
    return found or Rejected("unknown format", f"{where} is none of the formats of tool documents")


def _parsed_json(text: str) -> JsonValue:
    # Python reads NaN and Infinity, which are no JSON and could not be written again.
    return json.loads(text, parse_constant=_refuse_constant)


def _refuse_constant(name: str) -> JsonValue:
    raise ValueError(f"{name} is not JSON")
