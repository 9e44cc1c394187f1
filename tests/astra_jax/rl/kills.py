"""RL runs that are killed with SIGKILL at random moments and resumed, and the phase that each kill met.

tools      episodes are rolled out, and at least one waits for its tools
decoding   episodes are rolled out, and none waits
learner    from a full batch to the end of its step
before     the run has begun, and reads its first state
end        every step has ended, and the policy is written
save       any of these, while a checkpoint is being written
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from astra_jax.checkpoints.checkpoint import Checkpoints
from astra_jax.checkpoints.policy import Policy
from astra_jax.cli.compile_cache import keep_compiled_programs
from astra_jax.metrics_file import read_metrics
from astra_jax.rl.config import RLConfig
from astra_jax.rl.rollouts import Rollouts
from astra_jax.rl.stage import run_rl
from astra_jax.training.run import TrainingRun
from sandbox.client import AsyncSandboxClient
from tests.astra_jax.curves import curve, episodes, weights
from tests.astra_jax.rl.configs import tiny_rl_config

ROOT = Path(__file__).parents[3]
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


class Phase:
    """The phase of a run, in a file of three bytes, which outlives the process."""

    def __init__(self, path: Path):
        self._file = os.open(path, os.O_RDWR | os.O_CREAT)
        self._num_tools = 0
        self._write(0, b"b--")

    def _write(self, place: int, text: bytes) -> None:
        os.pwrite(self._file, text, place)

    def _count_tools(self, change: int) -> None:
        self._num_tools += change
        self._write(1, b"t" if self._num_tools else b"-")

    def watch(self) -> None:
        """Follow rollouts, calls of tools and saves of this process from now on."""
        roll_out, execute = Rollouts.batch, AsyncSandboxClient.execute
        save, finish, end = Checkpoints.save, Checkpoints._finish, TrainingRun.finish

        async def rolled_out(*arguments: Any, **options: Any) -> Any:
            self._write(0, b"r")
            found = await roll_out(*arguments, **options)
            self._write(0, b"l")
            return found

        async def executed(*arguments: Any, **options: Any) -> Any:
            self._count_tools(1)
            try:
                return await execute(*arguments, **options)
            finally:
                self._count_tools(-1)

        def saved(*arguments: Any) -> Any:
            self._write(2, b"s")
            return save(*arguments)

        def finished(*arguments: Any) -> None:
            finish(*arguments)
            self._write(2, b"-")

        def closed(*arguments: Any, **options: Any) -> Any:
            self._write(0, b"e")
            return end(*arguments, **options)

        TrainingRun.finish = closed  # type: ignore[method-assign]
        Rollouts.batch, AsyncSandboxClient.execute = rolled_out, executed  # type: ignore[method-assign, assignment]
        Checkpoints.save, Checkpoints._finish = saved, finished  # type: ignore[method-assign, assignment]


def phase_in(path: Path) -> str:
    """Return the phase of a killed process from its file."""
    main, tools, save = path.read_text()
    if save == "s":
        return "save"
    return {"b": "before", "e": "end", "l": "learner", "r": "tools" if tools == "t" else "decoding"}[main]


async def run_watched(config: RLConfig, url: str, phase: Path) -> None:
    """Run RL to its end; `phase` tells where it stands."""
    Phase(phase).watch()
    async with AsyncSandboxClient(url) as sandbox:
        await run_rl(config, sandbox)


def begun(config: RLConfig, url: str, phase: Path) -> subprocess.Popen[str]:
    """Start a run, or go on with it, in a process of its own."""
    command = [sys.executable, "-m", "tests.astra_jax.rl.kills", config.model_dump_json(), url, str(phase)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def ended(process: subprocess.Popen[str]) -> None:
    """Wait for a run's end.

    Raises:
        RuntimeError: it has failed.
    """
    _, errors = process.communicate()
    if process.returncode:
        raise RuntimeError(f"expected a run that ends with 0, found {process.returncode}:\n{errors}")


def seconds_of_run(process: subprocess.Popen[str], config: RLConfig) -> float:
    """Wait for a run's end; return how long it took from its record on, which it writes before it learns."""
    wait_for_record(process, config)
    started = time.monotonic()
    ended(process)
    return time.monotonic() - started


def wait_for_record(process: subprocess.Popen[str], config: RLConfig) -> None:
    """Wait until a run has begun."""
    while process.poll() is None and not (config.out / "run.json").exists():
        time.sleep(_POLL_SECONDS)


def killed(config: RLConfig, url: str, phase: Path, after_seconds: float) -> str | None:
    """Kill a run so long after its record; return its phase, or None if it had ended."""
    process = begun(config, url, phase)
    wait_for_record(process, config)
    try:
        process.wait(after_seconds)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
    process.communicate()
    return phase_in(phase) if process.returncode == -signal.SIGKILL else None


def bytes_of(out: Path) -> str:
    """Return a hash of a run's weights, episodes and metrics, without times and the service's errors."""
    told = json.dumps([curve(out), episodes(out)]).encode()
    return hashlib.sha256(told + weights(out / "policy")).hexdigest()


def measure(config: RLConfig, url: str, *, kills: int, seed: int) -> dict[str, Any]:
    """Run once undisturbed, then kill and resume so many runs; return the figures."""
    phase = config.out.parent / "phase"
    ended(begun(config.model_copy(update={"out": config.out.with_name("first")}), url, phase))  # compiles
    seconds = seconds_of_run(begun(config, url, phase), config)
    expected = bytes_of(config.out)
    waiting = [line["groups_waiting"] for line in read_metrics(config.out / "metrics.jsonl")]
    drawn, phases, steps, num_identical, num_too_late = random.Random(seed), Counter[str](), [], 0, 0
    while phases.total() < kills:
        run = config.model_copy(update={"out": config.out.with_name(f"run-{phases.total()}")})
        found = killed(run, url, phase, drawn.uniform(0, seconds))
        if found is None:
            num_too_late += 1
            shutil.rmtree(run.out)
            continue
        phases[found] += 1
        steps.append(len(read_metrics(run.out / "metrics.jsonl")))
        ended(begun(run, url, phase))
        num_identical += bytes_of(run.out) == expected
    return {
        "kills": kills,
        "phases": dict(sorted(phases.items())),
        "steps_done_when_killed": steps,
        "steps": config.steps,
        "steps_with_waiting_groups": sum(count > 0 for count in waiting),
        "undisturbed_seconds": round(seconds, 1),
        "ended_before_the_kill": num_too_late,
        "bit_identical": num_identical,
    }


if __name__ == "__main__":
    keep_compiled_programs()
    asyncio.run(run_watched(RLConfig.model_validate_json(sys.argv[1]), sys.argv[2], Path(sys.argv[3])))
