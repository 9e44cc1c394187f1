"""The whole recipe on this machine: real tool documents in, a trained HuggingFace checkpoint out.

    a tiny base, shipped ──┐
    tools ─► trajectories ─┴─► SFT ─► RL ─► export      evaluated: the base, after SFT, after RL
    environments ─────────────────────┘
    held-out environments

The stages are the ones that the single commands run, with the configs of `configs/tiny_*.toml`. Evaluations run in a
thread of their own beside the next stage, since no stage waits for them.

Decided: docs/decisions/tiny.md, “The quickstart starts from a shipped base that was pre-trained on made-up worlds”.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import gzip
import importlib.util
import json
import shlex
import sys
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
from anyio.from_thread import start_blocking_portal
from pydantic import BaseModel

from astra_jax.chat.template import require_chat_template
from astra_jax.checkpoints.checkpoint import read_model
from astra_jax.checkpoints.convert import hf_to_orbax
from astra_jax.checkpoints.hf import load_hf, save_hf
from astra_jax.checkpoints.model_card import MODEL_CARD, model_card
from astra_jax.checkpoints.policy import Policy, load_policy
from astra_jax.config import CONFIGS, ConfigError, load_config
from astra_jax.episodes.log import write_episodes
from astra_jax.errors import AstraError
from astra_jax.evaluate.environments import EvaluationConfig
from astra_jax.model.qwen3 import bind
from astra_jax.recipes.data_sets import describe
from astra_jax.recipes.quickstart_evaluation import (
    HELD_OUT_SPLITS,
    PolicyEvaluation,
    evaluate_baselines,
    evaluate_policy,
    summarised,
)
from astra_jax.recipes.stages import Stages, make_room
from astra_jax.report import write_report
from astra_jax.rl.config import RLConfig
from astra_jax.rl.stage import run_rl
from astra_jax.sft.config import SFTConfig
from astra_jax.sft.stage import run_sft
from astra_jax.transformers_library import transformers_library
from sandbox.client import AsyncSandboxClient
from sandbox.local import local_sandbox
from synthesis.environments.config import held_out_configs
from synthesis.environments.pipeline import EnvironmentsConfig, synthesize_environments
from synthesis.environments.selection.splits import APART, shared_between
from synthesis.environments.verification import verify_environments
from synthesis.procedural.teacher import ProceduralTeacher
from synthesis.record_io import RecordSource
from synthesis.records import Environment, JsonObject, Trajectory
from synthesis.run.destination import whole_file, write_whole
from synthesis.run.fingerprint import Fingerprint, digest, digest_of_files
from synthesis.tools.sources import EXAMPLES_DIRECTORY, SourceMissing, source_files
from synthesis.trajectories.pipeline import TrajectoriesConfig, synthesize_tools, synthesize_trajectories

TINY_BASE: Final = Path(__file__).parents[1] / "tiny_base"
"""HuggingFace folder of the shipped base, and conversations like those of its pre-training."""
_CONFIG_TYPES: dict[str, type[BaseModel]] = {
    "tiny_trajectories.toml": TrajectoriesConfig,
    "tiny_environments.toml": EnvironmentsConfig,
    "tiny_sft.toml": SFTConfig,
    "tiny_rl.toml": RLConfig,
    "tiny_evaluation.toml": EvaluationConfig,
}
_EXPECTED_SECONDS: Final = {
    "tools": 5, "trajectories": 15, "environments": 90, "base": 5, "evaluate_baselines": 0, "evaluate_base": 0,
    "sft": 130, "evaluate_sft": 0, "rl": 340, "evaluate_rl": 30, "export": 10,
}  # fmt: skip
"""Seconds that each stage adds to the whole on two free cores; an evaluation beside another stage adds none."""
_LOGIT_CHECK_TOKENS = 256
_MOST_TIMES_THEIR_ERROR = 1.5
"""Largest ratio of the error of exported logits to that of float32 itself; an `rms_norm_eps` that is a tenth larger
makes it 4.6."""
_SHIPPED_REPLAY, _REPLAY = "replay.jsonl.gz", "made_up.jsonl"
QUESTION = "question.json"
_CARD, _WEIGHTS = "dataset.json", "params.whole.json"
"""The last files of a record directory and of a policy folder."""


class QuickstartFailed(AstraError):
    """A stage's result did not pass its check; the message names the result and the fault."""


def quickstart(out: Path, *, seed: int, tool_documents: Sequence[Path], resume: bool = False) -> dict[str, Any]:
    """Run every stage into `out`; write the summary there and return it.

    An earlier quickstart in `out` is moved aside, or resumed with `resume`; any other folder is left alone. The figures
    depend on the seed and the documents alone, seconds and bytes on the machine.

    Raises:
        DestinationRefused: `out` is something else, or with `resume` a quickstart with another seed or other documents.
        QuickstartFailed: a record or a checkpoint did not pass its check.
        SandboxUnavailable, ToolServerUnavailable, ConfigError, PromptTooLong, BatchFillingStalled, NotFinite: as the
            stages.
    """
    make_room(out, checked_inputs(seed, tool_documents), sources=tool_documents, resume=resume)
    stages, config_path = Stages(out / "stages", _EXPECTED_SECONDS), CONFIGS / "tiny_evaluation.toml"
    folders = {"base": out / "base", "sft": out / "sft/policy", "rl": out / "rl/policy"}

    # If a stage fails or is interrupted, the portal ends the evaluation that runs beside it.
    with stages.told(), local_sandbox(workers=2) as url, start_blocking_portal() as portal:

        async def evaluation_of(name: str) -> dict[str, Any]:
            evaluation = await evaluate_policy(load_policy(folders[name]), name, out, config_path, seed=seed, url=url)
            print(f"{name}: {evaluation.closing_line()}", file=sys.stderr, flush=True)
            return dataclasses.asdict(evaluation)

        def evaluated(name: str) -> Future[Any]:
            return stages.run_beside(portal, f"evaluate_{name}", functools.partial(evaluation_of, name))

        stages.run("tools", lambda: _ingest_tools(out, tool_documents), makes=[out / "tools" / _CARD])
        makes = [out / "trajectories" / _CARD]
        stages.run("trajectories", lambda: _synthesize_trajectories(out, seed, tool_documents), makes=makes)
        makes = [out / split / _CARD for split in ("environments", *HELD_OUT_SPLITS)]
        stages.run("environments", lambda: _synthesize_environments(out, seed, url), makes=makes)
        makes = [folders["base"] / _WEIGHTS, out / _REPLAY]
        stages.run("base", lambda: _begin(folders["base"], out / _REPLAY), makes=makes)
        of_programs = functools.partial(evaluate_baselines, out, config_path, seed=seed, url=url)
        baselines = stages.run_beside(portal, "evaluate_baselines", of_programs)
        evaluations = {"base": evaluated("base")}
        stages.run("sft", lambda: _run_sft(out, seed), makes=[folders["sft"] / _WEIGHTS])
        evaluations["sft"] = evaluated("sft")
        stages.run("rl", lambda: asyncio.run(_run_rl(out, seed, url)), makes=[folders["rl"] / _WEIGHTS])
        evaluations["rl"] = evaluated("rl")
        makes = [out / "hf" / "config.json"]
        export = stages.run("export", lambda: export_and_compare(folders["rl"], out / "hf"), makes=makes)
        found = {name: PolicyEvaluation(**evaluation.result()) for name, evaluation in evaluations.items()}
    write_episodes(out / "episodes.jsonl", [line for each in found.values() for line in each.shown])
    splits = {"train": "environments"} | {name: name for name in HELD_OUT_SPLITS}
    summary = {
        "seed": seed,
        "seconds": {"total": round(stages.total_seconds, 2), **stages.seconds},
        "peak_rss_bytes": max(stages.peak_rss_bytes.values()),
        "stage_peak_rss_bytes": stages.peak_rss_bytes,
        "trajectories": len(RecordSource(out / "trajectories", Trajectory)),
        "environments": {name: len(RecordSource(out / split, Environment)) for name, split in splits.items()},
        **summarised(found, baselines.result()),
        "export": export,
    }
    write_whole(out / "summary.json", json.dumps(summary, indent=2) + "\n")
    # Again: the card of the export has no held-out figures yet.
    write_whole(out / "hf" / MODEL_CARD, model_card(folders["rl"], read_model(folders["rl"])))
    question = a_question(list(RecordSource(out / "heldout", Environment)))
    write_whole(out / QUESTION, json.dumps(question, ensure_ascii=False, indent=2) + "\n")
    write_report(out, describe)
    return summary


def a_question(environments: Sequence[Environment]) -> JsonObject:
    """Return a chat request for `astra serve`: question and tools of an environment, in English if possible."""
    environment = min(environments, key=lambda each: each.language != "en")
    tools = [tool.document.to_openai() for tool in environment.tools]
    question = {"role": "user", "content": environment.question}
    return {"messages": [question], "tools": tools, "temperature": 0, "max_tokens": 256}


def how_to_talk(out: Path) -> str:
    """Return the closing lines of a quickstart: the folder of its model, and the commands that ask it something."""
    folder, question = (shlex.quote(str(out / name)) for name in ("hf", QUESTION))
    curl = "curl http://127.0.0.1:8000/v1/chat/completions -H 'Content-Type: application/json'"
    return f"""the trained model, as a HuggingFace folder: {folder}
to talk to it:     astra serve {folder}
and, beside that:  {curl} -d @{question}"""


def checked_inputs(seed: int, tool_documents: Sequence[Path]) -> Fingerprint:
    """Read the inputs of a quickstart and return their digests; nothing is written.

    Raises:
        ConfigError: a config cannot be used, or a named place has no tool documents.
    """
    for name in _CONFIG_TYPES:
        _config(name)
    try:
        documents = [digest_of_files(source_files(source)) for source in tool_documents]
    except SourceMissing as error:
        raise ConfigError(f"--tool-documents: {error}") from error
    configs = {name: digest_of_files([CONFIGS / name]) for name in _CONFIG_TYPES}
    base = digest_of_files(TINY_BASE / name for name in ("model.safetensors", "tokenizer.json", _SHIPPED_REPLAY))
    return {"seed": seed, "tool_documents": digest(documents), **configs, "base": base}


def _config(name: str, **changes: Any) -> Any:
    """Return a shipped config, with some values replaced."""
    return load_config(_CONFIG_TYPES[name], CONFIGS / name).model_copy(update=changes)


def _ingest_tools(out: Path, tool_documents: Sequence[Path]) -> None:
    config = _config("tiny_trajectories.toml")
    sources, servers = [EXAMPLES_DIRECTORY, *tool_documents], config.mcp_servers
    report = asyncio.run(synthesize_tools(sources, out / "tools", mcp_servers=servers, filters=config.filters))
    print(report.closing_line(), file=sys.stderr)


def _synthesize_trajectories(out: Path, seed: int, tool_documents: Sequence[Path]) -> None:
    changes = {"seed": seed, "out": out / "trajectories", "tool_documents": tuple(tool_documents)}
    report = asyncio.run(synthesize_trajectories(_config("tiny_trajectories.toml", **changes), ProceduralTeacher()))
    print(report.closing_line(), file=sys.stderr)


def _synthesize_environments(out: Path, seed: int, url: str) -> None:
    """Make environments for RL, and held-out ones that share nothing with them.

    Each was proven when it was made. Those that figures are taken on are read back and verified once more.
    """
    training: EnvironmentsConfig = _config("tiny_environments.toml", seed=seed, out=out / "environments")
    for config in (training, *held_out_configs(training).values()):
        print(asyncio.run(synthesize_environments(config, ProceduralTeacher(), url)).closing_line(), file=sys.stderr)
        if config.out.name in HELD_OUT_SPLITS:
            verified = asyncio.run(verify_environments(config.out, url))
            print(verified.closing_line(), file=sys.stderr)
            if verified.failures:
                record, fault = verified.failures[0]
                raise QuickstartFailed(f"{config.out}: environment {record}: {fault}")
        for other in config.disjoint_from:
            _require_apart(other, config)


def _require_apart(other: Path, split: EnvironmentsConfig) -> None:
    shared = shared_between(other, split.out)
    if found := {level: shared[level] for level in APART[split.unseen] if shared[level]}:
        raise QuickstartFailed(f"{split.out} must have nothing in common with {other}, but shares {found}")


def _begin(base: Path, replay: Path) -> None:
    """Write the base of SFT, and conversations like those of its pre-training."""
    hf_to_orbax(TINY_BASE, base)
    with whole_file(replay) as file:
        file.write_bytes(gzip.decompress((TINY_BASE / _SHIPPED_REPLAY).read_bytes()))


def _run_sft(out: Path, seed: int) -> dict[str, Any]:
    data = {"trajectories": (out / "trajectories",), "conversations": (out / _REPLAY,)}
    return run_sft(_config("tiny_sft.toml", seed=seed, out=out / "sft", init=out / "base", **data))


async def _run_rl(out: Path, seed: int, url: str) -> dict[str, Any]:
    changes = {"out": out / "rl", "init": out / "sft" / "policy", "environments": out / "environments"}
    config = _config("tiny_rl.toml", seed=seed, **changes)
    async with AsyncSandboxClient(url) as sandbox:
        return await run_rl(config, sandbox)


def export_and_compare(policy_folder: Path, hf_folder: Path) -> dict[str, Any]:
    """Write a HuggingFace folder; compare its logits with those of `transformers`, and its tensors read back with ours.

    Without torch `transformers` computes nothing: then the difference is None, with a reason beside it.

    Decided: docs/decisions/model.md, “Exported logits are compared with transformers in float64”.

    Raises:
        QuickstartFailed: `transformers` has other tokens or other logits than we, or a tensor comes back changed.
        ChatFormatDiffers: the chat template of the export gives other tokens than ours.
        CheckpointError: the policy's weights are missing or damaged.
        DestinationRefused: `hf_folder` is something else than an earlier export.
    """
    policy = load_policy(policy_folder)
    save_hf(policy.params, policy.model_config, hf_folder, companions=policy_folder)
    _, restored = load_hf(hf_folder)
    # Bytes, not values: 0.0 equals −0.0, and NaN equals nothing.
    bit_equal = jax.tree.all(
        jax.tree.map(lambda a, b: np.asarray(a).tobytes() == np.asarray(b).tobytes(), policy.params, restored)
    )
    require_chat_template(hf_folder, policy.tokenizer)
    tokenizer = transformers_library().AutoTokenizer.from_pretrained(hf_folder, local_files_only=True)
    text = "What is the rent of Amber Falcon? 房租是多少？"
    if tokenizer(text)["input_ids"] != policy.tokenizer.encode(text):
        raise QuickstartFailed(f"the tokenizer of {hf_folder} gives other tokens than ours")
    if not bit_equal:
        raise QuickstartFailed(f"the tensors that come back from {hf_folder} are not, bit for bit, those of the policy")
    figures: dict[str, Any] = {"max_abs_logit_difference": None, "bit_equal": True}
    if not is_installed("torch"):
        reason = "torch is not installed: pip install 'astra-jax[parity]'"
        print(f"export: logits are not compared with transformers: {reason}", file=sys.stderr, flush=True)
        return figures | {"not_compared_because": reason}
    return figures | checked_logits(policy, hf_folder)


def is_installed(module: str) -> bool:
    """Return whether a module can be imported; do not import it."""
    return importlib.util.find_spec(module) is not None


def checked_logits(policy: Policy, hf_folder: Path) -> dict[str, float]:
    """Compare logits in float32 with those of `transformers`, and both with its logits in float64.

    Returns the largest difference, and the root mean square of the error of ours and of theirs.

    Raises:
        QuickstartFailed: ours are further from those in float64 than rounding explains.
    """
    import torch

    ids = np.random.default_rng(0).integers(0, policy.model_config.vocab_size, (2, _LOGIT_CHECK_TOKENS))
    positions = np.broadcast_to(np.arange(_LOGIT_CHECK_TOKENS), ids.shape)
    model = bind(policy.model_config, policy.params)
    hidden = model(jnp.asarray(ids), jnp.asarray(positions), jnp.ones(ids.shape, jnp.int32))
    ours = np.asarray(model.logits(hidden))

    def theirs_in(dtype: Any) -> np.ndarray:
        library = transformers_library().AutoModelForCausalLM
        with torch.no_grad():
            theirs = library.from_pretrained(hf_folder, dtype=dtype, local_files_only=True)(torch.from_numpy(ids))
        return theirs.logits.numpy()

    theirs, exact = theirs_in(torch.float32), theirs_in(torch.float64)
    our_error, their_error = (float(np.sqrt(np.square(logits - exact).mean())) for logits in (ours, theirs))
    if not our_error <= _MOST_TIMES_THEIR_ERROR * their_error:  # nor NaN
        raise QuickstartFailed(
            f"the logits are {our_error:.2g} (root mean square) from those of transformers in float64, more than "
            f"{_MOST_TIMES_THEIR_ERROR:g} times the {their_error:.2g} of its own in float32"
        )
    return {
        "max_abs_logit_difference": float(np.abs(ours - theirs).max()),
        "rms_logit_error": our_error,
        "rms_logit_error_of_transformers": their_error,
    }
