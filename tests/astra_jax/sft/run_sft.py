"""Runs SFT in a process of its own, for the test that kills it: `run_sft.py CONFIG_JSON`."""

from __future__ import annotations

import sys

from astra_jax.sft.train import SFTConfig, train_sft

if __name__ == "__main__":
    train_sft(SFTConfig.model_validate_json(sys.argv[1]))
