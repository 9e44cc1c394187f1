"""RL runs that are killed with SIGKILL at random moments and resumed."""

from __future__ import annotations

import hashlib
import json
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from astra_jax.checkpoints.policy import Policy
from astra_jax.metrics_file import read_metrics
from astra_jax.rl.config import RLConfig
from tests.astra_jax.curves import curve, episodes, weights
from tests.astra_jax.killed_process import ROOT
from tests.astra_jax.rl.configs import tiny_rl_config

_POLL_SECONDS = 0.002


def config_with_surplus(folder: Path, policy: Policy, steps: int) -> RLConfig:
    """Return the config of a run of three groups a rollout and two an update, so that groups wait."""
    return tiny_rl_config(
        folder,
        policy,
        steps=steps,
        out=folder / "whole",
        rollout={"max_prompt_tokens": 256, "max_response_tokens": 160, "max_turns": 6, "temperature": 1.2},
        groups_per_step=2,
        groups_per_rollout=3,
        min_reward_std=0.0,
        max_rollouts_per_step=100,
        checkpoint_every_steps=3,
        log_episodes_every_steps=1,
    )


def begun(config: RLConfig, url: str) -> tuple[subprocess.Popen[str], float]:
    """Start or resume a run in a process of its own; return it and the time when it wrote its record."""
    command = [sys.executable, "-m", "tests.astra_jax.rl.run_rl", config.model_dump_json(), url]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    while process.poll() is None and not (config.out / "run.json").exists():
        time.sleep(_POLL_SECONDS)
    return process, time.monotonic()


def run_to_its_end(config: RLConfig, url: str) -> float:
    """Start or resume a run; return its seconds from its record to its end.

    Raises:
        RuntimeError: the run has failed.
    """
    process, started = begun(config, url)
    _, errors = process.communicate()
    if process.returncode:
        raise RuntimeError(f"expected a run that ends with 0, found {process.returncode}:\n{errors}")
    return time.monotonic() - started


def is_killed(config: RLConfig, url: str, after_seconds: float) -> bool:
    """Kill a run some seconds after its record; return False if it had ended by then."""
    process, _ = begun(config, url)
    try:
        process.wait(after_seconds)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
    process.communicate()
    return process.returncode == -signal.SIGKILL


def bytes_of(out: Path) -> str:
    """Return a hash of a run's weights, episodes and metrics, without times and the service's errors."""
    told = json.dumps([curve(out), episodes(out)]).encode()
    return hashlib.sha256(told + weights(out / "policy")).hexdigest()


def measure(config: RLConfig, url: str, *, kills: int, seed: int) -> dict[str, Any]:
    """Run once undisturbed, then kill and resume other runs; return the figures."""
    run_to_its_end(config.model_copy(update={"out": config.out.with_name("first")}), url)  # compiles
    seconds, expected = run_to_its_end(config, url), bytes_of(config.out)
    waiting = [line["groups_waiting"] for line in read_metrics(config.out / "metrics.jsonl")]
    drawn, steps, num_identical, num_too_late = random.Random(seed), [], 0, 0
    while len(steps) < kills:
        run = config.model_copy(update={"out": config.out.with_name(f"run-{len(steps)}")})
        if not is_killed(run, url, drawn.uniform(0, seconds)):
            num_too_late += 1
            shutil.rmtree(run.out)
            continue
        steps.append(len(read_metrics(run.out / "metrics.jsonl")))
        run_to_its_end(run, url)
        num_identical += bytes_of(run.out) == expected
    return {
        "kills": kills,
        "steps_done_when_killed": steps,
        "steps": config.steps,
        "steps_with_waiting_groups": sum(count > 0 for count in waiting),
        "undisturbed_seconds": round(seconds, 1),
        "ended_before_the_kill": num_too_late,
        "bit_identical": num_identical,
    }
