"""Bindings: the results of earlier calls that give an argument of a later one.

A result gives an argument if it holds the id, or the name, of the thing that the argument names: `id` in a list of
hotels is the `hotel_id` of a booking. This rule is the embedded teacher's answer; a language model is asked.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Final

from synthesis.prompts.chains import EarlierValue
from synthesis.records import JsonObject, JsonValue, ToolDocument
from synthesis.tools import nouns
from synthesis.tools.names import words_of
from synthesis.tools.nouns import Noun

_SCALARS: Final = frozenset({"string", "integer", "number", "boolean"})
_WRAPPERS: Final = frozenset({"result", "item", "data", "entry", "record", "row", "list", "response"})
"""Names of fields around a result, which do not say whose values are in it."""


@lru_cache(maxsize=65536)
def slot_name(argument: str) -> str:
    """Return the one spelling under which calls share a fact.

    >>> slot_name("orderId"), slot_name("order_id")
    ('order_id', 'order_id')
    """
    return "_".join(words_of(argument)) or argument


def settled(schema: JsonValue) -> JsonObject:
    """Return a schema with one type: of several types or alternatives the first that is not null.

    >>> settled({"anyOf": [{"type": "null"}, {"type": ["array", "null"]}], "title": "Ids"})
    {'title': 'Ids', 'type': 'array'}
    """
    schema = schema if isinstance(schema, dict) else {}
    if isinstance(types := schema.get("type"), list):
        schema = {**schema, "type": next((name for name in types if name != "null"), "null")}
    alternatives = schema.get("anyOf") or schema.get("oneOf") or ()
    if "type" in schema or "properties" in schema or not alternatives:
        return schema
    first = next((each for each in alternatives if isinstance(each, dict) and each.get("type") != "null"), {})
    return settled({name: part for name, part in schema.items() if name not in ("anyOf", "oneOf")} | first)


def scalar_type(schema: JsonValue) -> str | None:
    """Return the scalar type of a schema; None for arrays, objects and schemas that say nothing certain."""
    if not isinstance(schema, dict):
        return None
    kind = schema.get("type")
    if not isinstance(kind, str):  # as in few
        kind = (schema := settled(schema)).get("type")
    if kind in _SCALARS:
        return str(kind)
    return "string" if all(isinstance(value, str) for value in schema.get("enum", (None,))) else None


def outputs_of(tool: ToolDocument) -> Iterator[tuple[str, Noun, JsonObject]]:
    """Yield (JSON pointer, owner, schema) of every scalar that a tool says it returns; of a list, of its first item.

    The owner is the kind of thing whose value it is: the name of the enclosing field, or the tool's own noun.
    """
    yield from _outputs(tool.output_schema, "", nouns.noun_of(tool), nouns.noun_of(tool))


def _outputs(schema: JsonValue, pointer: str, owner: Noun, kind: Noun) -> Iterator[tuple[str, Noun, JsonObject]]:
    """Yield the scalars of a value of an `owner`; `kind` is the kind of thing that the value is, if it is one."""
    schema = settled(schema)
    if scalar_type(schema):
        yield pointer, owner, schema
    elif schema.get("type") == "array":  # any of its items will do as an argument
        yield from _outputs(schema.get("items"), f"{pointer}/0", owner, kind)
    else:
        for name, inner in schema.get("properties", {}).items():
            path = f"{pointer}/{name.replace('~', '~0').replace('/', '~1')}"
            yield from _outputs(inner, path, kind, owner_of(name, kind))


def _field_at(pointer: str, owner: Noun) -> Noun:
    """Return the words of the field at a pointer; of an item of a list, in the singular."""
    words = words_of(re.sub(r"(?:/0)+$", "", pointer).rpartition("/")[2]) or owner
    return (*words[:-1], nouns.singular(words[-1])) if pointer.endswith("/0") and words else words


def owner_of(field: str, owner: Noun) -> Noun:
    """Return the kind of thing that a field holds, inside a thing of the kind `owner`.

    >>> owner_of("openOrders", ("customer",)), owner_of("results", ("track",))
    (('open', 'order'), ('track',))
    """
    noun = tuple(map(nouns.singular, words_of(field)))
    return owner if not noun or noun[-1] in _WRAPPERS else noun


def same_type(schema: JsonValue, output: JsonValue) -> bool:
    """Say whether a scalar output is of a type that an argument takes."""
    kinds = {scalar_type(schema), scalar_type(output)}
    # A Boolean that was returned says nothing of a flag that is to be set, even under the same name.
    return not (None in kinds or (len(kinds) > 1 and kinds != {"integer", "number"}) or "boolean" in kinds)


def fits(tool: ToolDocument, argument: str, pointer: str, owner: Noun, output: JsonObject) -> bool:
    """Say whether an output can be an argument: of its type, and the same key of the same kind of thing.

    >>> text = {"type": "string"}
    >>> parameters = {"properties": {"hotel_id": text, "guest_id": text}}
    >>> tool = ToolDocument(name="book_room", description="", parameters=parameters)
    >>> [fits(tool, argument, "/hotels/0/id", ("hotel",), text) for argument in ("hotel_id", "guest_id")]
    [True, False]
    """
    schema = settled(tool.parameters.get("properties", {}).get(argument))
    if not same_type(schema, output) or ("enum" in schema and output.get("enum") != schema["enum"]):
        return False
    found = _field_at(pointer, owner)
    # A tool for texts gives a text, whatever else an argument of that name could hold.
    if words_of(argument) == found == owner[-1:]:
        return True
    reference = nouns.reference_of(tool, argument)
    if reference is None:
        return False
    noun, key, _ = reference
    is_bare = len(words_of(argument)) == 1  # `id`, of the tool's noun: of a page, for the children of a page
    of_kind = nouns.is_same_kind(noun, owner) or (is_bare and bool(owner) and owner[-1] in noun)
    if found == (key,) or (found, key) == (("id",), "identifier"):
        # Anything that was found can be visited.
        return of_kind or (is_bare and key == "url" and "/0/" in f"{pointer}/")
    if found[-1:] == (key,) and nouns.is_same_kind(noun, tuple(map(nouns.singular, found[:-1]))):
        return True
    return key == "name" and slot_name(argument) == "_".join(found) and not nouns.is_content(argument)


def values_from_earlier(tools: Sequence[ToolDocument]) -> tuple[EarlierValue, ...]:
    """Return, by rule, the earlier results that give arguments of a chain's calls; several may give one argument.

    An optional id is filled if a call that reads or lists would have nothing to do with the earlier ones without it.
    """
    found: list[EarlierValue] = []
    stated: set[tuple[str, str | None]] = set()
    for index, tool in enumerate(tools):
        properties = tool.parameters.get("properties", {})
        facts = {name: (slot_name(name), scalar_type(properties.get(name))) for name in tool.required}
        # A fact that was stated already comes before an output: two calls on one order mean the same order.
        given = _given(tools, index, [name for name in tool.required if facts[name] not in stated])
        if not given and nouns.effect_of(tool) in ("list", "read"):
            optional = [name for name in properties if name not in tool.required and nouns.is_identifier(name)]
            given = _given(tools, index, optional)
        stated |= {facts[name] for name in tool.required if name not in {value.argument for value in given}}
        found += given
    return tuple(found)


def _given(tools: Sequence[ToolDocument], index: int, arguments: Sequence[str]) -> list[EarlierValue]:
    """Return the values in earlier results that fit arguments of a call."""
    found: dict[tuple[int, str], str] = {}
    for argument in arguments:
        for earlier in range(index):
            for path in paths_to(tools[earlier], tools[index], argument):
                found.setdefault((earlier, path), argument)  # a call between two things does not take one thing twice
    return [
        EarlierValue(tool_index=index, argument=argument, earlier_tool_index=earlier, earlier_output_path=path)
        for (earlier, path), argument in found.items()
    ]


def paths_to(other: ToolDocument, tool: ToolDocument, argument: str) -> list[str]:
    """Return the places in a tool's result that give another's argument.

    A tool that must itself be given the same thing only repeats it.
    """
    reference = nouns.reference_of(tool, argument)
    for name in other.required:
        own = nouns.reference_of(other, name)
        is_same = reference and own and own.key == reference.key and nouns.is_same_kind(own.noun, reference.noun)
        if is_same or slot_name(name) == slot_name(argument):
            return []
    found = [path for path, owner, output in outputs_of(other) if fits(tool, argument, path, owner, output)]
    return found if other.name != tool.name else []
