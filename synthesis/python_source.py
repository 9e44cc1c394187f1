"""Python source as a syntax tree, without running it: foreign source may be anything."""

from __future__ import annotations

import ast
import gc
from typing import Final

DEEPEST_TOOL: Final = 100
"""Most levels of a tool's syntax tree; a walk or a print of a tree takes several of Python's 1,000 frames for each."""


def syntax_tree(source: str) -> ast.Module:
    """Return the syntax tree of a module.

    Python before 3.11.8 and 3.12.2 keeps one count of depth for all trees that it builds. If the garbage collector runs
    meanwhile, and ends an object that has a tree built too (a task that failed and was not awaited, for its traceback),
    `ast.parse` raises `SystemError` (CPython issue 106905). So nothing is collected meanwhile.

    >>> ast.unparse(syntax_tree("x=1"))
    'x = 1'

    Raises:
        SyntaxError: the text is not Python, or nests deeper than Python reads.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        return ast.parse(source)
    except ValueError as error:  # a null byte, half of a surrogate pair
        raise SyntaxError(str(error)) from error
    except (RecursionError, MemoryError) as error:  # the parser's own limits
        raise SyntaxError("nests deeper than Python reads") from error
    finally:
        if collects:
            gc.enable()


def imported_modules(node: ast.AST) -> list[str]:
    """Return the names of the modules that a statement imports from, a relative one with its dots.

    >>> [imported_modules(node) for node in syntax_tree("import a, b.c; from .d import e; f()").body]
    [['a', 'b.c'], ['.d'], []]
    """
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return ["." * node.level + (node.module or "")] if isinstance(node, ast.ImportFrom) else []


def tool_syntax_tree(source: str) -> ast.Module:
    """Return the syntax tree of a tool's code, shallow enough to be walked and printed by recursion.

    Raises:
        SyntaxError: the text is not Python, or nests deeper than `DEEPEST_TOOL`.
    """
    tree = syntax_tree(source)
    level: list[ast.AST] = [tree]
    for _ in range(DEEPEST_TOOL):
        level = [child for node in level for child in ast.iter_child_nodes(node)]
        if not level:
            return tree
    raise SyntaxError(f"nests deeper than {DEEPEST_TOOL} levels")
