"""Tool documents and servers, and the form that all records have.

Every record is frozen, refuses unknown fields and carries its provenance. On disk a record is one JSON text inside an
ArrayRecord shard (see `record_io`). Nothing in a record is a secret, a header or a path of a machine.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from hashlib import sha256
from typing import Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field
from pydantic.json_schema import SkipJsonSchema

from synthesis.run.json_values import JsonObject, JsonValue, canonical_json

SCHEMA_VERSION: Final = 2

Language = Literal["en", "zh"]


def record_id(kind: str, *inputs: JsonValue) -> str:
    """Name a record by the hash of its inputs, so that the same inputs always give the same id.

    >>> record_id("task", "server", 0) == record_id("task", "server", 0)
    True
    >>> record_id("task", "server", 0) == record_id("task", "server", 1)
    False
    """
    return f"{kind}-{sha256(canonical_json(inputs).encode()).hexdigest()[:20]}"


class Record(BaseModel):
    """A frozen model that refuses unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=False, ser_json_inf_nan="constants")


class KeptRecord(Record):
    """A record that directories hold, with its schema version and the digest of its content.

    Decided: docs/decisions/synthesis.md, “A record holds its digest, and `records verify` replays everything it can”.
    """

    schema_version: Literal[2] = SCHEMA_VERSION
    digest: str = ""
    """SHA-256 of the record without this field; empty until it is written. It reveals changes, but proves no author."""
    id: str

    def sealed(self) -> Self:
        """Return the record with its digest; a record that has a digest keeps it, even if a field was changed since."""
        return self if self.digest else self.model_copy(update={"digest": self.computed_digest()})

    def computed_digest(self) -> str:
        """Return the SHA-256 of the record as JSON with an empty digest, in hexadecimal digits."""
        return sha256(self.model_copy(update={"digest": ""}).model_dump_json().encode()).hexdigest()


class Provenance(Record):
    """The origin of a record: enough to make it again, nothing secret."""

    teacher: str
    """Name of the teacher that answered the questions, e.g. `procedural` or `openai:gpt-4.1`."""
    prompt_version: str
    seed: int
    parents: tuple[str, ...] = ()
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost_usd: float = 0.0


ParametersStatus = Literal["stated", "unknown", "completed"]
"""Origin of a tool's parameters. `stated`: the source lists them, or says that there are none. `unknown`: the source
does not mention them. `completed`: the source does not mention them, and the teacher wrote them."""

LEGAL_TOOL_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""Names that OpenAI and Anthropic accept."""


class ToolDocument(Record):
    """The description of one tool for a model, in the OpenAI tool-calling schema."""

    name: str = Field(pattern=rf"^{LEGAL_TOOL_NAME.pattern}$")
    description: str
    parameters: JsonObject
    """A JSON Schema (draft 2020-12) of type `object`."""
    output_schema: JsonObject | None = None
    """JSON Schema of the result of a successful call (MCP's `outputSchema`); None if it is not known."""
    original_name: str | None = None
    """Name in the source, if it was changed to be legal or unique."""
    # Not in the JSON schema: a teacher that writes a whole document states its parameters.
    parameters_status: SkipJsonSchema[ParametersStatus] = Field(
        default="stated", exclude_if=lambda status: status == "stated"
    )
    """Origin of the parameters; with `unknown` they are empty."""
    original_arguments: SkipJsonSchema[dict[str, str]] = Field(default={}, exclude_if=lambda names: not names)
    """Renamed argument to its place and name in the source, if two places have arguments of one name."""
    output_status: SkipJsonSchema[Literal["stated", "completed"]] = Field(
        default="stated", exclude_if=lambda status: status == "stated"
    )
    """Origin of the output schema: the source, or the teacher."""

    def to_openai(self) -> JsonObject:
        """Return the document as one entry of a request's `tools`, the form that chat templates render."""
        function = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return {"type": "function", "function": function}

    def names_arguments(self, arguments: Mapping[str, JsonValue]) -> bool:
        """Say whether the names of some arguments fit the tool: no required one is missing, and none is unknown.

        Without `additionalProperties` a document takes no further arguments, as functions do; JSON Schema takes any.
        """
        known = set(self.parameters.get("properties", {}))
        return set(self.required) <= arguments.keys() and (
            arguments.keys() <= known or self.parameters.get("additionalProperties", False) is not False
        )

    @property
    def required(self) -> tuple[str, ...]:
        """Names of the arguments that a call must have."""
        return tuple(self.parameters.get("required", ()))


class ServerDocument(KeptRecord):
    """The tools that one server offers together."""

    name: str
    domain: str
    language: Language
    description: str = ""
    origin: str
    """Kind of the source: `mcp`, `mcp_tools_list`, `crawled`, `openapi`, `rapidapi`, `openai_tools`, `python`,
    `mcp_registry`."""
    tools: tuple[ToolDocument, ...]
    argument_values: dict[str, tuple[JsonValue, ...]] = {}
    """Values that exist on this server and cannot be invented, by `argument` or `tool.argument`; no model sees them."""
    repairs: tuple[str, ...] = ()
    """Names of the rules that repaired a schema."""
    flags: tuple[str, ...] = ()
    """Notes on the text for a reader, e.g. that a description addresses the model. The text itself is unchanged."""
