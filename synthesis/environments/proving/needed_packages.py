"""Packages beside the standard library that the sandbox has and tools may import.

config names them ─► the sandbox has them, in one version ─► the teacher is told ─► each tool says which it imports
"""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress

from sandbox.client import AsyncSandboxClient
from synthesis.errors import InputUnusable
from synthesis.python_source import imported_modules, tool_syntax_tree
from synthesis.records import EnvironmentTool, NeededPackage
from synthesis.stage import Rejected


async def packages_of_sandbox(client: AsyncSandboxClient, names: Sequence[str]) -> tuple[NeededPackage, ...]:
    """Return packages as the sandbox has them; from now on the client's calls say that they need them.

    Raises:
        PackagesMissing: the sandbox has not all of them.
        InputUnusable: one is not installed here, where the check of code resolves the names that it uses.
        SandboxUnavailable: the sandbox gives no answer.
    """
    found = await client.require_packages(names)
    for name, package in found.items():
        for module in package.modules:
            if importlib.util.find_spec(module.partition(".")[0]) is None:
                raise InputUnusable(
                    f"the package {name} must be installed here, too, where the code of tools is checked; found no "
                    f"module {module}: pip install {name}"
                )
    return tuple(
        NeededPackage(name=name, version=package.version, modules=package.modules) for name, package in found.items()
    )


def with_needed_packages(tool: EnvironmentTool, allowed: Sequence[NeededPackage]) -> EnvironmentTool:
    """Return the tool with those of the allowed packages that its code imports; its own list is not trusted.

    >>> from synthesis.records import ToolDocument
    >>> document = ToolDocument(name="f", description="", parameters={})
    >>> numpy = NeededPackage(name="numpy", version="2.4.6", modules=("numpy",))
    >>> tool = EnvironmentTool(document=document, source="import math, numpy.linalg")
    >>> [package.name for package in with_needed_packages(tool, [numpy]).packages]
    ['numpy']
    >>> with_needed_packages(tool, []).packages
    ()
    """
    roots: set[str] = set()
    with suppress(SyntaxError):  # `check_source` rejects it
        nodes = ast.walk(tool_syntax_tree(tool.source)) if allowed else ()
        roots = {module.partition(".")[0] for node in nodes for module in imported_modules(node)}
    needed = tuple(package for package in allowed if roots & module_roots([package]))
    return tool if tool.packages == needed else tool.model_copy(update={"packages": needed})


def module_roots(packages: Sequence[NeededPackage]) -> set[str]:
    """Return the first names of the packages' modules, of which none is the standard library's.

    >>> sorted(module_roots([NeededPackage(name="x", version="1", modules=("os", "google.x"))]))
    ['google']
    """
    roots = {module.partition(".")[0] for package in packages for module in package.modules}
    return roots - set(sys.stdlib_module_names)


def require_listed(tools: Sequence[EnvironmentTool], allowed: Mapping[str, NeededPackage]) -> None:
    """Check that the sandbox has each package that a record's tools need, with the same modules; versions may differ.

    Raises:
        Rejected: a package was not asked of the sandbox, or the record gives it other modules.
    """
    for tool in tools:
        for package in tool.packages:
            has = allowed.get(package.name)
            if has is None:
                raise Rejected("package not in dataset.json", f"{tool.document.name} needs {package.name}")
            if not set(package.modules) <= set(has.modules):
                found = sorted(set(package.modules) - set(has.modules))
                raise Rejected("package has other modules", f"{package.name} of {tool.document.name}: {found}")
