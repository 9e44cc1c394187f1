"""Typed Python functions as tools, read from the source text; nothing is imported or run."""

from __future__ import annotations

import ast
import json
from contextlib import suppress
from typing import Final

from synthesis.python_source import syntax_tree
from synthesis.records import JsonObject, canonical_json
from synthesis.tools.documents import SourceServer, SourceTool

Function = ast.FunctionDef | ast.AsyncFunctionDef

_TYPES: Final[dict[str, JsonObject]] = {
    "str": {"type": "string"}, "int": {"type": "integer"}, "float": {"type": "number"}, "bool": {"type": "boolean"},
    "None": {"type": "null"}, "dict": {"type": "object"},
    **{key: {"type": "array", "items": {}} for key in ("list", "tuple", "set")},
}  # fmt: skip


def read_python_functions(source: str, name: str) -> SourceServer:
    """Return the public, fully annotated functions of a module as one server.

    Raises:
        SyntaxError: the text is not Python, or nests deeper than Python reads.
    """
    module = syntax_tree(source)
    functions = [node for node in module.body if isinstance(node, Function) and not node.name.startswith("_")]
    tools = [_tool(function) for function in functions if _is_typed(function.args)]
    return SourceServer(name=name, origin="python", tools=tools, description=ast.get_docstring(module) or "")


def _is_typed(arguments: ast.arguments) -> bool:
    named = arguments.posonlyargs + arguments.args + arguments.kwonlyargs
    return not arguments.vararg and not arguments.kwarg and all(argument.annotation for argument in named)


def _tool(function: Function) -> SourceTool:
    arguments = function.args
    positional = arguments.posonlyargs + arguments.args
    # The syntax tree lists only the defaults that there are: they belong to the last parameters.
    defaults = [None] * (len(positional) - len(arguments.defaults)) + arguments.defaults + arguments.kw_defaults
    properties: JsonObject = {}
    required = []
    for argument, default in zip(positional + arguments.kwonlyargs, defaults, strict=True):
        properties[argument.arg] = annotation_schema(argument.annotation)
        if default is None:
            required.append(argument.arg)
            continue
        with suppress(ValueError, TypeError):  # a default that is computed, or is no JSON
            value = json.loads(canonical_json(ast.literal_eval(default)))
            # A default of None says only that the argument may be left out.
            properties[argument.arg] |= {} if value is None else {"default": value}
    docstring = (ast.get_docstring(function) or "").split("\n\n")[0]  # the summary, without sections on arguments
    returns = annotation_schema(function.returns) if function.returns else None
    parameters = {"type": "object", "properties": properties, "required": required}
    return SourceTool(function.name, docstring, parameters, returns)


def annotation_schema(annotation: ast.expr | None) -> JsonObject:
    """Return the JSON Schema of an annotation; an annotation with no counterpart is "anything".

    >>> annotation_schema(ast.parse("list[int] | None", mode="eval").body)
    {'anyOf': [{'type': 'array', 'items': {'type': 'integer'}}, {'type': 'null'}]}
    >>> annotation_schema(ast.parse("Literal['km', 'mi']", mode="eval").body)
    {'enum': ['km', 'mi'], 'type': 'string'}
    """
    match annotation:
        case ast.Name(id=name) | ast.Constant(value=name) if str(name) in _TYPES:
            return {**_TYPES[str(name)]}
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return {"anyOf": [annotation_schema(left), annotation_schema(right)]}
        case ast.Subscript(value=ast.Name(id="list" | "List" | "Sequence" | "set"), slice=item):
            return {"type": "array", "items": annotation_schema(item)}
        case ast.Subscript(value=ast.Name(id="dict" | "Dict" | "Mapping"), slice=ast.Tuple(elts=[_, value])):
            return {"type": "object", "additionalProperties": annotation_schema(value)}
        case ast.Subscript(value=ast.Name(id="Optional"), slice=item):
            return {"anyOf": [annotation_schema(item), {"type": "null"}]}
        case ast.Subscript(value=ast.Name(id="Literal"), slice=choices):
            elements = choices.elts if isinstance(choices, ast.Tuple) else [choices]
            values = [element.value for element in elements if isinstance(element, ast.Constant)]
            is_text = all(isinstance(value, str) for value in values)
            return {"enum": values, **({"type": "string"} if is_text else {})}
    return {}
