"""The commands of README and guides: their blocks in order, and the marks of the lines that a test cannot run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[1]
GUIDES: Final = sorted((ROOT / "docs" / "guides").glob("*.md"))
MARK: Final = re.compile(r"\s+# needs (?=\w)")
RUN_ELSEWHERE: Final = {
    "make quickstart": "tests/astra_jax/recipes/test_whole_quickstart.py",
    "make test": ".ci/run",
    "astra quickstart": "tests/astra_jax/recipes/test_whole_quickstart.py",
    "make docs": "tests/test_site.py",
    "make licences": "tests/test_licences.py",
    "astra config synthesis": "tests/astra_jax/test_config_keys.py",
    "astra doctor": "tests/astra_jax/cli/test_doctor.py",
}
"""Commands of README and guides, outside of blocks that are run, with the files that run them."""

NEEDS: Final = {"make real": "weights and hours", "make sbom": "network"}
"""Commands of README that no test runs, with words that stand beside each there and say its need."""


class Line(NamedTuple):
    """One command of a block, with the lines that it goes over."""

    text: str
    is_run: bool
    """Whether a test runs it; otherwise it is marked with its need."""


def blocks(path: Path) -> list[tuple[str, str]]:
    """Return language and text of each block of a document."""
    return re.findall(r"^```(\w*)\n(.*?)^```", path.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def commands_in(block: str) -> list[Line]:
    r"""Return the commands of a shell block; a here-document and a continued line belong to their command.

    >>> lines = commands_in("a \\\n  b    # why\nc    # needs a GPU\nd <<'END'\ne\nEND\n")
    >>> [(len(line.text.splitlines()), line.is_run) for line in lines]
    [(2, True), (1, False), (3, True)]
    """
    found = re.findall(r"(?:.*\\\n)*.*<<'END'\n(?:.*\n)*?END\n|(?:.*\\\n)*.*\S.*\n", block)
    return [Line(text.rstrip("\n"), not MARK.search(text)) for text in found]


def script(path: Path) -> str:
    """Return one Bash script of all blocks of a guide that are run, in order."""
    parts = []
    for language, text in blocks(path):
        if language == "sh":
            parts += [line.text for line in commands_in(text) if line.is_run]
        elif language == "python":
            parts.append(f"python - <<'END'\n{text}END")
    return "\n".join(parts) + "\n"
