"""Metrics, episodes and weights of a training run, without the figures of clock and service."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from astra_jax.checkpoints.checkpoint import load_params
from astra_jax.metrics_file import read_metrics


def curve(out: Path) -> list[dict[str, Any]]:
    """Return the lines of metrics, without times and the service's errors."""
    lines = map(without_times, read_metrics(out / "metrics.jsonl"))
    return [{name: value for name, value in line.items() if "service_errors" not in name} for line in lines]


def without_times(line: Mapping[str, Any]) -> dict[str, Any]:
    """Return the figures of a line that follow from config, data and seed, without the figures of clock and machine."""
    of_the_machine = ("mfu", "other_share", "useful_row_steps_share", "slowest_host")
    return {name: value for name, value in line.items() if "second" not in name and name not in of_the_machine}


def episodes(out: Path) -> dict[str, str]:
    """Return the texts of the episode logs by the names of their files, without the seconds, which are of a clock."""
    logs = sorted((out / "episodes").iterdir())
    return {path.name: re.sub(r'"seconds":\[(\[[^]]*\],?)*\]', "", path.read_text()) for path in logs}


def weights(folder: Path) -> bytes:
    """Return the bytes of all weights of a checkpoint folder."""
    return b"".join(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(load_params(folder)[1]))
