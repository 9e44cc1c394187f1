"""Tool documents that a language model wrote, checked before their schemas are used.

Documents of sources are mended (`schema_repair`), since their authors cannot be asked. A teacher can: it is told the
fault, or the document is not used. Beyond the rules of JSON Schema, a written schema may hold

    no `$` keyword                      but `$comment`, and `$schema` of the whole: others have something fetched
    no `pattern`, `patternProperties`   Python's `re` may not know one, or take exponential time for it

Decided: docs/decisions/environments.md, “A schema that a teacher wrote has no references and no patterns”.
"""

from __future__ import annotations

from typing import Final

from synthesis.records import JsonObject, ToolDocument
from synthesis.stage import Rejected
from synthesis.tools.schema_repair import MAX_SCHEMA_DEPTH, TYPES, as_list, schema_error

_HOLD_VALUES: Final = frozenset({"const", "default", "enum", "example", "examples"})
_HOLD_NAMES: Final = frozenset({"definitions", "dependencies", "dependentRequired", "dependentSchemas", "properties"})
_PATTERNS: Final = frozenset({"pattern", "patternProperties"})


def check_written(document: ToolDocument) -> None:
    """Check that the schemas of a written document, those of its arguments and of its value, can be used.

    Raises:
        Rejected: one cannot; the detail names the place, the expected form and the value.
    """
    for name, schema in (("parameters", document.parameters), ("output_schema", document.output_schema)):
        fault = "" if schema is None else _fault(schema, (name,))
        if schema is not None and not fault and (error := schema_error(schema)):
            fault = f"{name}: expected a JSON Schema, found one that is {error}"
        if fault or (name == "parameters" and (fault := _fault_of_parameters(document.parameters))):
            raise Rejected("schema cannot be used", f"{document.name}: {fault}")


def _fault(part: JsonObject, path: tuple[str, ...]) -> str:
    """Return the first fault of an object that could be taken for a schema, and of those inside; empty if none."""
    if len(path) - 1 > 2 * MAX_SCHEMA_DEPTH:  # after the schema's name; a name or a number between two keywords
        return f"{path[0]}: expected at most {2 * MAX_SCHEMA_DEPTH} levels of keywords and names, found more"
    where = "/".join(path).replace("\n", " ")
    for kind in as_list(part.get("type")):
        if isinstance(kind, str) and kind not in TYPES:
            return f"{where}/type: expected one of {', '.join(sorted(TYPES))}, found {kind[:40]!r}"
    for keyword, value in part.items():
        if keyword in _PATTERNS:
            return f"{where}: expected a description of what is meant, found {keyword!r}"
        # At the top `$schema` only names a draft; inside, validators would change over to that draft.
        names_a_draft = keyword == "$schema" and isinstance(value, str) and len(path) == 1
        if keyword.startswith("$") and keyword != "$comment" and not names_a_draft:
            return f"{where}: expected the schema itself written out, found {keyword!r}"
        places = {"": value}
        if isinstance(value, list):
            places = {str(place): each for place, each in enumerate(value)}
        elif isinstance(value, dict) and keyword in _HOLD_NAMES:
            places = value
        for place, each in places.items() if keyword not in _HOLD_VALUES else ():
            inner = (*path, keyword, place) if place or places is value else (*path, keyword)
            if isinstance(each, dict) and (fault := _fault(each, inner)):
                return fault
    return ""


def _fault_of_parameters(schema: JsonObject) -> str:
    """Return the reason why a valid schema is not one of named arguments; empty if it is one."""
    if schema.get("type", "object") != "object":
        return f"parameters/type: expected 'object', found {schema['type']!r}"
    properties: JsonObject = schema.get("properties", {})
    for name, inner in properties.items():
        if not isinstance(inner, dict):  # `true`, which JSON Schema allows
            return f"parameters/properties/{name}: expected a schema that is an object, found {inner!r}"
    if strange := [name for name in schema.get("required", ()) if name not in properties]:
        return f"parameters/required: expected names of {list(properties)}, found {strange}"
    return ""
