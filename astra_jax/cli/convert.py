"""`astra convert hf-to-orbax|orbax-to-hf`: checkpoints to and from HuggingFace."""

from __future__ import annotations

import argparse
from pathlib import Path

from astra_jax.cli.arguments import Commands
from astra_jax.cli.surroundings import lock_beside


def add_convert(commands: Commands) -> None:
    """Add the two commands."""
    convert = commands.add_parser("convert", help="checkpoints to and from HuggingFace").add_subparsers(
        dest="direction", required=True, metavar="DIRECTION"
    )
    to_orbax = convert.add_parser("hf-to-orbax", help="a HuggingFace folder to a checkpoint of ours")
    to_orbax.set_defaults(run=_hf_to_orbax)
    to_hf = convert.add_parser("orbax-to-hf", help="a checkpoint of ours to a HuggingFace folder")
    to_hf.set_defaults(run=_orbax_to_hf)
    for command, kept in ((to_orbax, "float32, as training wants them"), (to_hf, "as they are")):
        command.add_argument("source", type=Path, metavar="SRC")
        command.add_argument("destination", type=Path, metavar="DST", help="new, or an earlier one to replace")
        command.add_argument("--dtype", choices=["float32", "bfloat16"], help=f"of the weights in DST; default: {kept}")


def _hf_to_orbax(options: argparse.Namespace) -> None:
    from astra_jax.checkpoints.convert import CHECKPOINT, hf_to_orbax
    from astra_jax.cli.compile_cache import keep_compiled_programs

    keep_compiled_programs()
    with lock_beside(options.destination, CHECKPOINT, [options.source]):
        model = hf_to_orbax(options.source, options.destination, param_dtype=options.dtype or "float32")
    print(f"convert: {model.num_parameters} parameters -> {options.destination}")


def _orbax_to_hf(options: argparse.Namespace) -> None:
    from astra_jax.checkpoints.convert import orbax_to_hf
    from astra_jax.checkpoints.hf import HF_FOLDER
    from astra_jax.cli.compile_cache import keep_compiled_programs

    keep_compiled_programs()
    with lock_beside(options.destination, HF_FOLDER, [options.source]):
        model = orbax_to_hf(options.source, options.destination, dtype=options.dtype)
    print(f"convert: {model.num_parameters} parameters -> {options.destination}")
