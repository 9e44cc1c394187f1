"""The whole recipe on this machine: real tool documents in, a trained HuggingFace checkpoint out.

    tools ─► trajectories ─┐
    environments, held out ─┴─► tokenizer ─► SFT ─► RL ─► export        evaluated untrained, after SFT and after RL

The stages are the ones that the single commands run, with the configs of `configs/tiny_*.toml`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from astra_jax.chat_format import render
from astra_jax.cli.data_sets import describe
from astra_jax.cli.process_memory import PeakMemory
from astra_jax.cli.quickstart_evaluation import HELD_OUT_SPLITS, evaluate_policy, summarised
from astra_jax.config import load_config
from astra_jax.errors import AstraError
from astra_jax.model.hf import load_hf, save_hf
from astra_jax.model.mimetic_init import mimetic_init
from astra_jax.model.qwen3 import bind
from astra_jax.policy import Policy, load_policy, save_policy
from astra_jax.report import write_report
from astra_jax.rl.train import RLConfig, train_rl
from astra_jax.rollout.episode_log import write_episodes
from astra_jax.sft.train import SFTConfig, train_sft
from astra_jax.tokenizer import Tokenizer, train_tiny_tokenizer
from sandbox.client import AsyncSandboxClient
from sandbox.local import local_sandbox
from synthesis.environments.held_out import held_out_configs
from synthesis.environments.pipeline import EnvironmentsConfig, synthesize_environments
from synthesis.environments.verification import verify_environments
from synthesis.record_io import RecordSource
from synthesis.records import Environment, Trajectory
from synthesis.teacher.procedural import ProceduralTeacher
from synthesis.trajectories.pipeline import TrajectoriesConfig, synthesize_tools, synthesize_trajectories
from synthesis.trajectories.tool_sources import EXAMPLES_DIRECTORY

CONFIGS = Path(__file__).parents[2] / "configs"

_MARK = ".quickstart"
"""Says that a folder was made by the quickstart and may be deleted by the next one."""
_LOGIT_CHECK_TOKENS = 256


class QuickstartFailed(AstraError):
    """A stage ended without what the next one needs; the message says which and why."""


class Stages:
    """Runs stages one after the other and keeps what each took."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.peak_rss_bytes: dict[str, int] = {}

    @contextlib.contextmanager
    def run(self, name: str) -> Iterator[None]:
        """Measure one stage."""
        print(f"[{name}]", file=sys.stderr, flush=True)
        started = time.monotonic()
        with PeakMemory() as memory:
            yield
        self.seconds[name] = round(time.monotonic() - started, 2)
        self.peak_rss_bytes[name] = memory.peak_bytes


def quickstart(out: Path, *, seed: int, tool_documents: Sequence[Path]) -> dict[str, Any]:
    """Run every stage into `out` and return the summary that it also writes there.

    An earlier quickstart in `out` is deleted first; any other folder is left alone. The figures depend on the seed and
    the documents alone, seconds and bytes on the machine.

    Raises:
        QuickstartFailed: a record or a checkpoint did not pass its check.
        SandboxUnavailable, ToolServerUnavailable, ConfigError: what the stages raise.
    """
    _make_room(out)
    stages = Stages()
    with local_sandbox(workers=2) as url:
        with stages.run("tools"):
            _ingest_tools(out, tool_documents)
        with stages.run("trajectories"):
            _synthesize_trajectories(out, seed, tool_documents)
        with stages.run("environments"):
            _synthesize_environments(out, seed, url)
        with stages.run("tokenizer"):
            tokenizer = _train_tokenizer(out)
        sft = _sft_config(out, seed, tokenizer)
        assert sft.model is not None
        save_policy(Policy(sft.model, mimetic_init(sft.model, seed), tokenizer), out / "untrained")
        evaluations = {}
        for name, folder in (("untrained", "untrained"), ("sft", "sft/policy"), ("rl", "rl/policy")):
            if name == "sft":
                with stages.run("sft"):
                    print(train_sft(sft), file=sys.stderr)
            if name == "rl":
                with stages.run("rl"):
                    print(asyncio.run(_train_rl(out, seed, url)), file=sys.stderr)
            with stages.run(f"evaluate_{name}"):
                evaluations[name] = evaluate_policy(
                    load_policy(out / folder), name, out, CONFIGS / "tiny_evaluation.toml", seed=seed, url=url
                )
            print(f"{name}: {evaluations[name].closing_line()}", file=sys.stderr, flush=True)
    with stages.run("export"):
        export = export_and_compare(out / "rl" / "policy", out / "hf")
    write_episodes(out / "episodes.jsonl", [line for each in evaluations.values() for line in each.shown])
    summary = {
        "seed": seed,
        "seconds": {"total": round(sum(stages.seconds.values()), 2), **stages.seconds},
        "peak_rss_bytes": max(stages.peak_rss_bytes.values()),
        "stage_peak_rss_bytes": stages.peak_rss_bytes,
        "trajectories": len(RecordSource(out / "trajectories", Trajectory)),
        "environments": {
            "train": len(RecordSource(out / "environments", Environment)),
            **{name: len(RecordSource(out / name, Environment)) for name in HELD_OUT_SPLITS},
        },
        **summarised(evaluations),
        "export": export,
    }
    (out / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
    write_report(out, describe)
    return summary


def _make_room(out: Path) -> None:
    if out.exists() and any(out.iterdir()) and not (out / _MARK).is_file():
        raise QuickstartFailed(
            f"expected an empty folder or an earlier quickstart, found other files in {out}; name another with --out"
        )
    if out.exists():
        shutil.rmtree(out)
    out.mkdir(parents=True)
    (out / _MARK).touch()


def _ingest_tools(out: Path, tool_documents: Sequence[Path]) -> None:
    config = load_config(TrajectoriesConfig, CONFIGS / "tiny_trajectories.toml")
    sources = [EXAMPLES_DIRECTORY, *tool_documents]
    report = asyncio.run(
        synthesize_tools(sources, out / "tools", mcp_servers=config.mcp_servers, filters=config.filters)
    )
    print(report.closing_line(), file=sys.stderr)


def _synthesize_trajectories(out: Path, seed: int, tool_documents: Sequence[Path]) -> None:
    config = load_config(TrajectoriesConfig, CONFIGS / "tiny_trajectories.toml")
    changes = {"seed": seed, "out": out / "trajectories", "tool_documents": tuple(tool_documents)}
    report = asyncio.run(synthesize_trajectories(config.model_copy(update=changes), ProceduralTeacher()))
    print(report.closing_line(), file=sys.stderr)


def _synthesize_environments(out: Path, seed: int, url: str) -> None:
    """Training environments, then held-out ones that share no entity and no answer with them; all replayed."""
    training = load_config(EnvironmentsConfig, CONFIGS / "tiny_environments.toml").model_copy(
        update={"seed": seed, "out": out / "environments"}
    )
    for config in (training, *held_out_configs(training).values()):
        print(asyncio.run(synthesize_environments(config, ProceduralTeacher(), url)).closing_line(), file=sys.stderr)
        verified = asyncio.run(verify_environments(config.out, url))
        print(verified.closing_line(), file=sys.stderr)
        if verified.failures:
            raise QuickstartFailed(f"{config.out}: environment {verified.failures[0][0]}: {verified.failures[0][1]}")


def _train_tokenizer(out: Path) -> Tokenizer:
    config = load_config(SFTConfig, CONFIGS / "tiny_sft.toml")
    assert config.model is not None
    texts = [
        render(environment.gold_messages(), [tool.document for tool in environment.all_tools])
        for environment in RecordSource(out / "environments", Environment)
    ]
    texts *= 10  # names stand in environments, and few times each; conversations have most of the words
    texts += [
        render(trajectory.messages, trajectory.tools) for trajectory in RecordSource(out / "trajectories", Trajectory)
    ]
    tokenizer = train_tiny_tokenizer(texts, vocab_size=config.model.vocab_size)
    tokenizer.save(out / "tokenizer", model_max_length=config.model.context_tokens)
    return tokenizer


def _sft_config(out: Path, seed: int, tokenizer: Tokenizer) -> SFTConfig:
    return load_config(SFTConfig, CONFIGS / "tiny_sft.toml").model_copy(
        update={
            "seed": seed,
            "out": out / "sft",
            "tokenizer": out / "tokenizer",
            "trajectories": (out / "trajectories",),
            "environments": (out / "environments",),
        }
    )


async def _train_rl(out: Path, seed: int, url: str) -> dict[str, Any]:
    config = load_config(RLConfig, CONFIGS / "tiny_rl.toml").model_copy(
        update={
            "seed": seed,
            "out": out / "rl",
            "init": out / "sft" / "policy",
            "environments": out / "environments",
        }
    )
    async with AsyncSandboxClient(url) as sandbox:
        return await train_rl(config, sandbox)


def export_and_compare(policy_folder: Path, hf_folder: Path) -> dict[str, Any]:
    """Write a HuggingFace folder; compare its logits with `transformers` and its tensors after the way back."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    policy = load_policy(policy_folder)
    save_hf(policy.params, policy.model, hf_folder, companions=policy_folder)
    _, restored = load_hf(hf_folder)
    bit_equal = jax.tree.all(
        jax.tree.map(lambda a, b: np.asarray(a).tobytes() == np.asarray(b).tobytes(), policy.params, restored)
    )
    ids = np.random.default_rng(0).integers(0, policy.model.vocab_size, (2, _LOGIT_CHECK_TOKENS))
    positions = np.broadcast_to(np.arange(_LOGIT_CHECK_TOKENS), ids.shape)
    model = bind(policy.model, policy.params)
    hidden = model(jnp.asarray(ids), jnp.asarray(positions), jnp.ones(ids.shape, jnp.int32))
    ours = np.asarray(model.logits(hidden))
    theirs_model = AutoModelForCausalLM.from_pretrained(hf_folder, dtype=torch.float32)
    with torch.no_grad():
        theirs = theirs_model(torch.from_numpy(ids)).logits.numpy()
    tokenizer = AutoTokenizer.from_pretrained(hf_folder)
    text = "What is the rent of Amber Falcon? 房租是多少？"
    if tokenizer(text)["input_ids"] != policy.tokenizer.encode(text):
        raise QuickstartFailed(f"the tokenizer of {hf_folder} gives other tokens than ours")
    return {"max_abs_logit_difference": float(np.abs(ours - theirs).max()), "bit_equal": bool(bit_equal)}
