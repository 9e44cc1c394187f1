"""Pre-train the tiny Qwen3 that quickstarts begin with, and write it as a HuggingFace folder in bfloat16.

    python scripts/pretrain_tiny_base.py configs/tiny_base.toml --to runs/tiny_base/hf

The same command again goes on where it stopped. What it writes is shipped as `astra_jax/tiny_base`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from astra_jax.checkpoints.hf import save_hf
from astra_jax.checkpoints.policy import load_policy
from astra_jax.config import load_config
from astra_jax.recipes.tiny_base import TinyBaseConfig, pretrain

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path)
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    parser.add_argument("--to", type=Path, required=True, help="the folder to write")
    arguments = parser.parse_args()
    config = load_config(TinyBaseConfig, arguments.config, arguments.overrides)
    figures = pretrain(config)
    policy = load_policy(config.out / "policy")
    save_hf(
        *(policy.params, policy.model_config, arguments.to),
        dtype="bfloat16",
        companions=config.out / "policy",
        license_id="apache-2.0",
    )
    print({"figure": "pretrain_tiny_base", **figures, "to": str(arguments.to)})
