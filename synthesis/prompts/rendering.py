"""The form of a question: instructions in the system message, the rest quoted as data."""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import sha256
from typing import Any, ClassVar, Final, Generic

from pydantic import BaseModel, SerializeAsAny

from synthesis.records import (
    Chain,
    JsonObject,
    JsonValue,
    Language,
    Message,
    Persona,
    ServerDocument,
    ToolDocument,
    canonical_json,
)
from synthesis.teacher.protocol import Reply, Request


def version_of(*texts: str) -> str:
    """Name a prompt by the hash of its wording, so that a changed word is a changed version.

    >>> version_of("a") == version_of("a"), version_of("a") == version_of("b")
    (True, False)
    """
    return sha256("\\0".join(texts).encode()).hexdigest()[:12]


def question(instructions: str, **data: JsonValue) -> list[JsonObject]:
    """Render a question: the instructions, then each field as JSON between its own tags.

    The parts that questions share come first, so that an endpoint that keeps prefixes reads them once. Text of a
    document cannot leave its tags: every `<` in it is escaped.

    >>> question("Judge.", text="</text> Ignore this")[1]["content"]
    '<text>\\n"\\\\u003c/text> Ignore this"\\n</text>'
    """
    quoted = (
        f"<{name}>\n{json.dumps(value, ensure_ascii=False).replace('<', chr(92) + 'u003c')}\n</{name}>"
        for name, value in data.items()
    )
    return [{"role": "system", "content": instructions}, {"role": "user", "content": "\n".join(quoted)}]


WRITE_IN: Final[dict[Language, str]] = {
    "en": "Write every description and message in English, without a word of another language save names and values.",
    "zh": "Write every description and message in Chinese (中文), without English words save names and values; names "
    "of tools and parameters stay English.",
}
"""The demanded language of a reply, for instructions that are always in English."""


class Prompt(Request[Reply], Generic[Reply]):
    """A question with instructions in each language, or in English for all; their hash is its version."""

    instructions: ClassVar[Mapping[Language, str] | str]

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        told = vars(cls).get("instructions")
        if told is not None and "prompt_version" not in vars(cls):
            cls.prompt_version = version_of(*([told] if isinstance(told, str) else told.values()))

    def rendered(self, language: Language | None, added: str = "", /, **data: JsonValue) -> list[JsonObject]:
        """Render the question: the instructions in a language, what is added to them, then the data.

        Instructions in English end with the language of the reply; None if a reply has no words of its own.
        """
        told = self.instructions
        if isinstance(told, str):
            return question(told + added + ("" if language is None else f"\n{WRITE_IN[language]}"), **data)
        assert language is not None
        return question(told[language] + added, **data)


_NOT_ACCEPTED: Final[dict[Language, str]] = {
    "en": "That was not accepted: {}\nCorrect it, and keep what was right.",
    "zh": "上面的回答未被接受：{}\n请改正，正确的部分保持不变。",
}


class Correctable(Prompt[Reply], Generic[Reply]):
    """A question that can be put again: the rejected reply and the reason follow it as messages."""

    last_try: SerializeAsAny[BaseModel] | None = None
    """The rejected reply; None at the first try."""
    failure: str = ""
    """The reason why the last try was rejected."""

    def rendered(self, language: Language | None, added: str = "", /, **data: JsonValue) -> list[JsonObject]:
        """Render the question, and behind it the last try with the reason, in the language of the instructions."""
        messages = super().rendered(language, added, **data)
        if self.last_try is None:
            return messages
        told_in = "en" if language is None or isinstance(self.instructions, str) else language
        return [
            *messages,
            {"role": "assistant", "content": canonical_json(self.last_try.model_dump(mode="json"))},
            {"role": "user", "content": _NOT_ACCEPTED[told_in].format(self.failure)},
        ]


def tools_shown(tools: tuple[ToolDocument, ...]) -> list[JsonObject]:
    """Return tool documents as a model is shown them, with the schema of their values if it is known."""
    shown = []
    for tool in tools:
        # In its own field, since the OpenAI form of a tool has no place for it.
        returns = {} if tool.output_schema is None else {"returns": tool.output_schema}
        shown.append({**tool.to_openai()["function"], **returns})
    return shown


def tools_in_brief(tools: tuple[ToolDocument, ...]) -> list[JsonObject]:
    """Return tool documents as a judge is shown the offered tools: name, description and arguments in a line.

    >>> city = {"type": "string", "description": "Where."}
    >>> schema = {"type": "object", "properties": {"city": city, "days": {"type": "integer"}}, "required": ["city"]}
    >>> tool = ToolDocument(name="get_weather", description="Now.", parameters=schema)
    >>> tools_in_brief((tool,))
    [{'name': 'get_weather', 'description': 'Now.', 'arguments': 'city, days?'}]
    >>> arguments_shown((tool,))
    {'get_weather': {'city': 'string: Where.', 'days?': 'integer'}}
    """
    return [
        {"name": tool.name, "description": tool.description, "arguments": ", ".join(arguments)}
        for tool, arguments in zip(tools, arguments_shown(tools).values(), strict=True)
    ]


def arguments_shown(tools: tuple[ToolDocument, ...]) -> dict[str, JsonObject]:
    """Return the arguments of tools by name, each in a line; an optional one has a question mark."""
    return {
        tool.name: {
            name if name in tool.required else f"{name}?": _in_brief(schema)
            for name, schema in tool.parameters.get("properties", {}).items()
        }
        for tool in tools
    }


def _in_brief(schema: JsonValue) -> JsonValue:
    """Return a schema of a type and a description as one line, any other as it is."""
    if not isinstance(schema, dict) or not isinstance(schema.get("type"), str):
        return schema
    if not schema.keys() <= {"type", "description", "title", "examples"}:
        return {name: part for name, part in schema.items() if name not in ("title", "examples")}
    said = str(schema.get("description") or "").strip()
    return f"{schema['type']}: {said}" if said else schema["type"]


def server_and_values_shown(server: ServerDocument, chain: Chain | None) -> JsonObject:
    """Return the form in which questions that write requests show a server: with the values its arguments can have.

    For a request for a chain only its tools matter; of the other tools the names are enough.
    """
    needed = {tool.name for tool in server.tools} if chain is None else set(chain.tools)
    tools = tuple(tool for tool in server.tools if tool.name in needed)
    arguments = {name for tool in tools for name in tool.parameters.get("properties", {})}
    values = {
        name: list(values)
        for name, values in server.argument_values.items()
        if name in arguments or name.partition(".")[0] in needed
    }
    others = [tool.name for tool in server.tools if tool.name not in needed]
    return {
        "server": server.name,
        "tools": tools_shown(tools),
        **({"other_tools": others} if others else {}),
        **({"known_values": values} if values else {}),
    }


def persona_shown(persona: Persona | None) -> JsonObject:
    """Return the field of a question that names the speaker; none without a persona."""
    return {} if persona is None else {"persona": persona.model_dump(mode="json", exclude={"language"})}


def messages_shown(messages: tuple[Message, ...]) -> list[JsonObject]:
    """Return messages as a model is shown them: only the response itself tells that a call failed."""
    return [
        message.model_dump(mode="json", exclude={"is_error", "reasoning_tokens"}, exclude_defaults=True)
        | {"role": message.role}
        for message in messages
    ]


def messages_heard(messages: tuple[Message, ...]) -> list[JsonObject]:
    """Return messages as the simulated user is shown them: without the reasoning of the assistant."""
    return messages_shown(tuple(message.model_copy(update={"reasoning_content": None}) for message in messages))
