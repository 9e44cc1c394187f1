"""Pages of the site beside the documents: the README, and references of configs and of Python, made from the code.

A hook of mkdocs. Links to files outside of docs/ lead to copies of these files on the site.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import griffe
from mkdocs.structure.files import File, Files

from astra_jax.cli.config import KINDS, config_types
from astra_jax.config_keys import keys_of

ROOT = Path(__file__).parents[1]
PUBLIC = {
    "What `import astra_jax` promises": "astra_jax.recipes.interface",
    "Rewards and episodes": "astra_jax.episodes.finished astra_jax.episodes.rewards astra_jax.testing",
    "Training": """astra_jax.rl.advantage astra_jax.rl.grpo_loss astra_jax.sft.train
        astra_jax.checkpoints.policy astra_jax.checkpoints.convert""",
    "Records": """synthesis.records.environments synthesis.records.conversations synthesis.records.tools
        synthesis.records.certificates synthesis.record_io""",
    "Synthesis": """synthesis.environments.pipeline synthesis.environments.own_functions
        synthesis.trajectories.pipeline synthesis.teacher.protocol""",
    "Sandbox": "sandbox.client sandbox.local sandbox.protocol sandbox.contract",
}
"""Headings of the Python reference, with the modules below each."""
PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "LICENSE", "CITATION.cff")
"""Files beside docs/ that the site has as pages or files."""
_LINK = re.compile(r"\[([^\]\[]*)\]\(([^)\s#:]+)(#[^)\s]*)?\)")


def config_reference() -> str:
    """Return the page of every key of every config: type, default, bounds and meaning."""
    parts = [
        "# Keys of the configs\n\n`astra config` prints the same; `none` is the default of a key that is left out.\n"
    ]
    for kind in KINDS:
        for command, config_type in config_types(kind).items():
            parts.append(
                f"\n## astra {command}\n\n| key | type | default | bounds | meaning |\n|---|---|---|---|---|\n"
            )
            for key in keys_of(config_type):
                name = f"**[{key.path}]**" if key.is_table else f"`{key.path}`"
                cells = (name, key.kind, f"`{key.default}`", key.bounds, key.explanation)
                parts.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |\n")
    return "".join(parts)


def python_reference() -> str:
    """Return the page of the modules that users import."""
    parts = ["# Python\n\nThe first part stays as it is from one version to the next; the others may change.\n"]
    for heading, modules in PUBLIC.items():
        parts.append(f"\n## {heading}\n")
        parts += [f"\n::: {module}\n    options:\n      heading_level: 3\n" for module in modules.split()]
    return "".join(parts)


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are made here, and the files outside of docs/ that documents link to."""
    files.append(File.generated(config, "reference/configs.md", content=config_reference()))
    files.append(File.generated(config, "reference/python.md", content=python_reference()))
    for name in PAGES:
        files.append(File.generated(config, _place(ROOT / name), content=(ROOT / name).read_text(encoding="utf-8")))
    return files


def _place(path: Path) -> str:
    """Return the place on the site of a file outside of docs/."""
    name = str(path.relative_to(ROOT))
    return {"README.md": "index.md", "LICENSE": "LICENSE.txt"}.get(name, name)


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Lead the links of a page to the places of the site; a link to a file that is not there keeps its text alone."""
    source = page.file.src_uri
    outside = {_place(ROOT / name): ROOT / name for name in PAGES}
    folder = outside.get(source, ROOT / "docs" / source).parent

    def led(match: re.Match[str]) -> str:
        target = (folder / match[2]).resolve()
        if ROOT not in target.parents or not target.exists():
            return match[0]
        inside = ROOT / "docs" in target.parents
        place = str(target.relative_to(ROOT / "docs")) if inside else _place(target)
        if files.get_file_from_path(place) is None:
            return match[1]
        return f"[{match[1]}]({'../' * source.count('/')}{place}{match[3] or ''})"

    return _LINK.sub(led, markdown)


class Doctests(griffe.Extension):
    """Shows the examples of docstrings as code."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Put a fence around each paragraph that begins with a prompt."""
        if obj.docstring is not None:
            text = obj.docstring.value
            obj.docstring.value = re.sub(r"(?:^>>> .*\n?(?:.+\n?)*)", _fenced, text, flags=re.MULTILINE)


def _fenced(match: re.Match[str]) -> str:
    return f"```pycon\n{match[0].rstrip()}\n```\n"
