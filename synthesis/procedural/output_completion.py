"""The embedded teacher on results: a call gives records of the tool's noun, with the fields by which tools address it.

A tool that lists or searches gives a list of records; one that makes, reads or changes a thing gives its record. A
record has the id, key or path that other tools of the server take, a name, and values with which such things are made.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from synthesis.procedural.argument_values import is_number
from synthesis.prompts.parameter_completion import CompletedField, CompletedOutput, CompleteOutput, is_field_name
from synthesis.records import Language, ServerDocument, ToolDocument
from synthesis.tools import nouns
from synthesis.tools.names import words_of
from synthesis.tools.nouns import Noun
from synthesis.trajectories.bindings import scalar_type

_MAX_KEYS: Final = 2
_MAX_ATTRIBUTES: Final = 2
_DESCRIPTIONS: Final[dict[Language, str]] = {"en": "{field} of the {noun}", "zh": "调用返回的 {field} 字段"}
_LABELS: Final = {"id": "唯一编号", "name": "显示名称", "title": "显示标题", "status": "当前状态", "url": "网页链接"}
"""Chinese descriptions of the commonest fields."""


def complete_output(request: CompleteOutput, seed: int) -> CompletedOutput:
    """Write the result of a tool by its effect and its noun; a computation repeats its arguments."""
    server, tool = request.server, request.tool
    effect, noun = nouns.effect_of(tool), nouns.noun_of(tool)
    keys = _keys_of(server, noun, also="url" if effect == "list" else "")
    attributes, field = _attributes_of(server, noun), nouns.called(noun)
    has_name = any(words_of(name)[-1:] in (("name",), ("title",)) for name in attributes)
    named = {} if field is None or has_name else {field: "string"}
    fields = (keys or {"id": "string"}) | named | attributes
    if noun and effect == "list":
        return _written(_plural(noun), noun, fields, server.language)
    if noun and (effect == "create" or (effect == "read" and keys)):
        state = {"status": "string"} if effect == "create" or len(fields) <= _MAX_KEYS else {}
        return _written(None, noun, fields | state, server.language)
    if effect in ("update", "delete"):
        return _written(None, noun, keys | {"status": "string"}, server.language)
    result = noun[-1] if noun and is_field_name(noun[-1]) else "result"
    takers = (_scalars(other, other.parameters.get("properties", {})) for other in server.tools if other is not tool)
    kind = next((taken[result] for taken in takers if result in taken), "number" if is_number(result) else "string")
    return _written(None, noun, _scalars(tool, tool.required[:_MAX_ATTRIBUTES]) | {result: kind}, server.language)


def _written(list_name: str | None, noun: Noun, fields: dict[str, str], language: Language) -> CompletedOutput:
    written = []
    for name, kind in fields.items():
        said = _DESCRIPTIONS[language].format(field=" ".join(words_of(name)), noun=" ".join(noun) or "result")
        description = said[0].upper() + said[1:] if language == "en" else _LABELS.get(name, said)
        written.append(CompletedField.model_validate({"name": name, "type": kind, "description": description}))
    return CompletedOutput(list_name=list_name, fields=tuple(written))


def _keys_of(server: ServerDocument, noun: Noun, also: str = "") -> dict[str, str]:
    """Return the fields by which tools of the server address a thing, with their types; ids come first."""
    keys: dict[str, str] = {}
    for tool in server.tools:
        for argument, kind in _scalars(tool, tool.parameters.get("properties", {})).items():
            reference = nouns.reference_of(tool, argument)
            if reference is not None and (nouns.is_same_kind(reference.noun, noun) or argument == also):
                keys.setdefault(reference.key, kind)
    order = sorted(keys, key=lambda key: not nouns.is_identifier(key))
    return {key: keys[key] for key in order[:_MAX_KEYS]}


def _attributes_of(server: ServerDocument, noun: Noun) -> dict[str, str]:
    """Return some of the values with which things of a kind are made, with their types."""
    makers = [tool for tool in server.tools if nouns.effect_of(tool) == "create"]
    made = [tool for tool in makers if nouns.is_same_kind(nouns.noun_of(tool), noun)]
    found = {name: kind for tool in made for name, kind in _scalars(tool, tool.required).items()}
    named = {name: tuple(map(nouns.singular, words_of(name)[: len(noun)])) for name in found}
    # The thing's own id is among its keys already.
    others = [name for name in found if not nouns.is_same_kind(named[name], noun)]
    return {name: found[name] for name in others[:_MAX_ATTRIBUTES]}


def _scalars(tool: ToolDocument, arguments: Iterable[str]) -> dict[str, str]:
    """Return the arguments that a result could repeat, with their types."""
    properties = tool.parameters.get("properties", {})
    kinds = {name: scalar_type(properties.get(name)) for name in arguments if is_field_name(name)}
    return {name: kind for name, kind in kinds.items() if kind is not None and kind != "boolean"}


def _plural(noun: Noun) -> str:
    """Return the name of a list of things; `results` if its singular would be another word."""
    word = noun[-1]
    ending = word[:-1] + "ies" if word.endswith("y") and word[-2:-1] not in "aeiou" else word + "s"
    ending = word + "es" if word.endswith(("ch", "sh", "x", "ss")) else ending
    name = "_".join((*noun[:-1], ending))
    return name if ending != word and nouns.singular(ending) == word and is_field_name(name) else "results"
