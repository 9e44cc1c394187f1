"""`astra convert`: checkpoints to and from HuggingFace, and GGUF files to HuggingFace."""

from __future__ import annotations

import argparse

from astra_jax.checkpoints.convert import CHECKPOINT, hf_to_orbax, orbax_to_hf
from astra_jax.checkpoints.gguf_file import gguf_to_hf
from astra_jax.checkpoints.hf import HF_FOLDER
from astra_jax.cli.surroundings import lock_beside


def convert(options: argparse.Namespace) -> None:
    """Convert a checkpoint in the direction that is asked for."""
    source, destination, dtype = options.source, options.destination, options.dtype
    is_to_orbax = options.direction == "hf-to-orbax"
    with lock_beside(destination, CHECKPOINT if is_to_orbax else HF_FOLDER, [source]):
        if is_to_orbax:
            model = hf_to_orbax(source, destination, param_dtype=dtype or "float32")
        elif options.direction == "gguf-to-hf":
            model = gguf_to_hf(source, destination, dtype=dtype or "float32")
        else:
            model = orbax_to_hf(source, destination, dtype=dtype)
    print(f"convert: {model.num_parameters} parameters -> {destination}")
