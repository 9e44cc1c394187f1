"""The shipped configs: their folder, and the comment at the head of each."""

from __future__ import annotations

import re
from typing import Annotated

import pytest
from pydantic import BaseModel, Field

from astra_jax.config import CONFIGS, ConfigError, load_config
from astra_jax.sft.config import SFTConfig
from synthesis.trajectories.config import TrajectoriesConfig
from tests.test_import_rules import ROOT


def test_the_shipped_configs_are_those_of_the_checkout():
    assert CONFIGS == ROOT / "configs"
    assert (ROOT / "astra_jax" / "configs").is_symlink()


def test_a_missing_config_that_is_shipped_is_named_in_one_line(tmp_path):
    with pytest.raises(ConfigError) as error:
        load_config(SFTConfig, tmp_path / "configs" / "tiny_sft.toml")
    assert str(error.value) == (
        f"there is no config at {tmp_path}/configs/tiny_sft.toml; one of that name is shipped: {CONFIGS}/tiny_sft.toml"
    )
    with pytest.raises(ConfigError, match=f"mine.toml; examples are shipped in {CONFIGS}"):
        load_config(SFTConfig, tmp_path / "mine.toml")


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.toml")), ids=lambda path: path.stem)
def test_the_head_of_a_config_is_a_lab_note(path):
    head = re.match(r"(#[^\n]*\n)+", path.read_text(encoding="utf-8"))
    assert head is not None
    keys = re.findall(r"^# (command|hardware|time|result):", head[0], re.MULTILINE)
    assert keys == ["command", "hardware", "time", "result"]
    assert re.search(r"^# command: +astra .*$", head[0], re.MULTILINE)


def test_values_that_contradict_one_another_are_named_and_the_table_that_they_stand_in_is_not_shown(tmp_path):
    file = tmp_path / "trajectories.toml"
    file.write_text(
        'count = 1\nout = "out"\n[[mcp_servers]]\nname = "far"\nurl = "http://far.example/mcp"\n'
        'environment = { FAR_TOKEN = "tok-0123456789" }\n'
    )
    with pytest.raises(ConfigError) as error:
        load_config(TrajectoriesConfig, file)
    assert str(error.value) == (
        f"{file}: mcp_servers.0: MCP server 'far': expected environment, environment_from and readable beside `command`"
    )


EXPECTED = 'expected a list such as ["a", "b"], in a shell between apostrophes'


class Inner(BaseModel):
    names: tuple[str, ...] | None = None


class Outer(BaseModel):
    inner: Inner | None = None
    counts: Annotated[list[int], Field(min_length=1)] = [1]
    text_or_list: str | tuple[str, ...] = ""
    tables: tuple[Inner, ...] = ()


def test_a_key_that_takes_nothing_but_a_list_may_be_one_value(tmp_path):
    def read(override: str, line: str = "") -> Outer:
        (tmp_path / "mine.toml").write_text(line)
        return load_config(Outer, tmp_path / "mine.toml", [override] if override else [])

    assert read("", "inner.names = 'a'").inner == Inner(names=("a",))
    assert read("", "text_or_list = 'a'").text_or_list == "a"

    assert read("inner.names=a").inner == read("inner.names='a'").inner == Inner(names=("a",))
    assert read("counts=3").counts == [3]
    assert read("text_or_list=a").text_or_list == "a"
    with pytest.raises(ConfigError, match=r"mine.toml: inner.names: expected a list such as .*, found '\[a, b\]'$"):
        read("inner.names=[a, b]")
    for override in ("counts=x", "tables={names = []}", "tables=a"):
        with pytest.raises(ConfigError, match=f"mine.toml: {override.partition('=')[0]}"):
            read(override)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('tool_documents = "[a, b]"', f"tool_documents: {EXPECTED}, found '[a, b]'"),
        ("[mcp_servers]", f"mcp_servers: {EXPECTED}"),
    ],
)
def test_a_file_is_told_how_a_list_is_written(tmp_path, line, words):
    (tmp_path / "mine.toml").write_text(f'count = 1\nout = "out"\n{line}\n')
    with pytest.raises(ConfigError) as error:
        load_config(TrajectoriesConfig, tmp_path / "mine.toml")
    assert str(error.value) == f"{tmp_path}/mine.toml: {words}"
