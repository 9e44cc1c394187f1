"""Small Git repositories, always the same to the byte, for a Git tool server to work in.

`python -m synthesis.tools.demo_repositories` makes them in the current folder: fixed authors, dates and texts,
two branches each, one change that is staged and one that is not.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Final

COMMITS: Final[dict[str, tuple[tuple[str, str, str], ...]]] = {
    "notes": (
        ("todo.md", "buy paper\n", "Start the list"),
        ("todo.md", "buy paper\ncall Ana\n", "Add the call"),
        ("plan.md", "Monday: draft\n", "Plan the week"),
    ),
    "shop": (
        ("price.csv", "tea,4\n", "List tea"),
        ("price.csv", "tea,4\ncoffee,6\n", "List coffee"),
        ("stock.csv", "tea,30\n", "Count the stock"),
    ),
    "site": (
        ("index.html", "<h1>Hello</h1>\n", "First page"),
        ("about.html", "<p>About us</p>\n", "Say who we are"),
        ("index.html", "<h1>Welcome</h1>\n", "Greet better"),
    ),
}
README: Final = "readme.txt"
"""A file of every commit of both branches, changed since, so that branches can be switched with work in hand."""
GIT_ENVIRONMENT: Final = {
    "GIT_AUTHOR_NAME": "Ada",
    "GIT_AUTHOR_EMAIL": "ada@example.org",
    "GIT_COMMITTER_NAME": "Ada",
    "GIT_COMMITTER_EMAIL": "ada@example.org",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_SYSTEM": os.devnull,
    "LC_ALL": "C.UTF-8",
}
_INIT: Final = ("init", "--quiet", "--initial-branch=main", "--template=")  # no hooks of this machine


def make_repositories(directory: Path) -> None:
    """Make every repository under `directory`, itself an empty one, so that a server can be confined to it.

    Raises:
        OSError: there is no `git` command.
        subprocess.CalledProcessError: git failed; its message is in `stderr`.
    """
    _git(directory, *_INIT)
    for name, commits in COMMITS.items():
        repository = directory / name
        repository.mkdir()
        _git(repository, *_INIT)
        (repository / README).write_text(f"The {name} of Ada.\n")
        for ordinal, (file, text, message) in enumerate(commits):
            (repository / file).write_text(text)
            _git(repository, "add", file, README)
            _git(repository, "commit", "--quiet", f"--message={message}", day=ordinal + 2)
            if ordinal == 0:
                _git(repository, "branch", "draft")  # it stays here while `main` goes on
        (repository / "todo.txt").write_text(f"check {name}\n")
        _git(repository, "add", "todo.txt")
        (repository / README).write_text(f"The {name} of Ada.\nIn work.\n")


def _git(repository: Path, *arguments: str, day: int = 2) -> None:
    date = f"2026-02-{day:02d}T09:00:00+0000"  # hashes of commits depend on it
    environment = {**os.environ, **GIT_ENVIRONMENT, "GIT_AUTHOR_DATE": date, "GIT_COMMITTER_DATE": date}
    subprocess.run(["git", *arguments], cwd=repository, env=environment, check=True, capture_output=True, timeout=60)


if __name__ == "__main__":
    make_repositories(Path.cwd())
