"""The rules for a tool's code: one function of JSON arguments, checked on its syntax tree.

The check tells honest tools from slips and shortcuts. It does not confine code: the sandbox does.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence, Set
from functools import lru_cache
from typing import Final

from synthesis.answers.same_answer import same_answer
from synthesis.environments.proving.module_reach import check_reach
from synthesis.environments.proving.needed_packages import module_roots
from synthesis.python_source import imported_modules, tool_syntax_tree
from synthesis.records import JsonValue, NeededPackage, ToolDocument
from synthesis.stage import Rejected
from synthesis.tools.written_documents import check_written

ALLOWED_MODULES: Final = frozenset({
    "bisect", "collections", "copy", "dataclasses", "decimal", "difflib", "enum", "fractions", "functools", "heapq",
    "itertools", "json", "math", "numbers", "operator", "re", "statistics", "string", "textwrap", "typing",
    "unicodedata",
})  # fmt: skip
"""Standard-library modules without input, output, clock or randomness."""

FORBIDDEN_NAMES: Final = frozenset({
    "open", "print", "input", "exec", "eval", "compile", "__import__", "globals", "locals", "vars", "breakpoint",
    "exit", "quit", "help", "memoryview", "id", "hash", "getattr", "setattr", "delattr",
})  # fmt: skip

FRAMES: Final = frozenset({
    "gi_frame", "gi_code", "gi_yieldfrom", "cr_frame", "cr_code", "cr_await", "ag_frame", "ag_code", "tb_frame",
    "tb_next", "f_back", "f_builtins", "f_code", "f_globals", "f_locals",
})  # fmt: skip
"""Attributes that lead from a generator or a traceback to the names of the process that runs the code."""


_RUN_SQL: Final = frozenset({"execute", "executemany", "executescript"})


def check_source(
    source: str,
    document: ToolDocument,
    golds: tuple[JsonValue, ...],
    packages: Sequence[NeededPackage] = (),
    *,
    takes_database: bool = False,
) -> None:
    """Check a tool's document, and its code without running it; `golds` are the answers that only its data may hold.

    Beside modules of the standard library it may import those of `packages`; they are imported here to resolve the
    names that it uses. If it takes a database, its statements must be constant.

    Raises:
        Rejected: the document's schema cannot be used; or the code does not parse, uses names that are not allowed, has
            another signature than its document, or tells a gold.
    """
    check_written(document)
    functions, constants = _checked_code(source, ALLOWED_MODULES | module_roots(packages), takes_database)
    _check_signature(functions, document)
    for line, constant in constants:
        if any(_tells(constant, gold) for gold in golds):
            raise Rejected("gold in code", f"line {line} holds {constant!r}")


@lru_cache(maxsize=2048)  # a tool is checked as a sibling, in its proof and in its verification
def _checked_code(
    source: str, allowed: frozenset[str], takes_database: bool
) -> tuple[tuple[tuple[str, ast.arguments], ...], tuple[tuple[int, object], ...]]:
    """Return the functions of a module with their parameters, and its constants with their lines."""
    try:
        tree = tool_syntax_tree(source)
    except SyntaxError as error:
        raise Rejected("code does not parse", str(error)) from error
    nodes = list(ast.walk(tree))
    for node in nodes:
        _check_allowed(node, allowed)
    if takes_database:
        _check_statements(nodes)
    check_reach(tree, allowed)
    functions = tuple((node.name, node.args) for node in tree.body if isinstance(node, ast.FunctionDef))
    return functions, tuple((node.lineno, node.value) for node in nodes if isinstance(node, ast.Constant))


def _check_allowed(node: ast.AST, allowed: Set[str]) -> None:
    for module in imported_modules(node):  # with its dot a relative import is in no list of modules
        if module.split(".")[0] not in allowed:
            raise Rejected("import not allowed", f"found {module!r}, allowed are {sorted(allowed)}")
    is_special = isinstance(node, ast.Name) and node.id.startswith("__") and node.id.endswith("__")
    if isinstance(node, ast.Name) and (node.id in FORBIDDEN_NAMES or (is_special and node.id != "__name__")):
        raise Rejected("name not allowed", f"{node.id!r} in line {node.lineno}")
    if isinstance(node, ast.Attribute | ast.MatchClass):  # `case Frame(f_back=x)` reads an attribute, too
        for attribute in [node.attr] if isinstance(node, ast.Attribute) else node.kwd_attrs:
            if attribute.startswith("__") or attribute in FRAMES:
                raise Rejected("name not allowed", f"{attribute!r} in line {node.lineno}")
    if isinstance(node, ast.AsyncFunctionDef | ast.Await | ast.Global | ast.Nonlocal):
        raise Rejected("statement not allowed", f"{type(node).__name__} in line {node.lineno}")


def _check_statements(nodes: Sequence[ast.AST]) -> None:
    """Check that methods that run SQL are called at once, with a constant: no argument of a call becomes SQL."""
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    constant = {id(call.func) for call in calls if call.args and isinstance(call.args[0], ast.Constant)}
    for node in nodes:
        if isinstance(node, ast.Attribute) and node.attr in _RUN_SQL and id(node) not in constant:
            raise Rejected("statement is not constant", f"SQL in line {node.lineno}")


def _check_signature(functions: Sequence[tuple[str, ast.arguments]], document: ToolDocument) -> None:
    named = [arguments for name, arguments in functions if name == document.name]
    if len(named) != 1:
        raise Rejected("signature differs from document", f"expected one function {document.name}")
    arguments = named[0]
    if arguments.vararg or arguments.kwarg or arguments.posonlyargs:
        raise Rejected("signature differs from document", "expected named parameters only")
    positional = [argument.arg for argument in arguments.args]
    optional = positional[len(positional) - len(arguments.defaults) :]
    optional += [a.arg for a, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if default]
    found = {argument.arg for argument in arguments.args + arguments.kwonlyargs}
    documented = set(document.parameters.get("properties", {}))
    # `state` comes from the episode, not from the model: a document need not have it.
    if found - {"state"} != documented - {"state"}:
        raise Rejected("signature differs from document", f"expected {sorted(documented)}, found {sorted(found)}")
    required = found - set(optional) - {"state"}
    if required != set(document.required):
        detail = f"expected required {sorted(document.required)}, found {sorted(required)}"
        raise Rejected("signature differs from document", detail)


def _tells(constant: object, gold: JsonValue) -> bool:
    if isinstance(gold, list | tuple):
        return any(_tells(constant, item) for item in gold)
    if isinstance(gold, bool) or gold is None:
        return False
    if isinstance(constant, str):
        # Inside a longer text as well: code must not carry the answer in a table of its own.
        return str(gold).casefold() in constant.casefold()
    return isinstance(constant, int | float) and same_answer(gold, constant)
