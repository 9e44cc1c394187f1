"""Each package has one root of its errors, and the file of the root draws the tree."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROOTS = {"sandbox": "SandboxError", "synthesis": "SynthesisError", "astra_jax": "AstraError"}
NOT_OURS = {
    "OutputLimit": "in the jail, beside a tool",
    "ToolError": "in the jail, beside a tool",
    "GivenUp": "a run that was ended has not failed",
    "Terminated": "a run that was ended has not failed",
    "_DeadEnd": "never leaves its file",
    "_Lost": "never leaves its file",
    "_NotJson": "never leaves its file",
    "_Unusable": "never leaves its file",
    "BatchTooLarge": "the sandbox's clients send two halves then",
    "Lost": "the sandbox's clients try again then",
    "SourceWanted": "the sandbox's clients send the source's text then",
    "Unreadable": "the teacher makes a BadReply of it",
}


def classes(package: str) -> dict[str, tuple[list[str], str]]:
    """Name to bases and file of every class of a package."""
    found = {}
    for path in sorted((ROOT / package).rglob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef):
                bases = [ast.unparse(base).split(".")[-1] for base in node.bases]
                found[node.name] = (bases, str(path.relative_to(ROOT)))
    return found


def is_exception(name: str, found: dict[str, tuple[list[str], str]]) -> bool:
    if name in ("Exception", "BaseException") or name.endswith(("Error", "Exit")):
        return True
    return name in found and any(base != name and is_exception(base, found) for base in found[name][0])


def descends(name: str, root: str, found: dict[str, tuple[list[str], str]]) -> bool:
    return name == root or (
        name in found and any(base != name and descends(base, root, found) for base in found[name][0])
    )


@pytest.mark.parametrize("package", ROOTS)
def test_every_error_of_a_package_derives_from_its_root_and_is_drawn(package):
    found, root = classes(package), ROOTS[package]
    errors = [
        name
        for name, (bases, _) in found.items()
        if name not in NOT_OURS and any(is_exception(base, found) for base in bases)
    ]
    assert root in errors
    assert [f"{found[name][1]}: {name}" for name in errors if not descends(name, root, found)] == []
    drawing = ast.get_docstring(ast.parse((ROOT / package / "errors.py").read_text(encoding="utf-8"))) or ""
    assert [name for name in errors if name not in drawing] == []
