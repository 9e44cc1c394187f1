"""A run starts only from a checkpoint whose own chat template gives the tokens that ours gives."""

from __future__ import annotations

import json

import pytest

from astra_jax.chat.template import PROBES, ChatFormatDiffers, require_chat_template
from astra_jax.chat.tokenizer import CHAT_TEMPLATE_PATH
from astra_jax.checkpoints.policy import save_policy
from astra_jax.cli.command import main
from astra_jax.testing import tiny_environment
from synthesis.record_io import write_records

OURS = CHAT_TEMPLATE_PATH.read_text()


@pytest.fixture
def folder(tmp_path, tokenizer):
    tokenizer.save(tmp_path / "checkpoint", model_max_length=1024)
    return tmp_path / "checkpoint"


def give(folder, template: str | None) -> None:
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text())
    config.pop("chat_template")
    path.write_text(json.dumps(config if template is None else config | {"chat_template": template}))


def test_our_own_template_and_the_official_one_pass_also_in_a_file(tokenizer_folder, either, folder, tokenizer):
    require_chat_template(tokenizer_folder, either)
    give(folder, None)
    (folder / "chat_template.jinja").write_text(OURS)
    require_chat_template(folder, tokenizer)
    (folder / "chat_template.jinja").write_text(OURS.replace("<|im_start|>assistant\\n", "<|im_start|>model\\n"))
    with pytest.raises(ChatFormatDiffers, match=r"after '.*<\|im_start\|>', expected 'assistant.*found 'model"):
        require_chat_template(folder, tokenizer)


@pytest.mark.parametrize(
    ("part", "other", "probe"),
    [
        ("# Tools", "# Functions", "tools, thinking, parallel calls, tool responses"),
        ("'\\n' if said or not loop.first", "'\\n' if said", "tools, thinking, parallel calls, tool responses"),
        ("'<think>\\n' ~ thought", "'<think>' ~ thought", "tools, thinking, parallel calls, tool responses"),
        ("\\n</tool_response>", "</tool_response>", "tools, thinking, parallel calls, tool responses"),
        ("loop.index0 > query.index and", "", "reasoning before a newer user message"),
        ("enable_thinking is false", "enable_thinking is true", "where the next assistant message begins"),
        ("<think>\\n\\n</think>\\n\\n", "<think></think>", "no tools, no thinking"),
        ("{{- '<|im_start|>assistant\\n' ~ (", "{{- '<|im_start|>assistant\\n<think>\\n' ~ (", PROBES[1].name),
    ],
)
def test_each_part_of_the_format_that_differs_is_found(folder, tokenizer, part, other, probe):
    assert part in OURS
    give(folder, OURS.replace(part, other))
    with pytest.raises(ChatFormatDiffers) as error:
        require_chat_template(folder, tokenizer)
    assert f"({probe}): from token" in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("template", "says"),
    [
        (None, "neither tokenizer_config.json nor chat_template.jinja has a chat template"),
        ("{{ raise_exception('no tools here') }}", "the chat template cannot render .* \\(no tools here\\)"),
        ("{% if %}", "the chat template cannot render"),
    ],
)
def test_a_template_that_is_missing_or_cannot_render_is_refused(folder, tokenizer, template, says):
    give(folder, template)
    with pytest.raises(ChatFormatDiffers, match=says):
        require_chat_template(folder, tokenizer)


def test_sft_ends_with_2_before_it_writes_anything(tmp_path, untrained, capsys):
    save_policy(untrained, tmp_path / "policy")
    give(tmp_path / "policy", OURS.replace("# Tools", "# Functions"))
    write_records(tmp_path / "environments", [tiny_environment()], kind="environment")
    keys = ["seed=0", f"out={tmp_path}/out", f"init={tmp_path}/policy", "optimizer.learning_rate=1e-3"]
    keys += ["steps=1", "batch_tokens=320", "length_buckets=[320]"]
    (tmp_path / "config.toml").write_text(f"environments = ['{tmp_path}/environments']")
    assert main(["sft", str(tmp_path / "config.toml"), *keys]) == 2
    [line] = [line for line in capsys.readouterr().err.splitlines() if line.startswith("astra: ")]
    assert line.startswith(f"astra: ChatFormatDiffers: {tmp_path / 'policy'}: the chat format of its template ")
    assert not (tmp_path / "out").exists()
