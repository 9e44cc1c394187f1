"""The reach of a tool's code through its imports: other modules, and functions that run text as code.

`enum.sys.modules['os']`, `from statistics import random`, `codes = re.enum`: every allowed module holds others that are
not. The check resolves names and attributes against the real modules. It finds the ways that a model
writes. A determined author can hide others, as Python has more ways to an object than its syntax tree tells: the
sandbox is the wall.
"""

from __future__ import annotations

import ast
import functools
import importlib
import operator
import string
import typing
import warnings
from collections.abc import Iterator, Mapping, Set
from types import ModuleType
from typing import Final

from synthesis.stage import Rejected

READS_TEXT_AS_CODE: Final = (
    operator.attrgetter, operator.methodcaller, string.Formatter, typing.get_type_hints, typing.ForwardRef,
    functools.singledispatch, functools.singledispatchmethod,
)  # fmt: skip
"""Functions that give attributes by their names, or evaluate annotations."""

_Scope = (
    ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
)


def check_reach(tree: ast.Module, allowed: Set[str]) -> None:
    """Check that `tree` takes from its modules neither a module outside `allowed` nor a way to one.

    Raises:
        Rejected: it imports or names such a module, or uses a module otherwise than for its public attributes.
    """
    # In `json.dumps` the name `json` only leads on; a module that stands for itself could be handed to anything.
    bases = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of deprecated names in packages
        imported = dict(_imported(tree, allowed))
        if not imported:
            return  # no name stands for a module: there is no way from any
        for node, own_names in _with_own_names(tree, frozenset()):
            if not isinstance(node, ast.Name | ast.Attribute):
                continue
            found = _resolved(node, imported, allowed)
            if isinstance(node, ast.Name) and (node.id in own_names or not isinstance(node.ctx, ast.Load)):
                continue
            if isinstance(found, ModuleType) and id(node) not in bases:
                raise Rejected("name not allowed", f"module {found.__name__!r} used as a value in line {node.lineno}")
            if any(found is function for function in READS_TEXT_AS_CODE):
                raise Rejected("name not allowed", f"{ast.unparse(node)} in line {node.lineno}")


def _imported(tree: ast.Module, allowed: Set[str]) -> Iterator[tuple[str, object]]:
    """Yield each name that an import binds, with the module or value that it stands for."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                module = _module(alias.name)
                root = alias.name.split(".")[0]
                # `import a.b` binds `a`; `import a.b as c` binds `a.b`.
                yield alias.asname or root, module if alias.asname else _module(root)
        elif isinstance(node, ast.ImportFrom):
            source = _module(node.module or "")
            public = [name for name in vars(source) if not name.startswith("_")]
            for alias in node.names:
                names = vars(source).get("__all__", public) if alias.name == "*" else [alias.name]
                for name in names:
                    yield alias.asname or name, _attribute(source, name, allowed, node.lineno)


def _module(name: str) -> ModuleType:
    if any(part.startswith("_") for part in name.split(".")):
        raise Rejected("import not allowed", f"found the private {name!r}")
    # It is imported into this process: `check_source` has turned away every module outside its list before.
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise Rejected("import not allowed", f"there is no module {name!r}") from error
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # its code may raise anything: pytest's `Skipped` is no `Exception`
        raise Rejected("import not allowed", f"{name!r} ends in {type(error).__name__}") from error


def _resolved(node: ast.expr, imported: Mapping[str, object], allowed: Set[str]) -> object:
    """Return the module or value that a dotted name stands for, as far as it leads through modules; None beyond."""
    if isinstance(node, ast.Name):
        return imported.get(node.id)
    if isinstance(node, ast.Attribute):
        base = _resolved(node.value, imported, allowed)
        if isinstance(base, ModuleType):
            return _attribute(base, node.attr, allowed, node.lineno)
    return None


def _attribute(module: ModuleType, name: str, allowed: Set[str], line: int) -> object:
    where = f"{module.__name__}.{name} in line {line}"
    if name.startswith("_"):
        raise Rejected("name not allowed", where)
    try:
        value = getattr(module, name, None)
    except ImportError:  # a package that loads it when it is asked for, and cannot
        value = None
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # as in `_module`
        raise Rejected("name not allowed", f"{where} ends in {type(error).__name__}") from error
    if isinstance(value, ModuleType) and value.__name__.split(".")[0] not in allowed:
        raise Rejected("import not allowed", f"{where} is the module {value.__name__!r}")
    return value


def _with_own_names(node: ast.AST, own_names: frozenset[str]) -> Iterator[tuple[ast.AST, frozenset[str]]]:
    """Yield every node below `node` with the names that the functions around it bind, other than by an import."""
    for child in ast.iter_child_nodes(node):
        yield child, own_names
        yield from _with_own_names(child, own_names | _bound(child) if isinstance(child, _Scope) else own_names)


def _bound(scope: _Scope) -> frozenset[str]:
    bound, imported = set(), set()
    waiting = list(ast.iter_child_nodes(scope))
    while waiting:
        match node := waiting.pop():
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                imported |= {alias.asname or alias.name.split(".")[0] for alias in names}
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                bound.add(name)
                continue
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                bound.add(name)
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                bound.add(name)
        if not isinstance(node, _Scope):
            waiting += ast.iter_child_nodes(node)
    # A name that is imported here may be the module, even if an assignment binds it, too.
    return frozenset(bound - imported)
