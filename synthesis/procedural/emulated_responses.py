"""The embedded teacher as tool server: responses by output schema, entities kept in the state.

Later calls read the writes of earlier ones: an id that a call gave out keeps its fields, and a deleted id is not found.
Values that the state does not hold are drawn from the call itself, so the same call gives the same response.
"""

from __future__ import annotations

from random import Random
from typing import Final, Literal

from synthesis.answers.schema_fault import schema_fault
from synthesis.procedural.argument_values import drawn_value
from synthesis.prompts.emulated_tool_response import EmulateCall, EmulatedResponse, EmulatorState
from synthesis.records import JsonObject, JsonValue, Language
from synthesis.tools.names import words_of
from synthesis.track.seeds import derived_random
from synthesis.trajectories.chains import is_identifier, slot_name

Effect = Literal["create", "update", "delete", "list", "read"]
_VERBS: Final[dict[str, Effect]] = {
    **dict.fromkeys(
        ("create", "add", "book", "register", "new", "insert", "post", "place", "reserve", "open"), "create"
    ),
    **dict.fromkeys(("schedule", "order", "send", "submit", "upload", "save", "start", "issue", "request"), "create"),
    **dict.fromkeys(
        ("update", "set", "edit", "change", "move", "rename", "mark", "confirm", "pay", "assign"), "update"
    ),
    **dict.fromkeys(("close", "complete", "extend", "renew", "adjust"), "update"),
    **dict.fromkeys(("delete", "remove", "cancel", "drop", "clear"), "delete"),
    **dict.fromkeys(("list", "search", "find", "query", "browse"), "list"),
    **dict.fromkeys(("get", "read", "show", "check", "fetch", "track", "calculate", "convert", "compare"), "read"),
}
_GENERIC_OUTPUTS: Final[dict[Effect, JsonObject]] = {
    "create": {"id": {"type": "string"}, "status": {"const": "created"}},
    "update": {"status": {"const": "updated"}},
    "delete": {"status": {"const": "deleted"}},
    "list": {"results": {"type": "array", "minItems": 2, "maxItems": 2, "items": {"type": "object", "properties": {
        "id": {"type": "string"}, "title": {"type": "string"}}}}},
    "read": {"title": {"type": "string"}, "value": {"type": "number"}, "status": {"type": "string"}},
}  # fmt: skip
"""Outputs of tools without an output schema."""


def effect_of(tool_name: str) -> Effect:
    """Tell the effect of a call on the server's state from the words of the tool's name.

    >>> effect_of("book_table"), effect_of("get_order"), effect_of("cancelOrder")
    ('create', 'read', 'delete')
    """
    for word in words_of(tool_name)[:2]:
        if word in _VERBS:
            return _VERBS[word]
    return "read"


def emulate_call(request: EmulateCall, seed: int) -> EmulatedResponse:
    """Answer one call and return the state after it; `seed` is not used: draws depend on the call alone."""
    tool, arguments, state = request.tool, request.arguments, request.state
    effect = effect_of(tool.name)
    named = next((str(value) for name, value in arguments.items() if is_identifier(name)), None)
    known = state.entities.get(named, {}) if named is not None else {}
    if known.get("deleted") is True:
        error = f"{named} 不存在" if request.language == "zh" else f"{named} not found"
        return EmulatedResponse(value=None, state=state, error=error)
    rng = derived_random(0, tool.name, arguments)
    schema = tool.output_schema or {"type": "object", "properties": _GENERIC_OUTPUTS[effect]}
    # Arguments of the call win over stored values: an update answers with its own values.
    context = {slot_name(name): value for name, value in (known | arguments).items()}
    value = _value("result", schema, context, rng, request.language)
    return EmulatedResponse(value=value, state=_after(state, effect, named, known, arguments, value))


def _value(name: str, schema: JsonValue, context: JsonObject, rng: Random, language: Language) -> JsonValue:
    """Draw a response that agrees with known values: a field named like an argument or a stored field repeats it."""
    if not isinstance(schema, dict):
        return drawn_value(name, schema, rng, language)
    if isinstance(properties := schema.get("properties"), dict) and properties:
        return {field: _field(field, inner, context, rng, language) for field, inner in properties.items()}
    if schema.get("type") == "array" and isinstance(items := schema.get("items"), dict) and "properties" in items:
        count = rng.randint(schema.get("minItems", 1), min(schema.get("maxItems", 2), schema.get("minItems", 1) + 1))
        # Items share the values of the call, and differ in their identifiers and names.
        shared = {key: value for key, value in context.items() if not is_identifier(key) and key != "name"}
        return [_value(name, items, shared, rng, language) for _ in range(max(1, count))]
    return drawn_value(name, schema, rng, language)


def _field(field: str, schema: JsonValue, context: JsonObject, rng: Random, language: Language) -> JsonValue:
    slot = slot_name(field)
    # A known value may not fit the field: a ticket that was `assigned` is `closed` when it is closed.
    if slot in context and not isinstance(context[slot], dict | list) and not schema_fault(schema, context[slot], slot):
        return context[slot]
    return _value(field, schema, context, rng, language)


def _after(
    state: EmulatorState, effect: Effect, named: str | None, known: JsonObject, arguments: JsonObject, value: JsonValue
) -> EmulatorState:
    """Return the state after a call, with the entities that it gave out, changed or removed."""
    entities = dict(state.entities)
    if effect == "delete" and named is not None:
        # Marked, not taken out: an id that the state does not know is made up again.
        return EmulatorState(entities=entities | {named: {"deleted": True}})
    for entity in _entities_in(value):
        identifier = next(str(inner) for key, inner in entity.items() if is_identifier(key) and inner is not None)
        kept = {key: inner for key, inner in (arguments | entity).items() if not is_identifier(key)}
        entities[identifier] = entities.get(identifier, {}) | kept
    if named is not None and isinstance(value, dict):
        fresh = {key: inner for key, inner in (known | value | arguments).items() if not is_identifier(key)}
        entities[named] = fresh
    return EmulatorState(entities=entities)


def _entities_in(value: JsonValue) -> list[JsonObject]:
    """Return the objects of a response that carry an identifier."""
    if isinstance(value, list):
        return [entity for item in value for entity in _entities_in(item)]
    if not isinstance(value, dict):
        return []
    inner = [entity for item in value.values() if isinstance(item, dict | list) for entity in _entities_in(item)]
    has_id = any(is_identifier(key) and isinstance(item, str | int) for key, item in value.items())
    return ([value] if has_id else []) + inner
