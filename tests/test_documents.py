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
from tests.guides import GUIDES, NEEDS, RUN_ELSEWHERE, blocks, commands_in

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
            yield re.split(r"\s+#|\s+\\?\||\s+&&|\s+>|\s+&$|, `| in ", command[1])[0].strip()


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


README_AND_GUIDES = [ROOT / "README.md", *GUIDES]


def needs_no_run(command: str) -> bool:
    """Whether a command in a sentence is a name, or has a word in capitals that stands for something of the reader."""
    return not is_whole(command) or len(command.split()) < 3 or bool(re.search(r"\b[A-Z]{1,}\b", command))


@pytest.mark.parametrize("document", README_AND_GUIDES, ids=lambda path: path.stem)
def test_every_command_of_readme_and_guides_is_run_or_marked_with_its_need(document):
    """`tests/test_guides.py` runs all lines of the guides' blocks that have no mark."""
    lines = [line for language, text in blocks(document) if language in ("sh", "") for line in commands_in(text)]
    if document.name == "README.md":
        unrun = [line.text for line in lines if line.is_run and re.match(r"(make|astra|pip) ", line.text)]
        assert [text for text in unrun if re.split(r"\s+#", text)[0].strip() not in RUN_ELSEWHERE] == []
    run = " ".join(line.text for path in GUIDES for _, text in blocks(path) for line in commands_in(text))
    prose = re.sub(r"^```.*?^```", "", document.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    told = [f"astra {command}" for command in commands(prose) if not needs_no_run(f"astra {command}")]
    told += re.findall(r"`(make \w+)`", prose)
    assert [each for each in told if each not in RUN_ELSEWHERE | NEEDS and f"{each} " not in f"{run} "] == []
    for command, need in NEEDS.items():
        assert f"`{command}`" not in prose or need in prose, f"say the need of {command}: {need}"
    assert [file for file in RUN_ELSEWHERE.values() if not (ROOT / file).exists()] == []


@pytest.mark.parametrize("guide", GUIDES, ids=lambda path: path.stem)
def test_a_guide_is_one_page(guide):
    if guide.stem != "pod":
        prose = re.sub(r"^```.*?^```", "", guide.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
        assert len(prose.split()) <= 250


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
