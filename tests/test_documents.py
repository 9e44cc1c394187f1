"""Every command in README and docs is one that the command line takes, and every file that they link to is there."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from astra_jax.cli.arguments import parsed
from astra_jax.cli.commands import astra_parser
from astra_jax.errors import UsageError

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted(
    path for path in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")) if ROOT / "docs" / "log" not in path.parents
)


def commands(text: str) -> Iterator[str]:
    """Yield what follows `astra` in code: in a span, or on a line of a block, without comments."""
    blocks = re.findall(r"^```\w*\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    spans = re.findall(r"`((?:[^`\n]|\n(?!\n))+)`", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL))
    for code in (*lines, *(span.replace("\n", " ") for span in spans)):
        command = re.match(r"(?:[A-Z_]+=\S+ )*astra ([a-z].*)", code.strip().removeprefix("$ "))
        if command is not None:
            yield re.split(r"\s+#|\s+\\?\||\s+&&|\s+>|, `| in ", command[1])[0].strip()


def is_whole(command: str) -> bool:
    """Whether a command has no part that is left out, and names one action."""
    return not re.search(r"…|\||\.\.\.|\*|\[-", command)


CASES = [
    pytest.param(command, id=f"{path.relative_to(ROOT)}: {command[:60]}")
    for path in DOCUMENTS
    if path.name != "CHANGELOG.md"  # which names what has left
    for command in dict.fromkeys(commands(path.read_text(encoding="utf-8")))
    if is_whole(command)
]


def test_there_are_commands_to_look_at():
    assert len(CASES) > 40


@pytest.mark.parametrize("command", CASES)
def test_a_command_is_one_that_the_command_line_takes(command):
    words = shlex.split(command)
    parser = astra_parser()
    if len(words) == 1 and words[0] in parser._subparsers._group_actions[0].choices:  # type: ignore[union-attr]
        return  # the name of a command, in a sentence
    try:
        parsed(parser, words)
    except UsageError as error:
        # A sentence may name a command without what it needs, or with a word that stands for a name.
        shortened = r"the following arguments are required|.*expected at least one argument|.*invalid choice: '[A-Z]+'"
        if not re.match(shortened, str(error)):
            raise


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_link_leads_to_a_file_and_a_heading(document):
    text = re.sub(r"^```.*?^```", "", document.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"https?://", target):
            continue
        name, _, heading = target.partition("#")
        file = (document.parent / name).resolve() if name else document
        assert file.exists(), target
        if heading:
            headings = re.findall(r"^#+ (.+)$", file.read_text(encoding="utf-8"), flags=re.MULTILINE)
            assert heading in {re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in headings}, target
