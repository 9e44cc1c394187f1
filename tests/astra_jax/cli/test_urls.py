"""A URL where a path is expected is refused in one line, in any key of any config and any option; nothing is made."""

from __future__ import annotations

from pathlib import Path

import pytest

from astra_jax.cli.command import main

CONFIGS = Path(__file__).parents[3] / "configs"
URL = "gs://bucket/deep/path"


def of_config(command: str, name: str, override: str) -> tuple[list[str], str]:
    """The arguments, and the key that is named."""
    return [*command.split(), f"{CONFIGS}/{name}.toml", override], override.partition("=")[0]


@pytest.mark.parametrize(
    ("arguments", "key"),
    [
        of_config("sft", "tiny_sft", f"out={URL}"),
        of_config("sft", "tiny_sft", f"init={URL}"),
        of_config("sft", "tiny_sft", f"tokenizer={URL}"),
        of_config("sft", "tiny_sft", f'environments=["{URL}"]'),
        of_config("rl", "tiny_rl", f"out={URL}"),
        of_config("rl", "tiny_rl", f"init={URL}"),
        of_config("rl", "tiny_rl", f"environments={URL}"),
        of_config("evaluate environments", "tiny_evaluation", f"policy={URL}"),
        of_config("synthesize trajectories", "tiny_trajectories", f"out={URL}"),
        of_config("synthesize trajectories", "tiny_trajectories", f'tool_documents=["{URL}"]'),
        of_config("synthesize environments", "tiny_environments", f"out={URL}"),
        of_config("synthesize environments", "tiny_environments", f'knowledge=["{URL}"]'),
        (["sft", URL], "config"),
        (["quickstart", "--out", URL], "out"),
        (["quickstart", "--tool-documents", URL], "tool_documents"),
        (["synthesize", "tools", "documents", "--out", URL], "out"),
        (["synthesize", "tools", URL, "--out", "out"], "sources"),
        (["records", "show", URL], "directory"),
        (["records", "export", "records", "--out", URL], "out"),
        (["convert", "hf-to-orbax", URL, "out"], "source"),
        (["convert", "orbax-to-hf", "source", "s3://bucket/deep/path"], "destination"),
        (["report", URL], "folder"),
    ],
    ids=lambda value: " ".join(Path(word).name for word in value[:3]) if isinstance(value, list) else value,
)
def test_a_url_is_refused_in_one_line(tmp_path, monkeypatch, capsys, arguments, key):
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    key = key.partition("=")[0]
    assert f": {key}" in error
    assert "expected a path on this machine, found the URL " in error
    assert "://bucket/deep/path" in error
    assert list(tmp_path.iterdir()) == []


def test_the_cache_of_a_teacher_is_a_path_too(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    teacher = f'teacher={{ base_url = "http://127.0.0.1:9/v1", model = "m", cache = "{URL}" }}'
    assert main(["synthesize", "trajectories", f"{CONFIGS}/tiny_trajectories.toml", teacher]) == 2
    assert ": teacher.cache: expected a path on this machine" in capsys.readouterr().err
