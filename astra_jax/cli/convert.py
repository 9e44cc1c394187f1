"""`astra convert hf-to-orbax|orbax-to-hf`: checkpoints to and from HuggingFace."""

from __future__ import annotations

import argparse
from pathlib import Path

from astra_jax.cli.arguments import Commands
from astra_jax.cli.surroundings import lock_beside


def add_convert(commands: Commands) -> None:
    """Add the two commands."""
    parser = commands.add_parser("convert", help="checkpoints to and from HuggingFace")
    convert = parser.add_subparsers(dest="direction", required=True, metavar="DIRECTION")
    for direction, text, kept in (
        ("hf-to-orbax", "a HuggingFace folder to a checkpoint of ours", "float32, as training wants them"),
        ("orbax-to-hf", "a checkpoint of ours to a HuggingFace folder", "as they are"),
    ):
        command = convert.add_parser(direction, help=text)
        command.add_argument("source", type=Path, metavar="SRC")
        command.add_argument("destination", type=Path, metavar="DST", help="new, or an earlier one to replace")
        command.add_argument("--dtype", choices=["float32", "bfloat16"], help=f"of the weights in DST; default: {kept}")
        command.set_defaults(run=_convert)


def _convert(options: argparse.Namespace) -> None:
    from astra_jax.checkpoints.convert import CHECKPOINT, hf_to_orbax, orbax_to_hf
    from astra_jax.checkpoints.hf import HF_FOLDER
    from astra_jax.cli.compile_cache import keep_compiled_programs

    keep_compiled_programs()
    source, destination, dtype = options.source, options.destination, options.dtype
    is_to_orbax = options.direction == "hf-to-orbax"
    with lock_beside(destination, CHECKPOINT if is_to_orbax else HF_FOLDER, [source]):
        if is_to_orbax:
            model = hf_to_orbax(source, destination, param_dtype=dtype or "float32")
        else:
            model = orbax_to_hf(source, destination, dtype=dtype)
    print(f"convert: {model.num_parameters} parameters -> {destination}")
