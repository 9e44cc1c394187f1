"""Any text gives a syntax tree or one clear error."""

from __future__ import annotations

import ast
import gc

import pytest

from synthesis.python_source import DEEPEST_TOOL, syntax_tree, tool_syntax_tree

DEEP = {
    "signs": "x = " + "-" * 100_000 + "1",
    "a sum": "x = 1" + " + 1" * 5_000,
    "attributes": "x" + ".x" * 20_000,
    "calls": "x" + "()" * 3_000,
    "brackets": "x = " + "[" * 150 + "]" * 150,
    "branches": "if x: pass\n" + "elif x: pass\n" * 200,
}


class _ParsesAtItsEnd:
    """Builds a tree when it is collected, as the traceback of a failed task does that was not awaited."""

    def __init__(self):
        self.itself = self  # so that only the collector ends it

    def __del__(self):
        ast.parse("((x for x in y) for y in z)")


def test_a_tree_is_built_although_the_collector_ends_objects_meanwhile():
    source = "\n".join(f"x = [[[[{number}]]]]" for number in range(500))
    thresholds = gc.get_threshold()
    try:
        gc.set_threshold(50, 1, 1)
        for _ in range(20):
            for _ in range(100):
                _ParsesAtItsEnd()
            tree = syntax_tree(source)
    finally:
        gc.set_threshold(*thresholds)
    assert gc.isenabled()
    assert ast.unparse(tree) == source


@pytest.mark.parametrize("deep", DEEP)
def test_code_too_deep_to_be_walked_does_not_parse(deep):
    with pytest.raises(SyntaxError, match="nests deeper than"):
        tool_syntax_tree(DEEP[deep])


@pytest.mark.parametrize("text", ["x = '\0'", "x = '\ud800'", "def f(:"])
def test_text_that_is_not_python_does_not_parse(text):
    with pytest.raises(SyntaxError):
        syntax_tree(text)


def test_code_as_deep_as_may_be_can_be_printed():
    deepest = "if x:\n    pass\n" + "elif x:\n    pass\n" * (DEEPEST_TOOL - 4)
    assert ast.unparse(tool_syntax_tree(deepest)) + "\n" == deepest
    with pytest.raises(SyntaxError, match="nests deeper than 100 levels"):
        tool_syntax_tree(deepest + "elif x:\n    pass\n")
