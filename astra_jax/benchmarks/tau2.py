"""τ²-bench's retail and telecom, by the official code: an agent, and a user that another model plays.

Both speak to relays of ours: the agent's asks the endpoint that is measured, the user's the one that is named for it.
Nothing is resumed by guess: the harness is told that it shall go on with its own file of simulations.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from astra_jax.benchmarks.endpoint import ServingConfig, answering, named_model
from astra_jax.benchmarks.harness_process import AGENT_PORT, USER_PORT, relay_url, run_harness
from astra_jax.benchmarks.harnesses import TAU2
from astra_jax.benchmarks.managed_environment import ManagedEnvironment, managed_environment
from astra_jax.benchmarks.relay import Relay
from astra_jax.benchmarks.results import (
    BenchmarkFailed,
    BenchmarkResults,
    ModelDocument,
    RunDocument,
    Sample,
    Summary,
    begin,
    finish,
    read_results,
    require_benchmark,
    whole_lines,
)
from astra_jax.benchmarks.scores import sum_up
from astra_jax.benchmarks.simulated_user import SimulatedUser
from astra_jax.benchmarks.tau2_files import TASKS_PER_DOMAIN, Domain, is_whole, pass_hat, read_simulations
from astra_jax.config import ConfigError
from astra_jax.evaluate.endpoint import Endpoint
from synthesis.run.fingerprint import flattened

_DOMAINS: Final[tuple[Domain, ...]] = ("retail", "telecom")
_EMPTY: Final = "…"
"""Stands for an answer without a word and without a call, at which the harness would end the whole run."""


class Tau2Config(BaseModel):
    """Config of `astra evaluate tau2`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    policy: Path | None = None
    """Policy folder or HuggingFace folder, for which a server is started; or name a server by `--url`."""
    out: Path
    """Folder of the results."""
    user: SimulatedUser
    """Model that plays the user."""
    domains: tuple[Domain, ...] = Field(default=_DOMAINS, min_length=1)
    """Domains to run."""
    trials: int = Field(default=4, ge=1)
    """Conversations of each task."""
    temperature: float = Field(default=0.0, ge=0)
    """Sampling temperature of the policy."""
    top_p: float | None = Field(default=None, gt=0, le=1)
    """Share of probability that tokens are drawn from; without it the server's default."""
    top_k: int | None = Field(default=None, ge=-1)
    """Number of likeliest ids that a token is drawn from; without it the server's default."""
    max_tokens: int | None = Field(default=None, ge=1)
    """Tokens of the longest answer; without it the server's default."""
    max_steps: int = Field(default=200, ge=1)
    """Messages of the longest conversation."""
    requests_at_once: int = Field(default=8, ge=1)
    """Requests under way at once."""
    seed: int = 300
    """Seed of the trials, one made from it for each, and of the bootstrap."""
    serving: ServingConfig = ServingConfig()
    """Server of the policy."""


def evaluate_tau2(config: Tau2Config, *, url: str | None, limit: int | None) -> BenchmarkResults:
    """Run τ²-bench, or go on with a run, and return its results; one that is finished is only read.

    `limit` is how many tasks are run in all, the first of each domain alike.

    Raises:
        HarnessMissing: its environment is not there.
        ConfigError: `limit` does not share out over the domains.
        DestinationRefused: `out` is something else, or a run begun with something else.
        BenchmarkFailed: the harness does not end well, or leaves what cannot be read.
        DecoderError: nobody answers.
    """
    environment = managed_environment(TAU2)
    of_each, rest = divmod(limit or TASKS_PER_DOMAIN * len(config.domains), len(config.domains))
    if rest or not 0 < of_each <= TASKS_PER_DOMAIN:
        raise ConfigError(
            f"expected --limit to be a multiple of the {len(config.domains)} domains, up to {TASKS_PER_DOMAIN} tasks "
            f"of each, found {limit}"
        )
    run = run_document(config, environment, named_model(config.policy, url), of_each)
    if require_benchmark(config.out, run.made_with):
        return read_results(config.out)
    begin(config.out, run)
    started = time.monotonic()
    with answering(config.policy, url, config.serving, config.out / "raw" / "server.log") as endpoint:
        samples = asyncio.run(_run(config, environment, endpoint, of_each))
    summary = summed_up(config, samples, config.out / "raw")
    finish(config.out, run.ended(time.monotonic() - started, endpoint.most_tokens), samples, summary)
    return read_results(config.out)


def run_document(
    config: Tau2Config, environment: ManagedEnvironment, model: ModelDocument, of_each: int
) -> RunDocument:
    """Return what a run of so many tasks of each domain, by the harness of an environment, is begun with."""
    leave_out = {"policy", "out", "requests_at_once", "serving.rows", "user.url"}
    return RunDocument(
        benchmark="tau2",
        harness=environment.document,
        model=model,
        sampling={name: getattr(config, name) for name in ("temperature", "top_p", "top_k", "max_tokens")},
        samples=of_each * len(config.domains),
        of_samples=TASKS_PER_DOMAIN * len(_DOMAINS),
        trials=config.trials,
        seed=config.seed,
        user_simulator=config.user.model,
        made_with={
            **flattened(config.model_dump(mode="json"), leave_out=leave_out),
            **flattened({"harness": environment.document.model_dump()}),
            **flattened({"model": model.digest or model.name, "tasks of each domain": of_each}),
        },
    )


async def _run(config: Tau2Config, environment: ManagedEnvironment, endpoint: Endpoint, of_each: int) -> list[Sample]:
    raw = (config.out / "raw").resolve()
    data = raw / "data"
    data.mkdir(exist_ok=True)
    if not (data / "tau2").exists():  # the harness writes beside its data
        (data / "tau2").unlink(missing_ok=True)
        (data / "tau2").symlink_to(environment.folder / "data" / "tau2")
    settings = {"top_p": config.top_p, "top_k": config.top_k, "max_tokens": config.max_tokens}
    of_user = {"max_tokens": config.user.max_tokens}
    samples: list[Sample] = []
    async with (
        Relay(
            endpoint, settings=settings, tool_names=None, log=request_log(raw, "agent"), empty_as=_EMPTY
        ) as agent_relay,
        Relay(
            config.user.endpoint(), settings=of_user, tool_names=None, log=request_log(raw, "user"), empty_as=_EMPTY
        ) as user_relay,
    ):
        for domain in config.domains:
            simulations = data / "simulations" / f"{domain}.json"
            if simulations.exists() and not is_whole(simulations):  # killed while the harness rewrote it
                simulations.rename(simulations.with_suffix(".damaged"))
            found = read_simulations(simulations, domain, empty_as=_EMPTY)
            if len(found) < of_each * config.trials:
                await run_harness(
                    _command(config, environment, domain, of_each),
                    folder=raw,
                    log=raw / "harness.log",
                    variables={
                        "TAU2_DATA_DIR": str(data),
                        "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # or it asks the network
                        "OPENAI_API_KEY": "none",
                    },
                    readable=[environment.folder],
                    relays={AGENT_PORT: agent_relay, USER_PORT: user_relay},
                    # Whether it shall go on with what is there, and do so though settings are others.
                    said="y\ny\n",
                )
                found = read_simulations(simulations, domain, empty_as=_EMPTY)
            if len(found) != of_each * config.trials:
                raise BenchmarkFailed(
                    f"expected {of_each * config.trials} conversations in {simulations}, found {len(found)}; "
                    "the same command goes on"
                )
            samples += found
    return samples


def request_log(raw: Path, who: Literal["agent", "user"]) -> Path:
    """Return where a relay writes its lines, in the folder of what a harness writes."""
    return raw / f"requests_of_{who}.jsonl"


def summed_up(config: Tau2Config, samples: Sequence[Sample], raw: Path) -> Summary:
    """Sum up the conversations of a run, of whose requests the lines are in `raw`."""
    counted = {
        "failed_requests": sum(line["status"] != 200 for line in whole_lines(request_log(raw, "agent"))),
        "failed_requests_of_user": sum(line["status"] != 200 for line in whole_lines(request_log(raw, "user"))),
    }
    summary = sum_up(samples, requests=counted, seed=config.seed)
    pass_hats = {k: _mean_over_domains(samples, k) for k in range(1, config.trials + 1)}
    return summary.model_copy(update={"pass_hat": pass_hats})


def _mean_over_domains(samples: Sequence[Sample], k: int) -> float:
    domains = {sample.category for sample in samples}
    return sum(pass_hat([each for each in samples if each.category == name], k) for name in domains) / len(domains)


def _command(config: Tau2Config, environment: ManagedEnvironment, domain: Domain, of_each: int) -> list[str]:
    arguments = {
        "agent": {"temperature": config.temperature, "api_base": relay_url(AGENT_PORT), "api_key": "none"},
        "user": {"temperature": config.user.temperature, "api_base": relay_url(USER_PORT), "api_key": "none"},
    }
    command = [str(environment.program("tau2")), "run", "--domain", domain, "--save-to", domain]
    for who, llm_args in arguments.items():
        command += [f"--{who}-llm", f"openai/{who}", f"--{who}-llm-args", json.dumps(llm_args)]
    for name, value in (
        ("num-trials", config.trials),
        ("num-tasks", of_each),
        ("max-steps", config.max_steps),
        ("max-concurrency", config.requests_at_once),
        ("seed", config.seed),
    ):
        command += [f"--{name}", str(value)]
    return command
