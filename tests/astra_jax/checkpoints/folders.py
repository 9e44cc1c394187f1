"""HuggingFace folders of random tensors, made without our writer."""

from __future__ import annotations

import json
from pathlib import Path

import ml_dtypes
import numpy as np
from safetensors.numpy import load_file, save_file

from astra_jax.checkpoints.hf import hf_tensors
from astra_jax.model.config import ModelConfig

NUMPY_DTYPES = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16}


def write_hf_folder(
    directory: Path, config: ModelConfig, dtype: str = "float32", shards: int = 1
) -> dict[str, np.ndarray]:
    """Write the weights, the index of several shards, and the config; return the tensors by name."""
    directory.mkdir()
    rng = np.random.default_rng(0)
    tensors = {x.name: rng.normal(size=x.shape).astype(NUMPY_DTYPES[dtype]) for x in hf_tensors(config)}
    home = "model.safetensors" if shards == 1 else "model-{:05d}-of-{:05d}.safetensors"
    weight_map = {name: home.format(i % shards + 1, shards) for i, name in enumerate(tensors)}
    for file in set(weight_map.values()):
        save_file({name: tensors[name] for name, its in weight_map.items() if its == file}, directory / file)
    if shards > 1:
        (directory / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    (directory / "config.json").write_text(json.dumps(config.to_hf()))
    return tensors


def assert_same_tensors(directory: Path, expected: dict[str, np.ndarray]) -> None:
    """Compare the tensors of a folder with others, bit for bit."""
    found = {name: array for file in directory.glob("*.safetensors") for name, array in load_file(file).items()}
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape), name
        assert found[name].tobytes() == tensor.tobytes(), name
