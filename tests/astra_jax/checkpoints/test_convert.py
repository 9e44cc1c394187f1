"""A conversion is bit-equal both ways, holds a piece at a time, and counts when it is whole, never before."""

import errno
import hashlib
import json
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from astra_jax.checkpoints import convert, hf
from astra_jax.checkpoints.checkpoint import CheckpointError, load_params, save_params
from astra_jax.checkpoints.convert import hf_to_orbax, orbax_to_hf
from astra_jax.checkpoints.hf import HFCheckpointError, load_hf
from astra_jax.checkpoints.policy import load_policy, save_policy
from astra_jax.checkpoints.provenance import TrainingStage, read_provenance
from astra_jax.cli.command import main
from astra_jax.model.config import ModelConfig
from astra_jax.model.qwen3 import bind, init_params
from astra_jax.testing import tiny_tokenizer
from tests.astra_jax.checkpoints.folders import assert_same_tensors, write_hf_folder

ROOT = Path(__file__).parents[3]
CONFIG = ModelConfig(
    vocab_size=67, hidden_size=32, num_layers=3, num_heads=4, num_kv_heads=2, head_dim=16, intermediate_size=48
)
TOKENIZER = tiny_tokenizer()


def write_folder(directory, config=CONFIG, dtype="bfloat16"):
    """A folder as HuggingFace has it, of random tensors and one of zeros, with tokenizer and generation settings."""
    tensors = write_hf_folder(directory, config, dtype, shards=2)
    zeros = "model.layers.1.mlp.up_proj.weight"
    home = directory / json.loads((directory / "model.safetensors.index.json").read_text())["weight_map"][zeros]
    tensors[zeros][:] = 0
    save_file(load_file(home) | {zeros: tensors[zeros]}, home)
    TOKENIZER.save(directory, model_max_length=1024)
    ends = [TOKENIZER.end_id, TOKENIZER.pad_id]
    hf_config = config.to_hf() | {"torch_dtype": dtype, "eos_token_id": ends[0], "initializer_range": 0.04}
    (directory / "config.json").write_text(json.dumps(hf_config))
    generation = {"eos_token_id": ends, "pad_token_id": ends[1], "temperature": 0.7, "do_sample": True}
    (directory / "generation_config.json").write_text(json.dumps(generation))
    (directory / "chat_template.jinja").write_text("the chat template")
    return tensors


@pytest.fixture
def converted(tmp_path):
    """A folder of tmp_path that holds `hf`, a HuggingFace folder, and `ours`, the checkpoint made of it."""
    write_folder(tmp_path / "hf")
    hf_to_orbax(tmp_path / "hf", tmp_path / "ours")
    return tmp_path


def read_json(path):
    return json.loads(path.read_text())


def bytes_of(directory):
    files = [file for file in directory.rglob("*") if file.is_file()]
    return {str(file.relative_to(directory)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


@pytest.mark.parametrize(
    ("param_dtype", "tied", "piece_bytes"),
    [("bfloat16", True, 1), ("float32", False, 1_000), ("bfloat16", False, hf.PIECE_BYTES)],
)
def test_a_streamed_conversion_is_the_checkpoint_that_loading_and_saving_makes(
    tmp_path, monkeypatch, param_dtype, tied, piece_bytes
):
    monkeypatch.setattr(hf, "PIECE_BYTES", piece_bytes)
    config = CONFIG.model_copy(update={"tie_word_embeddings": tied})
    original = write_folder(tmp_path / "hf", config)
    hf_to_orbax(tmp_path / "hf", tmp_path / "ours", dtype=param_dtype)
    expected_config, expected = load_hf(tmp_path / "hf", param_dtype=param_dtype)
    found_config, found = load_params(tmp_path / "ours")
    assert found_config == expected_config
    assert jax.tree.all(jax.tree.map(lambda a, b: a.dtype == b.dtype and a.tobytes() == b.tobytes(), found, expected))
    orbax_to_hf(tmp_path / "ours", tmp_path / "back", dtype="bfloat16")
    assert_same_tensors(tmp_path / "back", original)


def test_a_layer_of_a_saved_parameter_is_a_chunk(tmp_path):
    save_params(tmp_path / "ours", CONFIG, init_params(CONFIG, seed=0))
    arrays = convert._open_params(tmp_path / "ours", CONFIG)
    assert arrays["layers"]["q_proj"].chunk_layout.read_chunk.shape == (1, 32, 4, 16)


def test_no_more_than_a_piece_is_read_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(hf, "PIECE_BYTES", 1_000)
    write_folder(tmp_path / "hf")
    read = []
    whole = hf.HFParameter.__getitem__

    def reading(parameter, index):
        read.append(whole(parameter, index))
        return read[-1]

    monkeypatch.setattr(hf.HFParameter, "__getitem__", reading)
    hf_to_orbax(tmp_path / "hf", tmp_path / "ours")
    largest_matrix = 4 * 32 * 64
    assert max(piece.nbytes for piece in read) == largest_matrix
    assert len([piece for piece in read if piece.shape[1:] == (32,) and piece.shape[0] == 7]) == 2 * 9  # 67 rows by 7


def test_everything_beside_the_weights_travels_both_ways(converted):
    orbax_to_hf(converted / "ours", converted / "back")
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja"):
        original = (converted / "hf" / name).read_bytes()
        assert (converted / "ours" / name).read_bytes() == (converted / "back" / name).read_bytes() == original
    original, back = (json.loads((converted / x / "config.json").read_text()) for x in ("hf", "back"))
    assert back == original | {"torch_dtype": "float32"}
    assert back["initializer_range"] == 0.04  # a key that we do not read


@pytest.mark.parametrize(
    "changes",
    [{"rope_theta": 1.0}, {"rope_parameters": {"rope_type": "default", "rope_theta": 3.0}}],
    ids=["of another model", "refused today"],
)
def test_a_kept_config_that_does_not_describe_the_weights_does_not_travel(converted, changes):
    kept = converted / "ours" / "hf_config.json"
    kept.write_text(json.dumps(read_json(kept) | changes))
    orbax_to_hf(converted / "ours", converted / "back")
    assert read_json(converted / "back" / "config.json") == CONFIG.to_hf() | {"eos_token_id": TOKENIZER.end_id}


def test_weights_without_a_tokenizer_are_converted_and_one_line_says_so(tmp_path, capsys):
    write_folder(tmp_path / "hf")
    (tmp_path / "hf" / "tokenizer.json").unlink()
    for converter, source, destination in ((hf_to_orbax, "hf", "ours"), (orbax_to_hf, "ours", "back")):
        converter(tmp_path / source, tmp_path / destination)
        [line] = capsys.readouterr().err.splitlines()
        assert line.startswith(f"astra: {tmp_path / source}: no tokenizer.json lies beside the weights")
    assert read_json(tmp_path / "back" / "config.json")["eos_token_id"] == TOKENIZER.end_id


@pytest.mark.parametrize(
    ("found", "ends"),
    [
        (None, [TOKENIZER.end_id, TOKENIZER.pad_id]),
        ({"eos_token_id": TOKENIZER.pad_id, "max_new_tokens": 2048}, [TOKENIZER.end_id, TOKENIZER.pad_id]),
        ({"temperature": 0.7, "do_sample": True}, TOKENIZER.end_id),
    ],
)
def test_an_export_ends_where_an_assistant_message_ends_and_samples_as_its_source_does(tmp_path, found, ends):
    write_folder(tmp_path / "hf")
    (tmp_path / "hf" / "generation_config.json").unlink()
    if found is not None:
        (tmp_path / "hf" / "generation_config.json").write_text(json.dumps(found))
    config = read_json(tmp_path / "hf" / "config.json")
    (tmp_path / "hf" / "config.json").write_text(json.dumps(config | {"eos_token_id": TOKENIZER.pad_id}))
    hf_to_orbax(tmp_path / "hf", tmp_path / "ours")
    orbax_to_hf(tmp_path / "ours", tmp_path / "back")
    settings = read_json(tmp_path / "back" / "generation_config.json")
    expected = {"do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.95} if found is None else found
    assert settings.items() >= (expected | {"eos_token_id": ends, "pad_token_id": TOKENIZER.pad_id}).items()
    assert read_json(tmp_path / "back" / "config.json")["eos_token_id"][0] == TOKENIZER.end_id


def test_every_fault_of_a_folder_is_named_and_nothing_is_written(tmp_path):
    tensors = write_folder(tmp_path / "hf")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    tensors["model.layers.0.self_attn.q_proj.bias"] = np.zeros(64, np.float32)
    tensors["model.norm.weight"] = np.zeros(31, np.float32)
    tensors["lm_head.weight"] = np.zeros((67, 32), np.int32)
    save_file(tensors, tmp_path / "hf" / "model-00001-of-00002.safetensors")
    save_file({"model.norm.weight": tensors["model.norm.weight"]}, tmp_path / "hf/model-00002-of-00002.safetensors")
    with pytest.raises(HFCheckpointError) as error:
        hf_to_orbax(tmp_path / "hf", tmp_path / "ours")
    assert str(error.value).splitlines()[1:] == [
        "  model.norm.weight is in model-00001-of-00002.safetensors and again in model-00002-of-00002.safetensors",
        "  expected model.layers.0.self_attn.q_proj.bias absent, found (64,)",
        "  expected model.layers.1.mlp.up_proj.weight (48, 32), found none",
        "  expected model.norm.weight (32,), found (31,)",
        "  lm_head.weight: expected dtype ['BF16', 'F16', 'F32'], found I32",
    ]
    assert [entry.name for entry in tmp_path.iterdir()] == ["hf"]


def test_a_cut_off_shard_and_an_index_that_is_none_are_named(tmp_path):
    write_folder(tmp_path / "hf")
    shard = tmp_path / "hf" / "model-00002-of-00002.safetensors"
    shard.write_bytes(shard.read_bytes()[:-10])
    with pytest.raises(HFCheckpointError, match=f"{shard}: not a whole safetensors file"):
        hf_to_orbax(tmp_path / "hf", tmp_path / "ours")
    (tmp_path / "hf" / "model.safetensors.index.json").write_text("[]")
    with pytest.raises(HFCheckpointError, match="not JSON with a weight_map"):
        hf_to_orbax(tmp_path / "hf", tmp_path / "ours")


def test_a_checkpoint_that_is_not_whole_or_not_its_models_is_refused(tmp_path):
    save_params(tmp_path / "ours", CONFIG, init_params(CONFIG, seed=0))
    with pytest.raises(CheckpointError, match=r"expected layers\.q_norm \(4, 16\) float32, found \(3, 16\) float32"):
        convert._open_params(tmp_path / "ours", CONFIG.model_copy(update={"num_layers": 4}))
    tied = CONFIG.model_copy(update={"tie_word_embeddings": True})
    with pytest.raises(CheckpointError, match=r"expected unembedding absent, found \(67, 32\) float32"):
        convert._open_params(tmp_path / "ours", tied)
    (tmp_path / "ours" / "params.whole.json").unlink()
    with pytest.raises(CheckpointError, match="is damaged"):
        orbax_to_hf(tmp_path / "ours", tmp_path / "back")
    assert [entry.name for entry in tmp_path.iterdir()] == ["ours"]


_CONVERT_SLOWLY = """
from pathlib import Path
import time
from astra_jax.checkpoints import convert, hf

def slowly(function):
    def slow(*arguments):
        time.sleep(0.05)
        return function(*arguments)
    return slow

hf.HFParameter.__getitem__, hf._to_hf = slowly(hf.HFParameter.__getitem__), slowly(hf._to_hf)
convert.{converter}(Path({source!r}), Path({destination!r}))
"""


def test_an_interrupted_conversion_leaves_nothing_when_a_write_goes_on_by_itself(tmp_path, monkeypatch):
    """As TensorStore's threads do: a write that was begun makes the folders anew that it needs."""
    write_folder(tmp_path / "hf")
    begun = []

    class SlowArray:
        def __init__(self, description):
            self.folder = Path(description["kvstore"]["base"]["path"])

        def result(self):
            return self

        def __setitem__(self, rows, piece):
            begun.append(rows)
            writing = threading.Thread(target=self.write)
            writing.start()
            if len(begun) == 1:
                signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
            writing.join()

        def write(self):
            time.sleep(0.5)
            self.folder.mkdir(parents=True, exist_ok=True)
            (self.folder / "piece").touch()

    monkeypatch.setattr(convert.ts, "open", lambda *arguments, **options: SlowArray(arguments[0]))
    with pytest.raises(KeyboardInterrupt):
        hf_to_orbax(tmp_path / "hf", tmp_path / "ours")
    time.sleep(0.6)
    assert len(begun) == 1, "it must be interrupted while a first piece is written"
    assert [path.name for path in tmp_path.iterdir()] == ["hf"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("converter", "source", "partial_file"),
    [("hf_to_orbax", "hf", "ocdbt.process_0/manifest.ocdbt"), ("orbax_to_hf", "ours", "model.safetensors")],
)
def test_a_conversion_killed_in_the_middle_changes_nothing_and_can_be_repeated(
    converted, converter, source, partial_file
):
    out = converted / "out"
    getattr(convert, converter)(converted / source, out)
    before = bytes_of(out)
    script = _CONVERT_SLOWLY.format(converter=converter, source=str(converted / source), destination=str(out))
    process = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT)
    while not any(str(file).endswith(partial_file) for file in converted.glob(".out.*.partial/**/*")):
        assert process.poll() is None
        time.sleep(0.01)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    assert bytes_of(out) == before
    getattr(convert, converter)(converted / source, out)
    assert not list(converted.glob(".out.*"))


def test_the_command_converts_both_ways(tmp_path):
    original = write_folder(tmp_path / "hf")
    there = ["convert", "hf-to-orbax", str(tmp_path / "hf"), str(tmp_path / "ours")]
    assert main(there) == 0
    assert load_params(tmp_path / "ours")[0].param_dtype == "float32"
    assert main([*there, "--dtype", "bfloat16"]) == 0
    assert main(["convert", "orbax-to-hf", str(tmp_path / "ours"), str(tmp_path / "back")]) == 0
    assert_same_tensors(tmp_path / "back", original)


def test_an_export_says_nothing_of_other_weights_code_or_places(tmp_path):
    write_folder(tmp_path / "hf")
    stale = {
        "quantization_config": {"quant_method": "fp8"},
        "auto_map": {"AutoModelForCausalLM": "modeling.Other"},
        "_name_or_path": "a/folder/of/another/machine",
        "dtype": "bfloat16",
        "architectures": ["Qwen3ForSequenceClassification"],
    }
    original = read_json(tmp_path / "hf" / "config.json")
    (tmp_path / "hf" / "config.json").write_text(json.dumps(original | stale))
    hf_to_orbax(tmp_path / "hf", tmp_path / "ours")
    orbax_to_hf(tmp_path / "ours", tmp_path / "back")
    del original["torch_dtype"]
    assert read_json(tmp_path / "back" / "config.json") == original | {"dtype": "float32"}


@pytest.mark.parametrize("name", ["hf_config.json", "generation_config.json"])
def test_a_damaged_file_beside_the_weights_is_named_and_nothing_is_written(converted, name):
    for text in ("{", "[]"):
        (converted / "ours" / name).write_text(text)
        with pytest.raises(HFCheckpointError, match=f"{name} is not a JSON object"):
            orbax_to_hf(converted / "ours", converted / "back")
    assert not (converted / "back").exists()


def test_provenance_has_the_digest_of_every_file_that_was_read_and_keeps_it(tmp_path):
    write_folder(tmp_path / "hf", CONFIG.model_copy(update={"vocab_size": TOKENIZER.vocab_size}))
    (tmp_path / "hf" / "notes.txt").write_text("not read")
    hf_to_orbax(tmp_path / "hf", tmp_path / "ours")
    read = {name: digest for name, digest in bytes_of(tmp_path / "hf").items() if name != "notes.txt"}
    assert len([name for name in read if name.endswith(".safetensors")]) == 2
    assert read_provenance(tmp_path / "ours").source_files == (read,)
    policy, stage = load_policy(tmp_path / "ours"), TrainingStage(name="SFT", config={}, data=())
    save_policy(policy, tmp_path / "trained", trained_from=tmp_path / "ours", stage=stage)
    orbax_to_hf(tmp_path / "trained", tmp_path / "back")
    assert read_provenance(tmp_path / "back").source_files == (read,)
    hf_to_orbax(tmp_path / "back", tmp_path / "again")
    again = read_provenance(tmp_path / "again")
    assert (again.base.name, again.stages) == ("hf", (stage,))
    assert again.source_files[0] == read
    exported = bytes_of(tmp_path / "back")
    assert again.source_files[1] == {name: exported[name] for name in exported.keys() - {".astra.json", "README.md"}}


@pytest.mark.parametrize(("converter", "source"), [(hf_to_orbax, "hf"), (orbax_to_hf, "ours")])
def test_a_disk_that_is_full_at_the_last_file_leaves_the_earlier_result(converted, monkeypatch, converter, source):
    converter(converted / source, converted / "out")
    before = bytes_of(converted)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    for module in (convert, hf):
        monkeypatch.setattr(module, "copy_companions", full)
    with pytest.raises(OSError, match=r"the disk is full; make room for up to .* bytes there.*out"):
        converter(converted / source, converted / "out")
    assert bytes_of(converted) == before


_LOGITS = {"rope_theta": 1e6}
_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}


@pytest.mark.parametrize(
    "changes",
    [
        {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}, "rope_scaling": _YARN | {"rope_theta": 1e6}},
        _LOGITS
        | {"rope_scaling": _YARN | {"beta_fast": 2, "beta_slow": 4, "attention_factor": None}, "rms_norm_eps": 0.1},
        _LOGITS | {"quantization_config": None, "auto_map": {"AutoModelForCausalLM": "modeling.Other"}},
    ],
)
def test_a_read_and_an_exported_folder_compute_the_logits_of_transformers(tmp_path, changes):
    torch = pytest.importorskip("torch", reason="the oracle's torch is an extra: pip install '.[parity]'")
    from transformers import AutoModelForCausalLM

    write_folder(tmp_path / "hf", dtype="float32")
    path = tmp_path / "hf" / "config.json"
    config = read_json(path)
    for key in ("rope_theta", "rope_scaling"):
        del config[key]
    path.write_text(json.dumps(config | changes))
    hf_to_orbax(tmp_path / "hf", tmp_path / "ours")
    orbax_to_hf(tmp_path / "ours", tmp_path / "back")
    ids = np.random.default_rng(0).integers(0, CONFIG.vocab_size, (1, 24))
    logits = []
    for folder in ("hf", "back"):
        model = AutoModelForCausalLM.from_pretrained(tmp_path / folder, local_files_only=True, dtype=torch.float32)
        logits.append(model(torch.tensor(ids)).logits.detach().numpy())
    found, params = load_params(tmp_path / "ours")
    positions = np.arange(24, dtype=np.int32)[None]
    ours = bind(found, params)
    hidden = ours(ids.astype(np.int32), positions, np.ones_like(positions))
    logits.append(np.asarray(hidden @ params["unembedding"].T))
    np.testing.assert_array_equal(logits[0], logits[1])
    np.testing.assert_allclose(logits[2], logits[0], rtol=1e-3, atol=1e-3)
