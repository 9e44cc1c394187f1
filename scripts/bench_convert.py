"""The memory of a conversion, both ways, of a checkpoint of a Qwen3's full shape: one JSON line.

    python scripts/bench_convert.py FOLDER --model qwen3-4b

A synthetic HuggingFace checkpoint in bfloat16 (random, finite, in shards with an index) becomes a checkpoint of ours by
`astra convert hf-to-orbax`, and that a HuggingFace folder again by `astra convert orbax-to-hf`; the two folders are
compared tensor by tensor. FOLDER holds all three for a while (24 GB for 4B) and is left as it was.

`peak_rss_bytes` is what the kernel says of the whole process that ran the command (ru_maxrss): Python and its
libraries, and the pages of mapped files, count. The limit is 2 × the largest HuggingFace tensor + 1 GiB.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SHARD_BYTES = 2 * 2**30


def make(model: str, folder: Path) -> None:
    """Writes the synthetic checkpoint, one shard in memory at a time."""
    import ml_dtypes
    import numpy as np
    from safetensors.numpy import save_file

    from astra_jax.checkpoints.hf import hf_tensors
    from astra_jax.model.config import QWEN3_PRESETS

    config = QWEN3_PRESETS[model]
    shards: list[list] = [[]]
    room = SHARD_BYTES
    for tensor in hf_tensors(config):
        size = 2 * math.prod(tensor.shape)
        if shards[-1] and size > room:
            shards.append([])
            room = SHARD_BYTES
        shards[-1].append(tensor)
        room -= size
    rng = np.random.default_rng(0)
    folder.mkdir()
    weight_map = {}
    for number, members in enumerate(shards, start=1):
        name = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        weight_map |= {tensor.name: name for tensor in members}
        arrays = {}
        for tensor in members:
            bits = np.frombuffer(rng.bytes(2 * math.prod(tensor.shape)), np.uint16) & 0xBFFF  # below 2: no inf, no NaN
            arrays[tensor.name] = bits.view(ml_dtypes.bfloat16).reshape(tensor.shape)
        save_file(arrays, folder / name, metadata={"format": "pt"})
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    (folder / "config.json").write_text(json.dumps(config.to_hf() | {"torch_dtype": "bfloat16"}))


def digests(folder: Path) -> None:
    """Prints the SHA-256 of every tensor, and how large the largest is."""
    import ml_dtypes  # noqa: F401 (gives NumPy its bfloat16)
    from safetensors import safe_open

    found = {}
    largest = 0
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="numpy") as file:
            names = list(file.keys())
        for name in names:
            with safe_open(path, framework="numpy") as file:
                tensor = file.get_tensor(name)
            found[name] = f"{tensor.dtype} {tensor.shape} {hashlib.sha256(tensor.reshape(-1).view('u1')).hexdigest()}"
            largest = max(largest, tensor.nbytes)
    print(json.dumps({"tensors": found, "largest_tensor_bytes": largest}))


def in_own_process(*arguments: str | Path) -> dict:
    """What a JSON line on stdout says, with the seconds and the peak memory of the process."""
    # This process stays small: the kernel counts what a child shared with it before exec as the child's.
    start = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, *arguments], stdout=subprocess.PIPE, text=True, env=os.environ | {"JAX_PLATFORMS": "cpu"}
    )
    assert process.stdout is not None
    output = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        sys.exit(f"{' '.join(map(str, arguments))} ended with status {os.waitstatus_to_exitcode(status)}")
    figures = {"seconds": round(time.perf_counter() - start, 1), "peak_rss_bytes": usage.ru_maxrss * 1024}
    return figures | (json.loads(output) if output.startswith("{") else {})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", default="qwen3-4b", help="a preset of `astra_jax.model.config`")
    parser.add_argument(
        "--dtype", default="bfloat16", choices=["bfloat16", "float32"], help="of our weights in between"
    )
    parser.add_argument("--make", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--digests", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.make:
        make(arguments.model, arguments.folder)
        return
    if arguments.digests:
        digests(arguments.folder)
        return
    arguments.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        original, ours, back = (Path(name) / part for part in ("original", "ours", "back"))
        in_own_process(__file__, original, "--make", "--model", arguments.model)
        size = sum(file.stat().st_size for file in original.iterdir())
        needed = size * (2 if arguments.dtype == "bfloat16" else 3)
        if shutil.disk_usage(name).free < needed:
            sys.exit(f"{arguments.folder}: expected {needed} bytes free")
        convert = ("-m", "astra_jax.cli", "convert")
        there = in_own_process(*convert, "hf-to-orbax", original, ours, "--dtype", arguments.dtype)
        again = in_own_process(*convert, "orbax-to-hf", ours, back, "--dtype", "bfloat16")
        before, after = (in_own_process(__file__, folder, "--digests") for folder in (original, back))
    limit = 2 * before["largest_tensor_bytes"] + 2**30
    report = {
        "work": f"HuggingFace to Orbax and back, {arguments.model}, ours in {arguments.dtype}",
        "checkpoint_bytes": size,
        "largest_tensor_bytes": before["largest_tensor_bytes"],
        "limit_bytes": limit,
        "hf_to_orbax": there,
        "orbax_to_hf": again,
        "within_limit": max(there["peak_rss_bytes"], again["peak_rss_bytes"]) <= limit,
        "bit_equal": before["tensors"] == after["tensors"],
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
