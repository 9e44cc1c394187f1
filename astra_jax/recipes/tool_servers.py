"""Help for the real tool servers of the shipped configs: they answer the same on any day.

python -m astra_jax.recipes.tool_servers repositories                 make small Git repositories in this folder
python -m astra_jax.recipes.tool_servers clock TIME PACKAGE [ARG…]    run a Python server whose clock stands still
"""

from __future__ import annotations

import os
import pkgutil
import subprocess
import sys
from collections.abc import Sequence
from datetime import datetime, tzinfo
from importlib import import_module
from pathlib import Path
from typing import Final

_COMMITS: Final = {
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
"""File, text and message of each commit by repository; the branch `draft` ends at the first one."""
_README: Final = "readme.txt"
"""A file of every commit of both branches, changed since, so that branches can be switched with work in hand."""
_GIT_ENVIRONMENT: Final = {
    **{f"GIT_{who}_NAME": "Ada" for who in ("AUTHOR", "COMMITTER")},
    **{f"GIT_{who}_EMAIL": "ada@example.org" for who in ("AUTHOR", "COMMITTER")},
    **{f"GIT_CONFIG_{where}": os.devnull for where in ("GLOBAL", "SYSTEM")},
    "LC_ALL": "C.UTF-8",
}


def make_repositories(directory: Path) -> None:
    """Make every repository under `directory`, itself an empty one, so that a server can be confined to it."""

    def git(repository: Path, *arguments: str, day: int = 2) -> None:
        date = f"2026-02-{day:02d}T09:00:00+0000"  # hashes of commits depend on it
        dates = {"GIT_AUTHOR_DATE": date, "GIT_COMMITTER_DATE": date}
        subprocess.run(["git", *arguments], cwd=repository, env=os.environ | _GIT_ENVIRONMENT | dates, check=True)

    for repository in (directory, *(directory / name for name in _COMMITS)):
        repository.mkdir(exist_ok=True)
        git(repository, "init", "--quiet", "--initial-branch=main", "--template=")  # no hooks of this machine
    for name, commits in _COMMITS.items():
        repository = directory / name
        (repository / _README).write_text(f"The {name} of Ada.\n")
        for ordinal, (file, text, message) in enumerate(commits):
            (repository / file).write_text(text)
            git(repository, "add", file, _README)
            git(repository, "commit", "--quiet", f"--message={message}", day=ordinal + 2)
            if ordinal == 0:
                git(repository, "branch", "draft")
        (repository / "todo.txt").write_text(f"check {name}\n")
        git(repository, "add", "todo.txt")
        (repository / _README).write_text(f"The {name} of Ada.\nIn work.\n")


def run_frozen(moment: datetime, package_name: str, arguments: Sequence[str]) -> None:
    """Run a package's `main` with `moment` as the time of every `datetime` that its modules import by name."""

    class FrozenDatetime(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> FrozenDatetime:
            # Without a zone, `now()` is the time on the wall: that of the moment's own offset.
            local = moment.astimezone(tz) if tz is not None else moment.replace(tzinfo=None)
            return cls.combine(local.date(), local.timetz())

    package = import_module(package_name)
    names = [each.name for each in pkgutil.iter_modules(package.__path__) if each.name != "__main__"]
    for module in (package, *(import_module(f"{package_name}.{name}") for name in names)):
        if getattr(module, "datetime", None) is datetime:
            module.__dict__["datetime"] = FrozenDatetime
    sys.argv = [package_name, *arguments]
    package.main()


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["repositories"]:
            make_repositories(Path.cwd())
        case ["clock", time, package, *rest]:
            run_frozen(datetime.fromisoformat(time), package, rest)
        case _:
            raise SystemExit(__doc__)
