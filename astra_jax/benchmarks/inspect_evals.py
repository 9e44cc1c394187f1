"""τ²-bench by a second harness, inspect-evals, whose results stand beside the first one's.

Its tasks are those of the official v0.2.0; the prompts of agent and user, the loop between them, the tools and the
verdict are its own. Agent and user have a relay each. It is run whole: what a command that was stopped has left is run
again.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Sequence
from glob import escape
from pathlib import Path
from typing import Final

from astra_jax.benchmarks.endpoint import named_model
from astra_jax.benchmarks.harness_process import AGENT_PORT, USER_PORT, relay_url, run_harness
from astra_jax.benchmarks.harnesses import INSPECT_EVALS
from astra_jax.benchmarks.inspect_evals_files import CONDENSE, read_log
from astra_jax.benchmarks.managed_environment import ManagedEnvironment, managed_environment
from astra_jax.benchmarks.relay import Relay
from astra_jax.benchmarks.results import BenchmarkFailed, BenchmarkResults, Sample, Summary
from astra_jax.benchmarks.second_harness import second_run
from astra_jax.benchmarks.tau2 import Tau2Config, request_log, run_document, summed_up
from astra_jax.benchmarks.tau2_files import Domain
from astra_jax.evaluate.endpoint import Endpoint

_MESSAGES_OF_A_ROUND: Final = 2
"""One of the user, one of the agent."""


def tau2_by_inspect_evals(config: Tau2Config, first: BenchmarkResults, *, url: str | None) -> BenchmarkResults:
    """Run the tasks of a finished run of τ²-bench by inspect-evals, in a folder of that run; return the results.

    Raises:
        HarnessMissing, DestinationRefused, BenchmarkFailed, DecoderError: as `evaluate_tau2`.
    """
    environment = managed_environment(INSPECT_EVALS)
    cases = list(dict.fromkeys(sample.id for sample in first.samples))
    of_each = len(cases) // len(config.domains)
    run = run_document(config, environment, named_model(config.policy, url), of_each)

    def ask(endpoint: Endpoint, raw: Path) -> None:
        asyncio.run(_run(config, environment, endpoint, raw, cases))

    def read(raw: Path) -> Iterable[Sample]:
        return (sample for domain in config.domains for sample in read_log(_condensed(raw, domain), domain))

    def sum_up(raw: Path, samples: Sequence[Sample]) -> Summary:
        return summed_up(config, samples, raw)

    return second_run(
        run,
        cases,
        first=config.out,
        policy=config.policy,
        url=url,
        serving=config.serving,
        ask=ask,
        read=read,
        sum_up=sum_up,
    )


async def _run(
    config: Tau2Config, environment: ManagedEnvironment, endpoint: Endpoint, raw: Path, cases: Sequence[str]
) -> None:
    of_agent = {name: getattr(config, name) for name in ("temperature", "top_p", "top_k", "max_tokens")}
    of_user = {"temperature": config.user.temperature, "max_tokens": config.user.max_tokens}
    # Whatever it writes into its requests, both are asked as the first harness's were.
    agent = Relay(endpoint, settings={}, replaced=of_agent, tool_names=None, log=request_log(raw, "agent"))
    user = Relay(config.user.endpoint(), settings={}, replaced=of_user, tool_names=None, log=request_log(raw, "user"))
    log = raw / "harness.log"
    async with agent, user:
        for domain in config.domains:
            tasks = [case.removeprefix(f"{domain}/") for case in cases if case.startswith(f"{domain}/")]
            await run_harness(
                _command(config, environment, domain, tasks, raw / domain),
                folder=raw,
                log=log,
                variables={
                    "AGENT_BASE_URL": relay_url(AGENT_PORT),
                    "AGENT_API_KEY": "none",
                    "USER_BASE_URL": relay_url(USER_PORT),
                    "USER_API_KEY": "none",
                },
                readable=[environment.folder],
                relays={AGENT_PORT: agent, USER_PORT: user},
            )
            logs = sorted((raw / domain).glob("*.eval"))
            if len(logs) != 1:
                raise BenchmarkFailed(
                    f"expected one log of inspect-evals in {raw / domain}, found {len(logs)}; see {log}; the same "
                    "command runs it again"
                )
            condense = [str(environment.program("python")), "-c", CONDENSE, str(logs[0]), str(_condensed(raw, domain))]
            await run_harness(condense, folder=raw, log=log, variables={}, readable=[environment.folder])


def _condensed(raw: Path, domain: Domain) -> Path:
    return raw / f"{domain}.json"


def _command(
    config: Tau2Config, environment: ManagedEnvironment, domain: Domain, tasks: Sequence[str], logs: Path
) -> list[str]:
    # It marks tools as strict otherwise, which makes some endpoints force the form of a call.
    user = {"model": "openai-api/user/user", "model_args": {"strict_tools": False}}
    command = [str(environment.program("inspect")), "eval", f"inspect_evals/tau2_{domain}"]
    command += ["--model", "openai-api/agent/agent", "-M", "strict_tools=false"]
    command += ["--model-role", f"user={json.dumps(user)}"]
    command += ["-T", "shuffle=false", "-T", f"message_limit={max(1, config.max_steps // _MESSAGES_OF_A_ROUND)}"]
    # It takes ids for patterns, and those of telecom have brackets.
    command += ["--sample-id", ",".join(map(escape, tasks)), "--epochs", str(config.trials)]
    # An agent that calls tools for ever has no other bound.
    command += ["--turn-limit", str(config.max_steps)]
    at_once = str(config.requests_at_once)
    command += ["--max-samples", at_once, "--max-connections", at_once]
    # The client asks twice again; it would ask on for ever, and log each attempt as an answer.
    command += ["--max-retries", "0", "--no-fail-on-error"]
    return [*command, "--log-dir", str(logs), "--log-format", "eval", "--display", "plain", "--ctl-server", "false"]
