"""The identity of code is found from imports; comments and docstrings do not change it, any other edit does."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from synthesis.run import code
from synthesis.run.code import digest_of_code, source_of

ROOT = Path(__file__).parents[3]


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """A copy of the packages, to edit."""
    for package in ("astra_jax", "synthesis", "sandbox"):
        shutil.copytree(ROOT / package, tmp_path / "tree" / package, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(code, "ROOT", tmp_path / "tree")
    return tmp_path / "tree"


def changed(before: dict, now: dict) -> list[str]:
    return sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.count(old) >= 1
    path.write_text(text.replace(old, new, 1), encoding="utf-8")


def test_comments_docstrings_and_layout_change_nothing(tree):
    stage = "astra_jax.rl.stage"
    before = source_of(stage)
    for path in tree.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        path.write_text(f"# a comment\n{text}\n\n# another\n", encoding="utf-8")
    edit(tree / "astra_jax/model/qwen3.py", '"""', '"""In other words: ')
    assert source_of(stage) == before


@pytest.mark.parametrize("stage", ["astra_jax.sft.stage", "astra_jax.rl.stage", "astra_jax.evaluate.environments"])
def test_a_changed_forward_pass_changes_the_file_it_is_in_alone(tree, stage):
    before = source_of(stage)
    edit(tree / "astra_jax/model/qwen3.py", "x32 * x32", "2 * x32 * x32")
    assert changed(before, source_of(stage)) == ["source of astra_jax/model/qwen3.py"]


def test_files_that_the_imports_reach_are_named_across_packages_and_others_are_not():
    named = source_of("astra_jax.rl.stage")
    for file in (
        *("astra_jax/rl/grpo_loss.py", "astra_jax/model/qwen3.py", "astra_jax/engine/schedule.py"),
        *("astra_jax/episodes/rewards.py", "synthesis/answers/same_answer.py", "synthesis/records/environments.py"),
    ):
        assert f"source of {file}" in named
    assert not [name for name in named if "/serve/" in name or "/report/" in name or "/prompts/" in name]


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ("def f():\n    return 1", 'def f():\n    """One."""\n    return 1', True),
        ("x: int\ny: int", 'x: int\n"""Of x."""\ny: int', True),
        ("class A:\n    pass", 'class A:\n    """A."""\n    pass', True),
        ("if a:\n    b()", "if a:\n    b()  # why", True), ("f(1)", "f( 1 )", True), ("f('text')", "f('Text')", False),
        ("x = 'text'", "x = 'text '", False), ("a + b * c", "(a + b) * c", False),
        ("@jit\ndef f(): ...", "def f(): ...", False),
        ('class A(Exception):\n    """An error."""', "x = 1", False),  # a body of a docstring alone
        ("f('')", "f()", False),
        ("x = None", "x = 0", False),
        ("f(x=None)", "f(y=None)", False),
        ("f'{x}'", "f'{x!r}'", False),
        ("u'text'", "'text'", True),
    ],
)  # fmt: skip
def test_code_is_the_same_if_it_computes_the_same(one, other, is_same):
    assert (digest_of_code(one) == digest_of_code(other)) is is_same


def test_every_version_of_python_names_code_alike():
    """Python 3.11, 3.12 and 3.13 each dump this in another way, and 3.11 prints it in another way than the others."""
    source = """
def f(a: int, *, b=None) -> str:
    quoted = "it's" if a else '"x"'
    return f"{a:>{b}}{quoted['x']!r}" f'{a:{b}} {{}}'
"""
    assert digest_of_code(source) == "33c9b9d4540e37d2"


def test_of_an_installed_module_of_a_user_its_own_package_alone_is_followed(tmp_path):
    """Else every package that it imports would be read."""
    for folder in ("site-packages", "mine"):
        package = tmp_path / folder / "rewards"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text("")
        (package / "ours.py").write_text("import other\nfrom rewards.parts import PART\n")
        (package / "parts.py").write_text("PART = 1\n")
        (tmp_path / folder / "other.py").write_text("OTHER = 1\n")
    installed = source_of(own={"rewards.ours": tmp_path / "site-packages"})
    own = ("rewards/__init__.py", "rewards/ours.py", "rewards/parts.py")
    assert set(installed) == {f"source of {file}" for file in own}
    assert set(source_of(own={"rewards.ours": tmp_path / "mine"})) == {*installed, "source of other.py"}
