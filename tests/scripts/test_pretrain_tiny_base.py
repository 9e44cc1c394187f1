"""The pre-training of the shipped base, and the base itself."""

from __future__ import annotations

import gzip
import random
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from astra_jax.chat.tokenizer import Tokenizer
from astra_jax.checkpoints.hf import load_hf
from astra_jax.checkpoints.policy import load_policy
from astra_jax.config import CONFIGS, ConfigError, load_config
from astra_jax.model.qwen3 import bind, init_params
from astra_jax.model.sharding import MeshConfig
from astra_jax.recipes.quickstart import TINY_BASE
from astra_jax.training.run import TrainingRun
from scripts.tiny_base import pretrain as pretrain_tiny_base
from scripts.tiny_base.made_up_worlds import LOOKUPS, draw_dialogue, label_characters
from scripts.tiny_base.pretrain import MadeUpBatches, TinyBaseConfig, dialogue_sample, pretrain
from scripts.tiny_base.replay import REPLAYED, replayed_line
from synthesis.procedural.worlds import name_parts
from synthesis.run.fingerprint import MadeOtherwise


@pytest.fixture(scope="module")
def base_tokenizer() -> Tokenizer:
    return Tokenizer.load(TINY_BASE)


def shipped_config(**changes) -> TinyBaseConfig:
    config = load_config(TinyBaseConfig, CONFIGS / "tiny_base.toml")
    return config.model_copy(update=changes)


def test_a_batch_is_a_function_of_seed_and_step(base_tokenizer):
    config = shipped_config(steps=10, easy_steps=5)
    one, again, other = (MadeUpBatches(config.model_copy(update={"seed": seed}), base_tokenizer) for seed in (1, 1, 2))
    for step in (7, 0):  # in any order
        jax.tree.map(np.testing.assert_array_equal, one[step], again[step])
        assert not np.array_equal(one[step].tokens_BT, other[step].tokens_BT)
    assert [one[step].tokens_BT.shape for step in (4, 5)] == [(8, 384), (4, 768)]
    assert one.segment_tokens(7) == (one[7].segment_ids_BT > 0).sum(axis=1).tolist()


def test_parts_of_names_and_characters_of_labels_are_one_token_each(base_tokenizer):
    chinese = {*label_characters(), *"".join(map("".join, name_parts("zh")))}
    english = {part for parts in name_parts("en") for part in parts}
    assert {part for part in chinese | english if len(base_tokenizer.encode(part)) > 1} == set()
    assert len(base_tokenizer.encode("謎")) > 1  # a character of no label and no name


def test_a_row_has_its_tools_once_and_loss_on_the_assistants_words_alone(base_tokenizer):
    dialogue = draw_dialogue(
        random.Random(0), "en", scenarios=dict.fromkeys(LOOKUPS, 1.0), num_questions=3, most_called=7, num_tools=6
    )
    assert len(dialogue.episodes) > 1
    whole = dialogue_sample(dialogue, base_tokenizer, 10_000)
    text = base_tokenizer.decode(whole.ids)
    assert text.count("<tools>") == 2  # named once in the instructions
    for messages in dialogue.episodes:
        assert f"{messages[0].content}<|im_end|>" in text
        assert messages[-1].content in text
    learnt = base_tokenizer.decode(whole.ids[whole.loss_mask > 0])
    assert "<tool_response>" not in learnt
    assert all(messages[0].content not in learnt and messages[-1].content in learnt for messages in dialogue.episodes)
    cut = dialogue_sample(dialogue, base_tokenizer, len(whole.ids) - 1)
    assert len(cut.ids) < len(whole.ids)


def test_the_shipped_conversations_are_those_that_the_script_draws():
    shipped = (TINY_BASE / "replay.jsonl.gz").read_bytes()
    assert shipped[:10] == bytes.fromhex("1f8b08000000000002ff"), "no name and no time, and written by Python's gzip"
    lines = gzip.decompress(shipped).decode().splitlines(keepends=True)
    assert len(lines) == REPLAYED
    for number in (0, 1, REPLAYED - 1):
        assert lines[number] == replayed_line(number)


def small(tmp_path: Path, **changes) -> TinyBaseConfig:
    shorter = {"steps": 4, "easy_steps": 2, "checkpoint_every_steps": 2, "trajectories": ()}
    config = shipped_config(**{"out": tmp_path / "run", **shorter, **changes})
    model = config.model.model_copy(update={"vocab_size": 800, "hidden_size": 32, "num_layers": 2, "head_dim": 16})
    return config.model_copy(
        update={"model": model.model_copy(update={"intermediate_size": 32}), "batch_tokens": 768 * 2}
    )


@pytest.mark.slow
def test_a_pre_training_that_was_stopped_goes_on_to_the_same_weights(tmp_path, monkeypatch):
    monkeypatch.setattr(pretrain_tiny_base, "_TOKENIZER_DIALOGUES", 40)
    whole = small(tmp_path, out=tmp_path / "whole")
    figures = pretrain(whole)
    assert figures["steps"] == 4
    assert pretrain(whole) == {**figures, "already_complete": True}

    class Stopped(Exception):
        pass

    end_step = TrainingRun.end_step

    def stops(run, state, metrics):
        end_step(run, state, metrics)
        if state.step == 3:
            raise Stopped

    in_parts = small(tmp_path)
    monkeypatch.setattr(TrainingRun, "end_step", stops)
    with pytest.raises(Stopped):
        pretrain(in_parts)
    monkeypatch.setattr(TrainingRun, "end_step", end_step)
    pretrain(in_parts)
    one, other = (load_policy(config.out / "policy").params for config in (whole, in_parts))
    jax.tree.map(np.testing.assert_array_equal, one, other)
    with pytest.raises(MadeOtherwise, match="easy_steps: 2 before, 3 now"):
        pretrain(in_parts.model_copy(update={"easy_steps": 3}))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"length_buckets": (640,)}, r"two `length_buckets`, found \[640\]"),
        ({"mesh": MeshConfig()}, r"expected no \[mesh\], found one"),  # each host would draw every row
        ({"held_out_share": 0.1}, "every row is made up anew: expected no"),
    ],
)
def test_a_config_that_cannot_be_trained_is_refused(tmp_path, changes, words):
    with pytest.raises(ConfigError, match=words):
        pretrain(small(tmp_path, **changes))
    assert not (tmp_path / "run").exists()


def test_the_shipped_base_reads_tools_that_it_has_never_seen(base_tokenizer):
    """On dialogues of a seed of their own; it answers right where random weights of the same sizes say nothing."""
    model, params = load_hf(TINY_BASE)
    assert model.vocab_size == base_tokenizer.vocab_size
    batches = MadeUpBatches(shipped_config(seed=77, steps=10, easy_steps=0), base_tokenizer)
    batch = batches[3]

    def share_right(params) -> float:
        qwen3 = bind(model, params)
        hidden_BTD = qwen3(*map(jnp.asarray, (batch.tokens_BT, batch.positions_BT, batch.segment_ids_BT)))
        right_BT = np.asarray(jnp.argmax(qwen3.logits(hidden_BTD), -1)) == batch.targets_BT
        return float(right_BT[batch.loss_mask_BT > 0].mean())

    assert share_right(params) > 0.95
    assert share_right(init_params(model, 0)) < 0.05
