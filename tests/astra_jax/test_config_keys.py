"""Every key of a config has one line of explanation, and is set in a shipped config, an example or a document."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, Field

from astra_jax.cli.command import main
from astra_jax.cli.config import KINDS, config_types
from astra_jax.config import parse_config
from astra_jax.config_keys import Key, keys_of
from astra_jax.rl.config import RLConfig
from astra_jax.sft.config import SFTConfig
from synthesis.environments.config import EnvironmentsConfig
from synthesis.trajectories.config import TrajectoriesConfig

ROOT = Path(__file__).parents[2]
CONFIGS = [(command, config_type) for kind in KINDS for command, config_type in config_types(kind).items()]
MOST_CHARACTERS = 240


def paths(values: dict[str, Any], above: str = "") -> Iterator[str]:
    """Yield the path of each value of a TOML document, and those of the tables around it."""
    for name, value in values.items():
        yield above + name
        for table in value if isinstance(value, list) else [value]:
            if isinstance(table, dict):
                yield from paths(table, f"{above}{name}.")


def said_in(text: str) -> Iterator[str]:
    """Yield the keys that a document sets: in blocks of TOML, and as `key=value` in commands and other code.

    >>> sorted(set(said_in("As `astra rl CONFIG a.b=1 c=DIR` or `d = { e = 2 }`, not x=1.")))
    ['a.b', 'c', 'd', 'd.e']
    """
    blocks = re.findall(r"^```(\w*)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    for language, block in blocks:
        if language == "toml":
            yield from paths(tomllib.loads(block))
    prose = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    for code in [*re.findall(r"`([^`]+)`", prose), *(block for language, block in blocks if language != "toml")]:
        try:
            yield from paths(tomllib.loads(code))
        except tomllib.TOMLDecodeError:
            yield from re.findall(r"(?<![\w.-])([a-z]\w*(?:\.\w+)*)=(?=\S)", code)


@pytest.fixture(scope="module")
def set_somewhere() -> set[str]:
    found = {path for config in (ROOT / "configs").glob("*.toml") for path in paths(tomllib.loads(config.read_text()))}
    documents = [
        ROOT / "README.md",
        *(ROOT / "docs").glob("*.md"),
        *(ROOT / "docs" / "guides").glob("*.md"),
        *(ROOT / "examples").glob("*.py"),
    ]
    for document in documents:
        text = document.read_text(encoding="utf-8")
        # A command in a docstring is indented, and is code as well.
        found |= set(said_in(re.sub(r"^    (astra .*)$", r"`\1`", text, flags=re.MULTILINE)))
    return found


@pytest.mark.parametrize(("command", "config_type"), CONFIGS, ids=[command for command, _ in CONFIGS])
def test_every_key_is_explained_in_one_line_that_is_a_sentence(command, config_type):
    for key in keys_of(config_type):
        assert key.explanation, key.path
        assert len(key.explanation) <= MOST_CHARACTERS, key.path
        assert key.explanation[0].isupper() or key.explanation[0] in "`δεnKG", key.path
        assert key.explanation.endswith("."), key.path


@pytest.mark.parametrize(("command", "config_type"), CONFIGS, ids=[command for command, _ in CONFIGS])
def test_every_key_is_set_in_a_shipped_config_an_example_or_a_document(command, config_type, set_somewhere):
    unset = [key.path for key in keys_of(config_type) if not key.is_table and key.path not in set_somewhere]
    assert unset == [], "remove such a key with its code, set it in a shipped config, or show it in docs/commands.md"


def merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Return a table with the values of another in the place of its own."""
    tables = {name: merged(below.get(name, {}), value) for name, value in above.items() if isinstance(value, dict)}
    return below | above | tables


@pytest.mark.parametrize(
    ("document", "config", "config_type"),
    [
        ("commands.md", "tiny_sft.toml", SFTConfig),
        ("commands.md", "tiny_rl.toml", RLConfig),
        ("teacher.md", "paper_environments.toml", EnvironmentsConfig),
        ("tools.md", "tiny_trajectories.toml", TrajectoriesConfig),
    ],
)
def test_the_tables_that_a_document_shows_are_valid(document, config, config_type):
    shipped = tomllib.loads((ROOT / "configs" / config).read_text(encoding="utf-8"))
    blocks = re.findall(r"^```toml\n(.*?)^```", (ROOT / "docs" / document).read_text(encoding="utf-8"), re.S | re.M)
    shown = [tomllib.loads(block) for block in blocks]
    shown = [values for values in shown if values.keys() <= config_type.model_fields.keys()]
    assert shown
    for values in shown:
        parse_config(config_type, merged(shipped, values), where=document)


def test_a_key_that_no_file_sets_is_found(set_somewhere):
    assert not {"overlap_rollouts", "rollout.kv_dtype", "seed.nothing"} & set_somewhere
    assert {"wandb.project", "rollout.top_k", "teacher.roles", "mcp_servers.header_env"} <= set_somewhere


class _Inner(BaseModel):
    size: int = Field(default=3, ge=1, lt=9)
    """Tokens of a page. More than one sentence."""


class _Outer(BaseModel):
    name: str
    """Name of
    the thing."""
    inner: _Inner | None = None
    """Pages."""
    shares: dict[str, float] = Field(default_factory=lambda: {"en": 0.5})
    bare: tuple[str, ...] = ()


def test_keys_have_their_path_default_first_sentence_type_and_bounds():
    assert list(keys_of(_Outer)) == [
        Key("name", "required", "Name of the thing.", False, "str"),
        Key("inner", "none", "Pages.", True),
        Key("inner.size", "3", "Tokens of a page.", False, "int", "≥ 1, < 9"),
        Key("shares", "{ en = 0.5 }", "", False, "table of str to float"),
        Key("bare", "[]", "", False, "list of str"),
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_the_command_prints_every_key_with_its_default_type_and_bounds(kind, capsys):
    assert main(["config", kind]) == 0
    lines = capsys.readouterr().out.splitlines()
    for command, config_type in config_types(kind).items():
        assert f"# astra {command} CONFIG" in lines
        for key in keys_of(config_type):
            shown = f"{key.path} = {key.default}    # {key.kind}{f', {key.bounds}' if key.bounds else ''}"
            assert key.is_table or (key.kind and shown in lines)
