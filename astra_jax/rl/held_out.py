"""Evaluation in held-out environments during an RL run, and a copy of the policy with the best score.

Every evaluation runs one episode in each environment, with the same tools and random numbers, so the figures of two
steps differ by the policy alone. It samples with the learner's weights, laid out as for a rollout. The best policy is a
policy folder of its own, which no retention rule removes:

    OUT/best -> best_00000040              a link, replaced by one rename when the folder is whole; none in a bucket
    OUT/best_00000040/                     a policy folder
        held_out.json                      {"step": 40, "f1": 0.61}
"""

from __future__ import annotations

import json
import os
import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import jax
from jax.experimental import multihost_utils
from jax.sharding import Mesh

from astra_jax.checkpoints.checkpoint import TrainState
from astra_jax.config import ConfigError
from astra_jax.episodes.figures import episode_figures
from astra_jax.episodes.finished import finished_episode
from astra_jax.episodes.rewards import earned
from astra_jax.episodes.rollout import Group, RolloutConfig, RolloutEngine, Start, none_can_run
from astra_jax.episodes.tool_mixing import mix_tools
from astra_jax.mesh.hosts import gather_bytes_from_hosts
from astra_jax.mesh.layouts import laid_out_for_decoding
from astra_jax.mesh.placement import in_force
from astra_jax.model.config import Params
from astra_jax.rl.config import HeldOutConfig, RLConfig
from astra_jax.training.run import Parts
from sandbox.client import AsyncSandboxClient
from synthesis.record_io import RecordSource
from synthesis.records import Environment
from synthesis.run.places import address_of, in_bucket, publish


class Best(NamedTuple):
    """The step and the score of the best policy."""

    step: int
    """Updates that the policy has seen."""
    f1: float
    """F1 of that policy on the held-out environments."""


class BestPolicy:
    """The best policy so far. With several hosts, every host makes every call."""

    def __init__(self, out: Path, save: Callable[[Path, Params], None]):
        """Read the best policy of an earlier command in `out`; `save` writes weights as a policy folder."""
        self._out, self._save = out, save
        path = out / "best" / "held_out.json"
        if jax.process_index() == 0 and not path.is_file():  # also after a fetch, since a bucket has no links
            for whole in sorted(out.glob("best_*/held_out.json"))[-1:]:
                self._link_to(whole.parent)
        # All hosts take the bytes that the first one read: on a disk that shows files late, hosts could disagree.
        text = gather_bytes_from_hosts(path.read_bytes() if path.is_file() else b"")[0]
        self.best = Best(**json.loads(text)) if text else None

    def keep(self, best: Best, params: Params) -> bool:
        """Keep a policy if it is better than the best so far; return whether it was kept.

        If the process is killed meanwhile, the earlier best policy stays in place. After a restart the best policy may
        come from a later step than the restored state.
        """
        if self.best is not None and best.f1 <= self.best.f1:
            return False
        self.best = best
        folder = self._out / f"best_{best.step:08d}"
        self._save(folder, params)
        if jax.process_index() == 0:
            (folder / "held_out.json").write_text(json.dumps(best._asdict()) + "\n", encoding="utf-8")
            publish(folder)
            self._link_to(folder)
            for other in self._out.glob("best_*"):
                if other != folder:
                    if address_of(other):
                        in_bucket(other).rmtree(missing_ok=True)  # type: ignore[attr-defined]
                    shutil.rmtree(other)
        multihost_utils.sync_global_devices(f"best policy of step {best.step}")
        return True

    def _link_to(self, folder: Path) -> None:
        link = self._out / ".best"
        link.unlink(missing_ok=True)
        link.symlink_to(folder.name, target_is_directory=True)
        os.replace(link, self._out / "best")


class HeldOut:
    """The held-out environments of a run, and the evaluation of a policy on them."""

    def __init__(
        self,
        config: RLConfig,
        held_out: HeldOutConfig,
        parts: Parts,
        sandbox: AsyncSandboxClient,
        mesh: Mesh | None,
        best_policy: BestPolicy,
    ):
        """Open the environments, of which one at least has to fit; `mesh` is the mesh that episodes are decoded on."""
        self._config, self._held_out = config, held_out
        self._parts, self._mesh, self.best_policy = parts, mesh, best_policy
        rollout = RolloutConfig.model_validate(config.rollout.model_dump() | {"temperature": held_out.temperature})
        self._engine = RolloutEngine(parts.policy_config, parts.tokenizer, sandbox, rollout)
        starts = [
            Start(each, mix_tools(each, irrelevant_per_band=config.irrelevant_per_band, seed=config.seed))
            for each in held_out_environments(held_out, config.environments, config.seed)
        ]
        self._starts = [start for start in starts if self._engine.can_run(start)]
        if not self._starts:
            raise none_can_run(rollout, len(starts))
        self._num_left_out = len(starts) - len(self._starts)

    def is_due(self, step: int) -> bool:
        """Whether the policy after `step` updates is evaluated: every `every_steps` updates, and after the last."""
        return step % self._held_out.every_steps == 0 or step == self._config.steps

    async def evaluate(self, state: TrainState) -> dict[str, float]:
        """Run the episodes of a policy, keep the policy if it is the best so far, and return its figures."""
        started = time.monotonic()
        at_once = min(self._held_out.most_at_once, len(self._starts))
        decoding_params = laid_out_for_decoding(self._parts.model_config, self._mesh, state.params)
        groups: list[Group] = []
        with in_force(self._mesh):
            for first in range(0, len(self._starts), at_once):
                groups += await self._engine.run(
                    decoding_params,
                    self._starts[first : first + at_once],
                    group_size=1,
                    # Another seed for each lot: with the same seed a row would draw the same numbers in every lot.
                    seed=random.Random(f"{self._config.seed}/held out/{first}").getrandbits(31),
                    policy_version=state.step,
                    room_for=at_once,
                )
        episodes = [episode for group in groups for episode in group]
        rewards = [earned(self._config.reward, finished_episode(each, self._parts.tokenizer)) for each in episodes]
        means = episode_figures(episodes, rewards)
        self.best_policy.keep(Best(state.step, means["f1"]), state.params)
        return {
            **{f"held_out_{name}": value for name, value in means.items()},
            "held_out_environments": len(groups),
            "held_out_left_out": self._num_left_out,
            "held_out_seconds": round(time.monotonic() - started, 3),
        }


def held_out_environments(held_out: HeldOutConfig, learns_from: Path, seed: int) -> list[Environment]:
    """Return the environments of the evaluation in the order of their directory: all, or a number drawn by the seed.

    Raises:
        ConfigError: the run learns from some of them, or there are fewer than the config asks for.
        RecordDirectoryError: a directory is missing or damaged.
    """
    source = RecordSource(held_out.environments, Environment)
    count = len(source) if held_out.num_environments is None else held_out.num_environments
    if not 0 < count <= len(source):
        raise ConfigError(
            f"{source.directory} has {len(source)} held-out environments, and {max(count, 1)} are needed; lower "
            "held_out.num_environments or name another directory"
        )
    environments = list(source)
    learnt_from = {environment.id for environment in RecordSource(learns_from, Environment)}
    shared = [environment.id for environment in environments if environment.id in learnt_from]
    if shared:
        raise ConfigError(
            f"the run learns from {len(shared)} of {len(source)} held-out environments, which {learns_from} "
            f"has as well, such as {shared[0]}; name another directory as held_out.environments"
        )
    chosen = random.Random(f"{seed}/held out").sample(range(len(environments)), count)
    return [environments[number] for number in sorted(chosen)]
