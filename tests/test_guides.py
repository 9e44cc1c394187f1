"""Every guide is walked as a stranger would, with exactly its commands, in a folder as the quickstart leaves it.

A stand-in for `astra` adds to each command the values that make the shipped configs small.
"""

from __future__ import annotations

import gzip
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from astra_jax.recipes.quickstart import TINY_BASE
from tests.guides import GUIDES, ROOT, script

SMALLER = {
    "mine.toml": ["count=8"],
    "tiny_trajectories.toml": ["count=12", "mcp_servers=[]"],
    "tiny_environments.toml": ["count=8"],
    "tiny_sft.toml": ["steps=2", "checkpoint_every_steps=2", "batch_tokens=1792", "length_buckets=[896]"],
    "tiny_rl.toml": [
        "steps=1",
        "groups_per_step=2",
        "groups_per_rollout=6",
        "accumulation=2",
        "checkpoint_every_steps=1",
    ],
    "tiny_evaluation.toml": ["environments_at_once=4"],
    "rl.toml": ["steps=1", "checkpoint_every_steps=1"],
}
STAND_IN = f"""#!{sys.executable}
import sys
from pathlib import Path
from astra_jax.cli.command import main
smaller = {SMALLER!r}
arguments = sys.argv[1:]
sys.exit(main(arguments + [value for each in arguments for value in smaller.get(Path(each).name, [])]))
"""


def walk(folder: Path, text: str, *, seconds: float = 1800) -> str:
    (folder / "bin").mkdir(exist_ok=True)
    (folder / "bin" / "astra").write_text(STAND_IN)
    (folder / "bin" / "astra").chmod(0o755)
    path = f"{folder / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        ["bash", "-euxmo", "pipefail", "-c", text],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=seconds,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    return done.stdout


@pytest.fixture(scope="module")
def quickstart_left(tmp_path_factory) -> Path:
    """The folders that `astra quickstart` leaves, with the shipped base in the place of trained policies."""
    folder = tmp_path_factory.mktemp("left")
    (folder / "configs").symlink_to(ROOT / "configs")
    run = "runs/quickstart"
    walk(
        folder,
        f"""
        astra convert hf-to-orbax {TINY_BASE} {run}/base
        for name in sft rl; do mkdir -p {run}/$name; cp -r {run}/base {run}/$name/policy; done
        astra synthesize trajectories configs/tiny_trajectories.toml out={run}/trajectories
        astra synthesize environments configs/tiny_environments.toml out={run}/environments
        astra synthesize environments configs/tiny_environments.toml seed=1 count=4 out={run}/heldout
        """,
    )
    (folder / run / "made_up.jsonl").write_bytes(gzip.decompress((TINY_BASE / "replay.jsonl.gz").read_bytes()))
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("guide", [path for path in GUIDES if script(path).strip()], ids=lambda path: path.stem)
def test_a_stranger_walks_a_guide_with_exactly_its_commands(guide, quickstart_left, tmp_path):
    shutil.copytree(quickstart_left, tmp_path / "here", symlinks=True)
    walk(tmp_path / "here", script(guide))
