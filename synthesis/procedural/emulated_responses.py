"""The embedded teacher as tool server: responses by output schema, things kept in the state by noun and id.

Later calls read the writes of earlier ones: a thing that a call gave out keeps its fields, a list has the things that
were made, and a deleted thing is not found. A value that the state does not hold is drawn from the thing's own id, or
from the call, so the same question gives the same response.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from synthesis.answers.schema_fault import schema_fault
from synthesis.procedural.argument_values import drawn_value
from synthesis.prompts.emulated_tool_response import EmulateCall, EmulatedResponse, EmulatorState
from synthesis.records import JsonObject, JsonValue, Language
from synthesis.tools import nouns
from synthesis.tools.names import words_of
from synthesis.tools.nouns import Effect, Noun
from synthesis.track.seeds import derived_random
from synthesis.trajectories.bindings import owner_of, scalar_type, settled, slot_name

_OUTCOMES: Final[dict[Effect, str]] = {"create": "created", "update": "updated", "delete": "deleted"}
_SPOKEN: Final = frozenset({"path", "symbol", "ticker", "username"})
"""Keys of things that are words; other keys are drawn as ids."""
_SEARCHES: Final = ("query", "q", "keyword", "keywords", "search", "term")
_MAX_SEARCHED: Final = 40
"""Maximum number of characters of a query that stands in the name of a found thing."""


class _Call(NamedTuple):
    """A call, and the things that are known at its time."""

    effect: Effect
    arguments: JsonObject
    """Values of the call, by slot."""
    own: JsonObject
    """Values that name the thing that the call is about, by its key: `id`, `path`."""
    entities: Mapping[str, JsonObject]
    language: Language


def emulate_call(request: EmulateCall, seed: int) -> EmulatedResponse:
    """Answer one call and return the state after it; `seed` is not used: draws depend on the call alone."""
    tool, entities = request.tool, dict(request.state.entities)
    effect, noun = nouns.effect_of(tool), nouns.noun_of(tool)
    found = [(nouns.reference_of(tool, name), value) for name, value in request.arguments.items()]
    references = [(reference, value) for reference, value in found if reference is not None]
    own = {
        reference.key: value
        for reference, value in references
        if nouns.is_same_kind(reference.noun, noun) or noun[-1:] == (reference.key,)  # `read_by_path(note_path)`
    }
    place = _place_named(entities, noun, own)
    if place is None and effect not in ("list", "create"):  # `get_status(order_id)` is about an order
        place = next((_place(each.noun, value) for each, value in references if each.is_identifier), None)
    known = {} if place is None else entities.get(place, {})
    if place is not None and known.get("deleted") is True:
        name = place.partition(" ")[2]
        error = f"{name} 不存在" if request.language == "zh" else f"{name} not found"
        return EmulatedResponse(value=None, state=request.state, error=error)
    # A thing that is made or changed has the call's values; one that is read keeps those that it had.
    given = request.arguments if effect in ("create", "update") else {}
    written = {name: value for name, value in given.items() if not nouns.is_identifier(name)}
    if place is not None:
        entities[place] = {"id": own.get("id", place.partition(" ")[2])} | known | written
    arguments = _by_slot(request.arguments)
    call = _Call(effect, arguments, own, entities, request.language)
    schema = tool.output_schema or {"type": "object", "properties": {"result": {"type": "string"}}}
    begins = "_".join([*noun[-1:], ""])
    # `project_name` is the name of a project, and `subject` that of a subject.
    named = {slot.removeprefix(begins): value for slot, value in arguments.items() if noun and slot.startswith(begins)}
    named |= {noun[-1]: own["name"]} if "name" in own else {}
    values = _by_slot(entities.get(place or "", {})) | named | own | arguments
    value = _value(call, "result", schema, noun, [tool.name, request.arguments], values)
    for found_place, fields in _things_in(value, noun):
        entities[found_place] = entities.get(found_place, written if effect == "create" else {}) | fields
    if place is not None and effect == "delete":
        # Marked, not taken out: an id that the state does not know is made up again.
        entities[place] = {"deleted": True}
    return EmulatedResponse(value=value, state=EmulatorState(entities=entities))


def _place(kind: Noun, identifier: JsonValue) -> str:
    """Return the place of a thing in the state, as in `page 7`."""
    return " ".join([*kind[-1:], str(identifier)])


def _place_named(entities: Mapping[str, JsonObject], kind: Noun, own: JsonObject) -> str | None:
    """Return the place of the thing that a call names: by its id, or by another value that a known thing has."""
    if identifiers := [value for key, value in own.items() if nouns.is_identifier(key)]:
        return _place(kind, identifiers[0])
    alike = (place for place in entities if place.startswith(_place(kind, "")))
    return next((place for place in alike if any(entities[place].get(key) == own[key] for key in own)), None)


def _by_slot(fields: JsonObject) -> JsonObject:
    return {slot_name(name): value for name, value in fields.items()}


def _key_of(fields: Iterable[str], owner: Noun) -> tuple[str, Noun] | None:
    """Return the field that tells a thing from others, and the kind of the thing; None if there is none."""
    names = list(fields)
    keys = [name for name in names if nouns.is_key(name)] or [name for name in names if name in ("name", "title")]
    found = [(name, tuple(map(nouns.singular, words_of(name)[:-1])) or owner) for name in keys]
    return next((key for key in found if nouns.is_same_kind(key[1], owner)), found[0] if found else None)


def _value(
    call: _Call, name: str, schema: JsonValue, owner: Noun, where: list[JsonValue], values: JsonObject
) -> JsonValue:
    """Draw a part of a response that agrees with known `values`; its draws depend on its place, `where`."""
    schema = settled(schema)
    if properties := schema.get("properties"):
        return _thing(call, properties, owner, where, values)
    if schema.get("type") == "array" and (properties := settled(schema.get("items")).get("properties")):
        return _things(call, schema, properties, owner, where)
    return drawn_value(name, schema, derived_random(0, *where, name), call.language)


def _things(
    call: _Call, schema: JsonObject, properties: JsonObject, owner: Noun, where: list[JsonValue]
) -> list[JsonValue]:
    """Return the known things of a kind that agree with the call, and drawn ones until there are one or two."""
    # Items share the values of the call, and differ in their ids and names.
    own = {*call.own, "id", "name", "title"}
    shared = {slot: value for slot, value in call.arguments.items() if slot not in own}
    key = _key_of(properties, owner)
    begins = _place(key[1], "") if key else ""
    alike = (fields for place, fields in call.entities.items() if key and place.startswith(begins) and "id" in fields)
    known = [fields for fields in alike if _agrees(_by_slot(fields), shared)][: schema.get("maxItems")]
    least = schema.get("minItems", 1)
    count = derived_random(0, *where).randint(least, max(least, min(schema.get("maxItems", 2), least + 1)))
    found = [_thing(call, properties, owner, where, shared | _by_slot(fields)) for fields in known]
    drawn = range(len(known), max(1, count))
    return [*found, *(_thing(call, properties, owner, [*where, ordinal], shared) for ordinal in drawn)]


def _agrees(fields: JsonObject, shared: JsonObject) -> bool:
    searched = next((str(shared[slot]) for slot in _SEARCHES if slot in shared), "").casefold()
    is_found = searched in " ".join(map(str, fields.values())).casefold()
    return is_found and all(fields.get(slot, value) == value for slot, value in shared.items())


def _thing(call: _Call, properties: JsonObject, owner: Noun, where: list[JsonValue], values: JsonObject) -> JsonObject:
    """Return an object: `values` first, then those that the state has of it, else drawn from its id."""
    thing: JsonObject = {}
    if (key := _key_of(properties, owner)) is not None:
        name, kind = key
        known = (values[slot] for slot in (slot_name(name), "id") if slot in values)
        thing[name] = next((each for each in known if not schema_fault(properties[name], each, name)), None)
        if thing[name] is None and name in ("name", "title"):
            thing[name] = _drawn(call, name, properties[name], kind, where)
        elif thing[name] is None:
            spoken = name if words_of(name)[-1] in _SPOKEN else "_".join((*kind[-1:], "id"))
            thing[name] = drawn_value(spoken, properties[name], derived_random(0, *where, name), call.language)
        where = [_place(kind, thing[name])]
        values = _by_slot(call.entities.get(where[0], {})) | values
    for name, schema in properties.items():
        known_value = values.get(slot_name(name))
        if name == "status" and name not in call.arguments:  # of a deleted thing it is no longer the stored one
            known_value = _OUTCOMES.get(call.effect, known_value)
        # A known value may not fit the field: a ticket that was `assigned` is `closed` when it is closed.
        if known_value is not None and scalar_type(schema) and not schema_fault(schema, known_value, name):
            thing.setdefault(name, known_value)
        elif scalar_type(schema) is None:
            inner = owner_of(name, owner)
            passed_on = {slot: each for slot, each in values.items() if inner == owner or not nouns.is_key(slot)}
            thing.setdefault(name, _value(call, name, schema, inner, where, passed_on))
        elif name not in thing:
            thing[name] = _drawn(call, name, schema, owner, where)
    return {name: thing[name] for name in properties}


def _drawn(call: _Call, name: str, schema: JsonValue, owner: Noun, where: list[JsonValue]) -> JsonValue:
    """Draw a value; a name by its owner, and by the words that were searched for."""
    rng = derived_random(0, *where, name)
    if name not in ("name", "title"):
        return drawn_value(name, schema, rng, call.language)
    drawn = drawn_value("_".join((*owner[-1:], name)), schema, rng, call.language)
    searched = next((call.arguments[slot] for slot in _SEARCHES if slot in call.arguments), None)
    is_said = call.effect == "list" and isinstance(searched, str) and len(searched) <= _MAX_SEARCHED
    named = f"{searched} {drawn}"
    return named if is_said and not schema_fault(schema, named, name) else drawn


def _things_in(value: JsonValue, owner: Noun) -> Iterator[tuple[str, JsonObject]]:
    """Yield the place and the fields of each object of a response that has an id."""
    if isinstance(value, list):
        for item in value:
            yield from _things_in(item, owner)
    if not isinstance(value, dict):
        return
    scalars = {name: inner for name, inner in value.items() if not isinstance(inner, dict | list)}
    if (key := _key_of(scalars, owner)) is not None and scalars[key[0]] is not None:
        fields = {name: inner for name, inner in scalars.items() if name != key[0]}
        yield _place(key[1], scalars[key[0]]), {"id": scalars[key[0]], **fields}
    for name, inner in value.items():
        yield from _things_in(inner, owner_of(name, owner))
