"""Tool documents: each server of a source becomes one `ServerDocument` or a reason why not.

    format readers ─► SourceServer (raw, quirks included) ─► normalise_server ─► ServerDocument | Rejected

The texts of a source are data. If one speaks to a model, it is kept, flagged, and quoted in every prompt.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pydantic import BaseModel, ConfigDict

from synthesis.records import JsonObject, JsonValue, Language, ServerDocument, ToolDocument, canonical_json, record_id
from synthesis.records.tools import ParametersStatus
from synthesis.stage import Rejected
from synthesis.tools.misplaced_keywords import parsed_text
from synthesis.tools.names import legal_names
from synthesis.tools.schema_composer import composed_parameters, composed_value
from synthesis.tools.schema_repair import SILENT, SchemaUnconvertible
from synthesis.written_language import is_in_another_language

_OF_NO_PARAMETERS: Final = SILENT | {"type", "additionalProperties", "description"}
"""Keywords of a schema that can state that there are no parameters."""
CHARACTERS_PER_TOKEN: Final = 4
"""Rough length of a token of English or JSON; Chinese has about one character per token."""

_PAGE_BUTTONS = re.compile(r"^Deploy Server\b.*?\bTry in Playground\b\s*(\S+$)?", re.DOTALL)
_ADDRESS = re.compile(r"<?https?://\S+|((GET|POST|PUT|PATCH|DELETE) )?/\S*")
_PLACEHOLDER = re.compile(
    r"(no |missing )?(description|desc)?[\s.:-]*(is )?"
    r"(not available|unavailable|n/?a|none|null|todo|tbd|description)?[\s.]*",
    re.IGNORECASE,
)
_SPEAKS_TO_A_MODEL = re.compile(
    r"\b(you must|you should (always|never|first|not)|important:|always (call|use|respond|answer)"
    r"|never (tell|reveal|mention)|ignore (all |any )?(previous|prior)|do not (tell|mention|reveal)"
    r"|system prompt|as an ai)\b",
    re.IGNORECASE,
)
_WORDS_OF_A_PHRASE: Final = 3
"""Number of words from which a description that repeats the tool's name is clear, as in "Get livestream by slug"."""
_CJK = re.compile(r"[\u3400-\u9fff\uf900-\ufaff]")
_LETTER = re.compile(r"[^\W\d_]")


@dataclass(frozen=True)
class SourceTool:
    """A tool as it was found; any field may hold anything."""

    name: JsonValue
    description: JsonValue
    parameters: JsonValue
    """Schema of the arguments; None if the source does not state it."""
    output_schema: JsonValue = None
    reference_document: JsonValue = None
    """The document that `$ref`s lead into, if that is more than the schema itself."""
    original_arguments: Mapping[str, str] = field(default_factory=dict)
    """Renamed argument to its place and name in the source."""
    fault: str = ""
    """The reason why the reader cannot read this tool; empty if it can."""


@dataclass(frozen=True)
class SourceServer:
    """A server as it was found, before anything was mended."""

    name: str
    origin: str
    tools: Sequence[SourceTool]
    domain: str = "General"
    description: str = ""
    language: Language | None = None
    argument_values: JsonObject = field(default_factory=dict)
    repairs: tuple[str, ...] = ()
    """Names of the rules by which the reader mended the document."""


def object_in(found: JsonValue) -> JsonObject:
    """Return an object as it is, and an empty one for anything else."""
    return found if isinstance(found, dict) else {}


def objects_in(found: JsonValue) -> list[JsonObject]:
    """Return the objects of a list, and none for anything else."""
    return [entry for entry in found if isinstance(entry, dict)] if isinstance(found, list) else []


def tools_in(found: JsonValue, read: Callable[[JsonObject], SourceTool]) -> list[SourceTool]:
    """Read each tool of a list, or of a text that spells one; an entry that is no object is a tool with a fault."""
    entries = parsed_text(found)
    tools = [parsed_text(entry) for entry in entries] if isinstance(entries, list) else []
    no_object = SourceTool(None, None, None, fault="tool that is no object")
    return [read(tool) if isinstance(tool, dict) else no_object for tool in tools]


class ToolDocumentFilters(BaseModel):
    """The conditions of keeping a server (paper: three or more tools, clear descriptions, convertible schemas)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    min_tools: int = 3
    """Minimum number of usable tools of a server."""
    min_description_words: int = 2
    """Minimum number of words in a description (Chinese: twice as many characters). Shorter ones are vague, and so is
    an address or the repeated name."""
    max_server_tokens: int = 32_000
    """Maximum number of tokens in a server's documents, to fit a prompt; a token has about four characters."""


def normalise_server(source: SourceServer, filters: ToolDocumentFilters) -> ServerDocument:
    """Make a server document whose every schema is valid, or say why that cannot be.

    A tool that cannot be used is left out and named in `repairs`; the server stays while enough tools are left.

    Raises:
        Rejected: the reason is one of a short fixed list; the detail describes the fault.
    """
    if len(source.tools) < filters.min_tools:
        raise Rejected(f"fewer than {filters.min_tools} tools", f"{source.name!r} has {len(source.tools)}")
    repairs = set(source.repairs)
    usable: list[tuple[str, dict[str, Any]]] = []
    faults: dict[str, list[str]] = {}
    for place, tool in enumerate(source.tools, 1):
        try:
            usable.append(_usable(tool, filters, repairs))
        except Rejected as fault:
            name = clean_text(tool.name)[:64] if isinstance(tool.name, str) and tool.name.strip() else f"number {place}"
            faults.setdefault(fault.reason, []).append(name)
            said = f", {fault.detail[:200]}" if fault.reason == "unconvertible schema" else ""
            repairs.add(f"tool left out: {name} ({fault.reason}{said})")
    if len(usable) < filters.min_tools:
        commonest = max(sorted(faults), key=lambda fault: len(faults[fault]))  # sorted: the same one in every run
        shown = "; ".join(f"{fault}: {', '.join(names[:5])} ({len(names)})" for fault, names in sorted(faults.items()))
        raise Rejected(commonest, f"{source.name!r}: {len(usable)} of {len(source.tools)} tools can be used; {shown}")
    names = [name for name, _ in usable]
    legal = legal_names(names)
    repairs |= {"name made legal and unique"} if legal != names else set()
    tools = [
        ToolDocument(name=name, original_name=found if name != found else None, **fields)
        for (found, fields), name in zip(usable, legal, strict=True)
    ]
    require_tools_fit(source.name, tools, filters)
    descriptions = [tool.description for tool in tools]
    if source.language is None and is_in_another_language(" ".join(descriptions)):
        raise Rejected("documents in neither English nor Chinese", f"{source.name!r}: {descriptions[0][:60]!r}")
    return ServerDocument(
        id=record_id("server", source.name, source.origin, [tool.model_dump(mode="json") for tool in tools]),
        name=clean_text(source.name),
        domain=clean_text(source.domain) or "General",
        language=source.language or language_of(" ".join(descriptions)),
        description=clean_text(source.description),
        origin=source.origin,
        tools=tuple(tools),
        argument_values={name: tuple(values) for name, values in source.argument_values.items()},
        repairs=tuple(sorted(repairs)),
        flags=tuple(f"speaks to a model: {tool.name}" for tool in tools if _SPEAKS_TO_A_MODEL.search(tool.description)),
    )


def _usable(tool: SourceTool, filters: ToolDocumentFilters, repairs: set[str]) -> tuple[str, dict[str, Any]]:
    """Return the name of a tool and the other fields of its document, cleaned and mended, or reject it."""
    if tool.fault:
        raise Rejected(tool.fault, "")
    if not isinstance(tool.name, str) or not tool.name.strip():
        raise Rejected("tool without a name", "")
    description = clean_description(tool.description, tool.name)
    if isinstance(tool.description, str) and description != clean_text(tool.description):
        repairs.add("page residue removed")
    if not description or _is_vague(description, tool.name, filters):
        raise Rejected("vague description" if description else "missing description", tool.name)
    try:
        parameters, rules = composed_parameters(tool.parameters, tool.reference_document)
    except SchemaUnconvertible as error:
        raise Rejected("unconvertible schema", f"{tool.name}: {error}") from error
    repairs |= {*rules}
    status = _status(tool.parameters, parameters)
    output = None
    if isinstance(tool.output_schema, dict):
        try:
            output, rules = composed_value(tool.output_schema, tool.reference_document)
            repairs |= {f"output schema: {rule}" for rule in rules}
        except SchemaUnconvertible:
            repairs.add("output schema left out")
    return tool.name.strip(), {
        "description": description,
        "parameters": parameters if status == "stated" else {"type": "object", "properties": {}},
        "parameters_status": status,
        "output_schema": output or None,
        "original_arguments": dict(tool.original_arguments),
    }


def _status(found: JsonValue, composed: JsonObject) -> ParametersStatus:
    """Return the status of composed parameters: without any, it is `stated` only if the source says so."""
    if composed["properties"]:
        return "stated"
    if not isinstance(found := parsed_text(found), dict) or found.get("type", "object") not in ("object", ["object"]):
        return "unknown"
    more = [key for key in found if found[key] and key not in _OF_NO_PARAMETERS and not key.startswith("x-")]
    return "unknown" if more else "stated"


def require_tools_fit(server_name: str, tools: Sequence[ToolDocument], filters: ToolDocumentFilters) -> None:
    """Require that a server's documents can be offered in one prompt.

    Raises:
        Rejected: they are too long.
    """
    size = sum(len(canonical_json(tool.to_openai())) for tool in tools) // CHARACTERS_PER_TOKEN
    if size > filters.max_server_tokens:
        raise Rejected("over the token budget", f"{server_name!r} takes about {size} tokens")


def clean_description(found: JsonValue, tool_name: str) -> str:
    """Return a description without the buttons of a page; empty if it is a placeholder, or about another tool.

    >>> clean_description("  Get  a note\\r\\nby id. ", "get_note"), clean_description("get-notes Lists.", "get-note")
    ('Get a note\\nby id.', '')
    """
    if not isinstance(found, str):
        return ""
    text = _PAGE_BUTTONS.sub("", clean_text(found))
    first = text.split(" ", 1)[0]
    # A tool named by one plain word may begin its description with a form of it: "Searches notes" of `search`.
    is_of_another = first != tool_name and first.startswith(tool_name) and not tool_name.isalnum()
    return "" if is_of_another or _PLACEHOLDER.fullmatch(text) else text


def clean_text(text: str) -> str:
    """Normalise to NFC, drop control characters, collapse white space inside lines and blank lines."""
    # Through UTF-8, since JSON's escapes can spell half a surrogate pair, which no record could be written with.
    text = unicodedata.normalize("NFC", text.encode("utf-8", "replace").decode("utf-8"))
    lines = (" ".join(re.sub(r"[\x00-\x08\x0b-\x1f\x7f\ufeff]", " ", line).split()) for line in text.splitlines())
    return "\n".join(line for line in lines if line)


def _is_vague(description: str, tool_name: str, filters: ToolDocumentFilters) -> bool:
    chinese = len(_CJK.findall(description))
    words = len(description.split()) + chinese / 2  # a Chinese word has about two characters
    said, name = (re.sub(r"\W|_", "", text).casefold() for text in (description, tool_name))
    says_no_more = said == name and not chinese and words < _WORDS_OF_A_PHRASE
    return words < filters.min_description_words or says_no_more or bool(_ADDRESS.fullmatch(description))


def language_of(text: str) -> Language:
    """Tell Chinese from English by the share of Chinese characters among the letters.

    >>> language_of("查询 city 的天气预报和空气质量"), language_of("Get the weather (天气)")
    ('zh', 'en')
    """
    letters = len(_LETTER.findall(text))
    return "zh" if letters and len(_CJK.findall(text)) / letters > 0.3 else "en"
