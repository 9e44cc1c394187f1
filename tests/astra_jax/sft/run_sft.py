"""Runs SFT in a process of its own, as one of several hosts if it has a mesh: `run_sft CONFIG_JSON`."""

from __future__ import annotations

import sys

from astra_jax.mesh.hosts import join_hosts, require_shared_folder
from astra_jax.sft.config import SFTConfig
from astra_jax.sft.stage import run_sft
from synthesis.run.places import fetch

if __name__ == "__main__":
    config = SFTConfig.model_validate_json(sys.argv[1])
    if config.mesh is not None:
        join_hosts()
        print("joined", flush=True)
        require_shared_folder(config.out)
    fetch(config.out)
    run_sft(config)
