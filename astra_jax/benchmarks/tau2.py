"""τ²-bench's retail and telecom, by the official code, v0.2.0: a model plays the user.

The harness writes one JSON file a domain, with every conversation and its reward, and goes on with it if told so.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from math import comb
from pathlib import Path
from typing import Any, Final, Literal, get_args

from pydantic import BaseModel, Field, ValidationError

from astra_jax.benchmarks.benchmark import Benchmark, ConversationsConfig, cases_of_each, failed_requests, request_log
from astra_jax.benchmarks.harness_process import AGENT_PORT, USER_PORT, relay_url, run_harness
from astra_jax.benchmarks.harnesses import TAU2_HARNESS
from astra_jax.benchmarks.relay import Relay
from astra_jax.benchmarks.results import Answer, BenchmarkFailed, Sample, Summary, sample_of
from astra_jax.errors import first_fault
from astra_jax.evaluate.endpoint import Endpoint

Domain = Literal["retail", "telecom"]
DOMAINS: Final[tuple[Domain, ...]] = get_args(Domain)
TASKS_PER_DOMAIN: Final = 114
ALMOST_ONE: Final = 1 - 1e-6
"""Least reward of a conversation that counts as solved."""
_EMPTY: Final = "…"
"""Text in place of an answer without a word and without a call, at which the harness would end the whole run."""


class Tau2Config(ConversationsConfig):
    """Config of `astra evaluate tau2`."""

    domains: tuple[Domain, ...] = Field(default=DOMAINS, min_length=1)
    """Domains to run."""
    temperature: float = Field(default=0.0, ge=0)
    max_tokens: int | None = Field(default=None, ge=1)
    """Tokens of one answer; the harness asks for no limit."""
    max_steps: int = Field(default=200, ge=1)
    """Messages of one conversation."""
    seed: int = 300
    """Seed of the harness, which derives one for each trial, and of the bootstrap."""


class Tau2(Benchmark):
    """τ²-bench's retail and telecom."""

    name = "tau2"
    config_type = Tau2Config
    harness = TAU2_HARNESS
    config: Tau2Config

    def choose(self, limit: int | None) -> None:
        """Choose the first tasks of each domain."""
        self.of_each = cases_of_each(limit, self.config.domains, "domains", TASKS_PER_DOMAIN)
        self.num_cases = self.of_each * len(self.config.domains)
        self.of_cases = TASKS_PER_DOMAIN * len(DOMAINS)
        self.trials, self.user = self.config.trials, self.config.user
        self.made_with = {"tasks of each domain": self.of_each}

    async def run(self, endpoint: Endpoint, raw: Path) -> None:
        """Run the domains one after the other, through one relay for the agent and one for the user."""
        config, data = self.config, raw / "data"
        data.mkdir(exist_ok=True)
        if not (data / "tau2").exists():  # the harness writes beside its data
            (data / "tau2").unlink(missing_ok=True)
            (data / "tau2").symlink_to(self.environment.folder / "data" / "tau2")
        settings = {"top_p": config.top_p, "top_k": config.top_k, "max_tokens": config.max_tokens}
        agent = Relay(endpoint, settings=settings, log=request_log(raw, "agent"), empty_as=_EMPTY)
        settings = {"max_tokens": config.user.max_tokens}
        user = Relay(config.user.endpoint(), settings=settings, log=request_log(raw, "user"), empty_as=_EMPTY)
        for domain in config.domains:
            simulations = _simulations(raw, domain)
            if simulations.exists() and not _is_json(simulations):  # killed while the harness rewrote it
                simulations.rename(simulations.with_suffix(".damaged"))
            if len(read_simulations(simulations, domain)) < self.of_each * config.trials:
                await run_harness(
                    self._command(domain),
                    folder=raw,
                    log=raw / "harness.log",
                    variables={
                        "TAU2_DATA_DIR": str(data),
                        "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # or it asks the network
                        "OPENAI_API_KEY": "none",
                    },
                    readable=[self.environment.folder],
                    relays={AGENT_PORT: agent, USER_PORT: user},
                    # It asks whether it shall go on with the file, and whether also with other settings.
                    said="y\ny\n",
                )

    def read(self, raw: Path) -> list[Sample]:
        """Read the conversations of all domains."""
        samples, expected = [], self.of_each * self.config.trials
        for domain in self.config.domains:
            found = read_simulations(simulations := _simulations(raw, domain), domain)
            if len(found) != expected:
                raise BenchmarkFailed(
                    f"{simulations} has {len(found)} of {expected} conversations; the same command goes on"
                )
            samples += found
        return samples

    def requests(self, samples: Sequence[Sample], raw: Path) -> dict[str, int]:
        """Count the failed requests of agent and user."""
        return failed_requests([raw])

    def score(self, samples: Sequence[Sample], raw: Path) -> Summary:
        """Sum the conversations up, with pass^k as the mean over domains."""
        summary = super().score(samples, raw)
        domains = [[each for each in samples if each.category == name] for name in summary.by_category]
        trials = range(1, self.config.trials + 1)
        pass_hats = {k: sum(pass_hat(each, k) for each in domains) / len(domains) for k in trials}
        return summary.model_copy(update={"pass_hat": pass_hats})

    def _command(self, domain: Domain) -> list[str]:
        config, command = self.config, [str(self.environment.program("tau2")), "run", "--domain", domain]
        for who, temperature, port in (
            ("agent", config.temperature, AGENT_PORT),
            ("user", config.user.temperature, USER_PORT),
        ):
            arguments = {"temperature": temperature, "api_base": relay_url(port), "api_key": "none"}
            command += [f"--{who}-llm", f"openai/{who}", f"--{who}-llm-args", json.dumps(arguments)]
        command += ["--save-to", domain, "--num-trials", str(config.trials), "--num-tasks", str(self.of_each)]
        command += ["--max-steps", str(config.max_steps), "--max-concurrency", str(config.requests_at_once)]
        return [*command, "--seed", str(config.seed)]


class _Message(BaseModel):
    role: str
    content: str | None = None
    tool_calls: list[Any] | None = None
    usage: dict[str, int] | None = None
    raw_data: dict[str, Any] | None = None
    """The choice of the reply; greetings and results of tools have none."""

    @property
    def is_cut(self) -> bool:
        return (self.raw_data or {}).get("finish_reason") == "length"


class _Reward(BaseModel):
    reward: float


class _Simulation(BaseModel):
    task_id: str
    trial: int
    duration: float
    termination_reason: str
    reward_info: _Reward | None = None
    messages: list[_Message]


class _Results(BaseModel):
    simulations: list[_Simulation]


def _simulations(raw: Path, domain: Domain) -> Path:
    return raw / "data" / "simulations" / f"{domain}.json"


def read_simulations(path: Path, domain: Domain) -> list[Sample]:
    """Read the conversations of a domain, in the order of tasks and trials; none if the file is not there yet.

    Raises:
        BenchmarkFailed: the file is not one of the harness's, or a conversation has no reward.
    """
    if not path.is_file():
        return []
    try:
        results = _Results.model_validate_json(path.read_bytes())
    except ValidationError as error:
        raise BenchmarkFailed(
            f"the simulations of τ²-bench in {path} cannot be read: {first_fault(error)}; move it away and run again"
        ) from None
    samples = [_sample(each, domain, path) for each in results.simulations]
    return sorted(samples, key=lambda sample: (sample.id, sample.trial))


def _is_json(path: Path) -> bool:
    """Return whether a file of simulations is whole: the harness rewrites it in place, and may be killed meanwhile."""
    try:
        return isinstance(json.loads(path.read_bytes()), dict)
    except (OSError, ValueError):
        return False


def pass_hat(samples: Sequence[Sample], k: int) -> float:
    """Return pass^k: the chance that k trials of a task, drawn without return, all pass, as the mean over tasks.

    Raises:
        ValueError: a task has fewer trials.
    """
    trials: dict[str, list[bool]] = {}
    for sample in samples:
        trials.setdefault(sample.id, []).append(sample.passed)
    if not trials or min(map(len, trials.values())) < k:
        raise ValueError(f"expected {k} or more trials of each task")
    return sum(comb(sum(each), k) / comb(len(each), k) for each in trials.values()) / len(trials)


def _sample(run: _Simulation, domain: Domain, path: Path) -> Sample:
    if run.reward_info is None:
        raise BenchmarkFailed(f"{path} has no reward of task {run.task_id} trial {run.trial}; run again")
    # The greeting has no raw data: the model did not say it.
    said = [message for message in run.messages if message.role == "assistant" and message.raw_data is not None]
    users = [message for message in run.messages if message.role == "user"]
    answers = [
        Answer(
            message.is_cut,
            message.content == _EMPTY and not message.tool_calls,
            (message.usage or {}).get("prompt_tokens", 0),
            (message.usage or {}).get("completion_tokens", 0),
        )
        for message in said
    ]
    # An empty answer would have ended the official run, so that the conversation is no success.
    passed = run.reward_info.reward >= ALMOST_ONE and not any(answer.is_empty for answer in answers)
    return sample_of(
        answers,
        passed=passed,
        causes={
            "user": any(message.is_cut or message.content == _EMPTY for message in users),
            "step_limit": run.termination_reason in ("max_steps", "too_many_errors"),
        },
        seconds=run.duration,
        id=f"{domain}/{run.task_id}",
        category=domain,
        trial=run.trial,
        turns=sum(bool(message.content) for message in users),
        tool_calls=sum(len(message.tool_calls or ()) for message in said),
        detail="" if passed else f"{run.termination_reason}, reward {run.reward_info.reward:g}",
    )
