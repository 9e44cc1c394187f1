"""A foreign checkpoint is brought to Qwen3's chat format: tokens, their embeddings, template; and says so."""

import json

import numpy as np
import pytest
import tokenizers
from safetensors.numpy import load_file
from transformers import PreTrainedTokenizerFast

from astra_jax.chat.format import render
from astra_jax.chat.template import require_chat_template
from astra_jax.chat.tokenizer import FORMAT_TOKENS, Tokenizer, TokenizerError
from astra_jax.checkpoints import hf
from astra_jax.checkpoints.convert import hf_to_orbax, orbax_to_hf
from astra_jax.checkpoints.policy import load_policy
from astra_jax.checkpoints.provenance import read_provenance
from astra_jax.config import ConfigError
from astra_jax.testing import tiny_environment, tiny_model_config
from synthesis.records import Message
from tests.astra_jax.checkpoints.folders import assert_same_tensors, foreign_tokenizer, write_hf_folder

TABLES = {True: ("embedding",), False: ("embedding", "unembedding")}


@pytest.mark.parametrize(
    ("family", "tied", "spare_rows", "has"),
    [("llama", True, 0, ()), ("llama", False, 0, ()), ("qwen2", True, 90, FORMAT_TOKENS[:2]), ("qwen3", False, 3, ())],
)
def test_control_tokens_are_added_with_the_mean_of_their_pieces(
    tmp_path, monkeypatch, capsys, family, tied, spare_rows, has
):
    monkeypatch.setattr(hf, "PIECE_BYTES", 1_000)  # some rows at a time
    (tmp_path / "tokenizer").mkdir()
    theirs = foreign_tokenizer(tmp_path / "tokenizer", *has)
    rows = theirs.get_vocab_size() + spare_rows
    sizes = {"family": family, "tie_word_embeddings": tied}
    before = write_hf_folder(tmp_path / "hf", tiny_model_config(rows).model_copy(update=sizes))
    theirs = foreign_tokenizer(tmp_path / "hf", *has)
    (tmp_path / "hf" / "generation_config.json").write_text('{"temperature": 0.2, "do_sample": true}')
    hf_to_orbax(tmp_path / "hf", tmp_path / "ours")
    policy = load_policy(tmp_path / "ours")
    require_chat_template(tmp_path / "ours", policy.tokenizer)
    added = [token for token in FORMAT_TOKENS if token not in has]
    ids = [policy.tokenizer.encode(token)[0] for token in added]
    assert ids == list(range(theirs.get_vocab_size(), theirs.get_vocab_size() + len(added)))
    size = policy.model_config.vocab_size
    assert size == (rows if spare_rows >= len(added) else -(-(ids[-1] + 1) // 64) * 64)
    for name, tensor in zip(TABLES[tied], ("model.embed_tokens.weight", "lm_head.weight"), strict=False):
        expected = np.zeros((size, 32), np.float32)
        expected[:rows] = before[tensor]
        for token, row in zip(added, ids, strict=True):
            pieces = theirs.encode(token).ids
            assert len(pieces) > 1
            expected[row] = before[tensor][pieces].mean(axis=0)
        np.testing.assert_array_equal(policy.params[name], expected)
    changes = read_provenance(tmp_path / "ours").changes
    assert changes[1].endswith(f"its pieces: {' '.join(added)}")
    assert [f"astra: {tmp_path / 'hf'}: {change}" for change in changes] == capsys.readouterr().err.splitlines()
    assert not (tmp_path / "ours" / "special_tokens_map.json").exists()
    orbax_to_hf(tmp_path / "ours", tmp_path / "back")
    assert f"- {changes[0]}.\n- {changes[1]}.\n" in (tmp_path / "back" / "README.md").read_text()
    settings = json.loads((tmp_path / "back" / "generation_config.json").read_text())
    assert (settings["temperature"], settings["eos_token_id"]) == (0.2, policy.tokenizer.end_id)
    hf_to_orbax(tmp_path / "back", tmp_path / "again")  # an export is not foreign
    assert read_provenance(tmp_path / "again").changes == changes
    orbax_to_hf(tmp_path / "again", tmp_path / "back2")
    assert_same_tensors(tmp_path / "back2", load_file(tmp_path / "back" / "model.safetensors"))


def test_texts_come_back_and_are_cut_as_transformers_cuts_them(tmp_path):
    foreign_tokenizer(tmp_path)
    tokenizer, _ = Tokenizer.load_foreign(tmp_path)
    tokenizer.save(tmp_path, model_max_length=1024)
    theirs = PreTrainedTokenizerFast.from_pretrained(tmp_path)
    environment = tiny_environment()
    text = render([Message(role="user", content="2150 €? 房东 é")], [tool.document for tool in environment.tools])
    ids = Tokenizer.load(tmp_path).encode(text)
    assert ids == theirs.encode(text, add_special_tokens=False)
    assert tokenizer.decode(ids) == theirs.decode(ids) == text
    assert ids.count(tokenizer.encode("<tool_call>")[0]) == 2  # as one token


def test_a_tokenizer_that_changes_texts_is_refused_before_anything_is_written(tmp_path, tokenizer):
    write_hf_folder(tmp_path / "hf", tiny_model_config(97).model_copy(update={"family": "llama"}))
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "[UNK]": 1}, unk_token="[UNK]"))
    backend.save(str(tmp_path / "hf" / "tokenizer.json"))
    with pytest.raises(TokenizerError, match=r"makes .* of \'<\|endoftext\|>.*; the chat format needs a byte-level"):
        hf_to_orbax(tmp_path / "hf", tmp_path / "ours")
    said = json.loads(foreign_tokenizer(tmp_path / "hf").to_str())
    said["model"]["vocab"]["zz"] = len(said["model"]["vocab"]) + 1  # an added token would get this id too
    (tmp_path / "hf" / "tokenizer.json").write_text(json.dumps(said))
    with pytest.raises(TokenizerError, match="without a hole"):
        hf_to_orbax(tmp_path / "hf", tmp_path / "ours")
    foreign_tokenizer(tmp_path / "hf")
    with pytest.raises(ConfigError, match="more than the 97 of the model's"):
        hf_to_orbax(tmp_path / "hf", tmp_path / "ours")
    assert [path.name for path in tmp_path.iterdir()] == ["hf"]
