"""The model card of an export says where it comes from, its data and its figures, and nothing of the machine."""

from __future__ import annotations

import hashlib
import json

import pytest
from huggingface_hub import ModelCard

from astra_jax.checkpoints.convert import orbax_to_hf
from astra_jax.checkpoints.model_card import model_card
from astra_jax.checkpoints.policy import load_policy, save_policy
from astra_jax.checkpoints.provenance import (
    BaseWeights,
    Provenance,
    ProvenanceError,
    base_model,
    read_provenance,
    training_stage,
)
from astra_jax.recipes.quickstart import TINY_BASE
from astra_jax.testing import tiny_environment
from tests.astra_jax.sft.configs import tiny_sft_config


def test_an_export_names_base_data_config_and_figures_and_no_path(tmp_path, untrained, tokenizer):
    base = tmp_path / "runs" / "base"
    save_policy(untrained, base)
    Provenance(base=BaseWeights(name="Qwen/Qwen3-0.6B", config_sha256="abc")).write(base)
    config = tiny_sft_config(
        tmp_path, tokenizer, [tiny_environment()], steps=4, batch_tokens=320, optimizer={"learning_rate": 1.25e-4}
    )
    stage = training_stage("SFT", config, config.environments)
    policy = tmp_path / "runs" / "sft" / "policy"
    save_policy(untrained, policy, trained_from=base, stage=stage)
    (policy.parent / "metrics.jsonl").write_text('{"step": 3, "loss": 0.125, "seconds": 9.75}\n')
    held_out = {
        "heldout": {"sft": {"f1": 0.3125, "f1_interval": [0.2, 0.4]}, "rl": {"f1": 0.75}},
    }
    (tmp_path / "runs" / "summary.json").write_text(json.dumps(held_out))
    orbax_to_hf(policy, tmp_path / "hf")
    text = (tmp_path / "hf" / "README.md").read_text()
    card = ModelCard(text)
    assert card.data.to_dict()["base_model"] == "Qwen/Qwen3-0.6B"
    assert card.data.library_name == "transformers"
    digest = hashlib.sha256((tmp_path / "environments" / "dataset.json").read_bytes()).hexdigest()
    for expected in ("`abc`", f"| environment | 1 | `{digest}` |", '"learning_rate": 0.000125', "| loss | 0.125 |"):
        assert expected in text
    assert "| figure | value |\n|---|---|\n| f1 | 0.3125 |\n" in text
    assert str(tmp_path) not in text
    assert "seconds" not in text
    assert read_provenance(tmp_path / "hf").stages == (stage,)
    save_policy(load_policy(policy), tmp_path / "rl", trained_from=policy, stage=stage)
    assert read_provenance(tmp_path / "rl").stages == (stage, stage)


@pytest.mark.parametrize(
    ("name_or_path", "name"), [("Qwen/Qwen3-14B", "Qwen/Qwen3-14B"), ("/data/models/x", "Qwen3"), (None, "Qwen3")]
)
def test_a_base_is_named_as_on_the_hub_or_by_its_folder(tmp_path, name_or_path, name):
    (tmp_path / "Qwen3").mkdir()
    (tmp_path / "Qwen3" / "config.json").write_text(json.dumps({"_name_or_path": name_or_path}))
    assert base_model(tmp_path / "Qwen3").name == name


def test_a_provenance_that_is_none_is_refused(tmp_path):
    (tmp_path / "provenance.json").write_text('{"stages": 3}')
    with pytest.raises(ProvenanceError, match=r"provenance\.json: "):
        read_provenance(tmp_path)


def test_the_card_of_the_shipped_base_names_its_license_and_an_export_names_one_that_is_given(tmp_path, untrained):
    assert ModelCard((TINY_BASE / "README.md").read_text()).data.license == "apache-2.0"
    save_policy(untrained, tmp_path / "policy")
    assert ModelCard(model_card(tmp_path / "policy", untrained.model_config)).data.license is None
    assert ModelCard(model_card(tmp_path / "policy", untrained.model_config, "apache-2.0")).data.license == "apache-2.0"
