"""Functions that a config names: built-in ones, and those of the user as `MODULE:FUNCTION`.

A module is looked for beside the config first, then in the working directory, then among the installed packages.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

Function = Callable[..., Any]


def function_named(name: str, built_in: Mapping[str, Function], folder: Path | None = None) -> Function:
    """Return the function that a config names; `folder` is the folder of the config.

    Raises:
        ValueError: there is no such name, module or function. The message leaves out the name, which the error of a
            config shows.

    >>> function_named("math:sqrt", {})(9)
    3.0
    >>> function_named("f2", {"f1": max})
    Traceback (most recent call last):
    ValueError: expected one of f1, or MODULE:FUNCTION of a file of yours
    """
    if name in built_in:
        return built_in[name]
    module_name, colon, function_name = name.partition(":")
    if not (colon and function_name.isidentifier() and all(map(str.isidentifier, module_name.split(".")))):
        choices = f"one of {', '.join(built_in)}, or " if built_in else ""
        raise ValueError(f"expected {choices}MODULE:FUNCTION of a file of yours")
    if module_name.endswith(".py"):
        raise ValueError(f"expected a module, not a file: write {module_name.removesuffix('.py')}:{function_name}")
    module = _imported(module_name, folder)
    where = getattr(module, "__file__", None) or module_name
    function = getattr(module, function_name, None)
    if function is None:
        raise ValueError(f"{where} defines no {function_name}; name a function that it defines")
    if not callable(function):
        raise ValueError(f"{function_name} in {where} is no function but a {type(function).__name__}; name a function")
    return function


def own_modules(*names: str | None) -> dict[str, Path]:
    """Return the modules of the named functions that are not built in, each with the folder that it is imported from.

    The functions have been found by `function_named` in this process.
    """
    roots = {}
    for module_name in {name.partition(":")[0] for name in names if name is not None and ":" in name}:
        file = sys.modules[module_name].__file__
        if file is not None:  # a module that is written in C is part of Python
            levels = module_name.count(".") + (Path(file).name == "__init__.py")
            roots[module_name] = Path(file).resolve().parents[levels]
    return roots


def _imported(module_name: str, folder: Path | None) -> ModuleType:
    searched = [*([] if folder is None else [folder.resolve()]), Path.cwd()]
    with _first_on_path(searched):
        try:
            return importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            # Otherwise a module that the user's own module imports is missing.
            if error.name is not None and f"{module_name}.".startswith(f"{error.name}."):
                places = " or ".join(dict.fromkeys(map(str, searched)))
                file = module_name.replace(".", "/")
                raise ValueError(f"there is no module {module_name}: put {file}.py into {places}") from error
            raise ValueError(f"the module {module_name} cannot be imported: {error}; install its imports") from error
        except Exception as error:
            problem = f"{type(error).__name__}: {' '.join(str(error).split())}"
            raise ValueError(f"the module {module_name} cannot be imported: {problem}; mend it") from error


@contextlib.contextmanager
def _first_on_path(folders: list[Path]) -> Iterator[None]:
    """Look for modules in some folders first, as Python does in a script's own folder."""
    before = list(sys.path)
    sys.path[:0] = map(str, folders)
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path[:] = before
