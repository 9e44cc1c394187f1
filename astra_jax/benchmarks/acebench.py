"""ACEBench's agent split, by the official code: an agent that writes its calls as text.

The official code keeps the state of cases by their number as long as it runs, and ends for good at a case that it
cannot carry on. So every conversation is a process with a folder and two relays of its own: a request is known to
belong to its case, and a conversation at which the code ends is one that failed, not the end of the run.
"""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from pydantic import Field, ValidationError

from astra_jax.benchmarks.benchmark import (
    Benchmark,
    ConversationsConfig,
    cases_of_each,
    failed_requests,
    request_log,
    request_seed,
    work_through,
)
from astra_jax.benchmarks.harness_process import AGENT_PORT, USER_PORT, relay_url, run_harness
from astra_jax.benchmarks.harnesses import ACEBENCH_HARNESS
from astra_jax.benchmarks.relay import Relay
from astra_jax.benchmarks.results import Answer, BenchmarkFailed, ProgramFailed, Sample, sample_of, whole_lines
from astra_jax.evaluate.endpoint import Endpoint
from synthesis.run.destination import write_whole

Category = Literal["multi_turn", "multi_step"]
Language = Literal["en", "zh"]
CASES: Final[dict[Category, int]] = {"multi_turn": 30, "multi_step": 20}
MODEL: Final = "gpt-4o-2024-11-20"
"""An entry of its table of models for which it takes the address from a variable."""
_USER: Final = "gpt-4o"
"""Another entry of that table, for which it takes the address from another variable."""
_CPU_SECONDS, _MEMORY_BYTES = 900, 8 * 2**30
"""Limits of the process of one conversation, which evaluates text of the model: that may never end."""
_WHO: Final = ("agent", "user")


class ACEBenchConfig(ConversationsConfig):
    """Config of `astra evaluate acebench`.

    The official code asks for temperature 0.001 and top-p 1, and has no option that reaches the agent: `temperature`
    and `top_p` replace these.
    """

    language: Language = "en"
    """Language of the cases."""
    categories: tuple[Category, ...] = Field(default=tuple(CASES), min_length=1)
    """Categories to run."""
    max_tokens_floor: int | None = Field(default=None, ge=1)
    """Least limit of an answer, in tokens: the official code asks for 1,000, which cuts off a model that thinks."""
    max_messages: int = Field(default=40, ge=1)
    """Messages of one conversation after the first."""


@dataclass(frozen=True)
class Conversation:
    """One trial of a case, in a folder of its own with this one case in it."""

    category: Category
    number: int
    trial: int
    language: Language
    raw: Path

    @property
    def id(self) -> str:
        """The name of the case, as the official code has it."""
        return f"agent_{self.category}_{self.number}"

    @property
    def folder(self) -> Path:
        """Folder of the conversation; the harness writes below it."""
        return self.raw / "conversations" / f"{self.id}.{self.trial}"

    @property
    def harness_folder(self) -> Path:
        """The folder that the harness runs in."""
        return self.folder / "harness"

    def prepare(self, source: Path) -> None:
        """Write one case of a checkout's data, and the other files that the official code needs.

        Raises:
            BenchmarkFailed: the checkout has no such case.
        """
        for kind in ("", "possible_answer/"):
            name = f"data_all/data_{self.language}/{kind}data_agent_{self.category}.json"
            lines = (source / name).read_text(encoding="utf-8").split("\n")
            wanted = [line for line in lines if re.search(rf'"id": *"{self.id}"', line)]
            if len(wanted) != 1:
                raise BenchmarkFailed(
                    f"{source / name} has {len(wanted)} cases {self.id} instead of one; delete the environment and "
                    "set it up again"
                )
            self._write(name, wanted[0] + "\n")
        # The code reads both categories, and sorts the results of both.
        other = next(each for each in CASES if each != self.category)
        self._write(f"data_all/data_{self.language}/data_agent_{other}.json", "")
        self._write(f"{self._place('result')}/data_agent_{other}_result.json", "")
        (self.harness_folder / self._place("score")).mkdir(parents=True, exist_ok=True)

    def outcome(self) -> Outcome:
        """Read the result and the verdict of the official code.

        Raises:
            ProgramFailed: they are not the official code's: text of the model may have written there.
        """
        try:
            (said,), (verdict, *wrong) = (
                whole_lines(self.harness_folder / self._place(kind) / f"data_agent_{self.category}_{kind}.json")
                for kind in ("result", "score")
            )
            if verdict["total_count"] != 1 or verdict["correct_count"] + len(wrong) != 1:
                raise ValueError(f"verdicts on {verdict['total_count']} cases")
            return Outcome(
                is_right=not wrong,
                error=str(wrong[0].get("error_type") or wrong[0].get("error"))[:200] if wrong else "",
                executed_messages=len(said["process"]),
            )
        except (LookupError, ValueError, TypeError, BenchmarkFailed) as error:
            raise ProgramFailed(
                f"ACEBench's result and verdict on one case in {self.harness_folder} cannot be read: "
                f"{str(error).splitlines()[0]}"
            ) from None

    def had_most_messages(self, most: int) -> bool:
        """Return whether the conversation was as long as it may be."""
        histories = f"data_all/data_{self.language}/dialogue_history/*/*/*_history.txt"
        found = sorted(self.harness_folder.glob(histories))
        text = found[0].read_text(encoding="utf-8", errors="replace") if found else ""
        return re.search(rf"(?m)^\| {most} +\|", text) is not None

    def sample(self) -> Sample | None:
        """Return the sample of the conversation; None if it has not ended."""
        try:
            return Sample.model_validate_json((self.folder / "outcome.json").read_bytes())
        except (OSError, ValidationError):
            return None

    def _place(self, kind: str) -> str:
        return f"{kind}_all/{kind}_{self.language}/{MODEL}"

    def _write(self, name: str, text: str) -> None:
        path = self.harness_folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


class Outcome(NamedTuple):
    """The verdict of the official code on one conversation."""

    is_right: bool
    error: str
    executed_messages: int
    """Messages of the model whose calls were run."""


class ACEBench(Benchmark):
    """ACEBench's agent split."""

    name = "acebench"
    config_type = ACEBenchConfig
    harness = ACEBENCH_HARNESS
    sampling = ("temperature", "top_p", "top_k", "max_tokens_floor")
    config: ACEBenchConfig

    def choose(self, limit: int | None) -> None:
        """Choose the first cases of each category."""
        categories = self.config.categories
        self.numbers: dict[Category, int] = {category: CASES[category] for category in categories}
        if limit is not None:
            of_each = cases_of_each(limit, categories, "categories", min(self.numbers.values()))
            self.numbers = dict.fromkeys(categories, of_each)
        self.num_cases, self.of_cases = sum(self.numbers.values()), sum(CASES.values())
        self.trials, self.user = self.config.trials, self.config.user
        self.made_with = {"cases": self.num_cases}

    def conversations(self, raw: Path) -> list[Conversation]:
        """Return the conversations that are asked for, all cases of one trial before the next trial."""
        return [
            Conversation(category, number, trial, self.config.language, raw)
            for trial in range(self.config.trials)
            for category, count in self.numbers.items()
            for number in range(count)
        ]

    async def run(self, endpoint: Endpoint, raw: Path) -> None:
        """Run the conversations that have not ended, and those that lost an answer."""

        async def converse(conversation: Conversation) -> None:
            await self._converse(endpoint, conversation)

        asked = [
            each
            for each in self.conversations(raw)
            if (sample := each.sample()) is None or sample.failure == "transport"
        ]
        await work_through(asked, converse, at_once=self.config.requests_at_once)

    def read(self, raw: Path) -> list[Sample]:
        """Read the samples of all conversations."""
        asked = self.conversations(raw)
        samples = [sample for each in asked if (sample := each.sample()) is not None]
        if len(samples) < len(asked):  # the score would be that of fewer cases
            raise BenchmarkFailed(
                f"{raw} has the outcomes of {len(samples)} of {len(asked)} conversations; look at the disk, and the "
                "same command runs the others again"
            )
        return samples

    def requests(self, samples: Sequence[Sample], raw: Path) -> dict[str, int]:
        """Count the failed requests of agent and user in all conversations."""
        return failed_requests([each.folder for each in self.conversations(raw)])

    async def _converse(self, endpoint: Endpoint, which: Conversation) -> None:
        """Run one conversation and its evaluation, and write down how it ended."""
        config, started = self.config, time.monotonic()
        shutil.rmtree(which.folder, ignore_errors=True)  # it lost an answer, or was not run to its end
        which.prepare(self.environment.folder / "source")
        agent = Relay(
            endpoint,
            # Each trial has a seed of its own, or all would be alike.
            settings={"top_k": config.top_k, "seed": request_seed(config.seed, which.id, which.trial)},
            replaced={"temperature": config.temperature, "top_p": config.top_p},
            max_tokens_floor=config.max_tokens_floor,
            log=request_log(which.folder, "agent"),
            empty_as="",  # the code would end at null
        )
        user = Relay(
            config.user.endpoint(),
            replaced={"temperature": config.user.temperature},
            max_tokens_floor=config.user.max_tokens,
            log=request_log(which.folder, "user"),
            empty_as="",
        )
        outcome, fault = None, ""
        try:
            await self._run_programs(which, {AGENT_PORT: agent, USER_PORT: user})
            outcome = which.outcome()
        except ProgramFailed as failed:
            fault = failed.said[:200]
            if not any(whole_lines(request_log(which.folder, who)) for who in _WHO):
                raise BenchmarkFailed(f"ACEBench asked for no answer: {failed}") from None
        sample = self._sample(which, outcome, fault, time.monotonic() - started)
        write_whole(which.folder / "outcome.json", sample.model_dump_json(indent=2) + "\n")

    async def _run_programs(self, which: Conversation, relays: dict[int, Relay]) -> None:
        """Run the conversation, and then its evaluation, which asks no model."""
        python, source = str(self.environment.program("python")), self.environment.folder / "source"
        generate = [python, str(source / "generate.py"), "--model", MODEL, "--user-model", _USER, "--category", "agent"]
        generate += ["--language", which.language, "--max-dialog-turns", str(self.config.max_messages)]
        evaluate = [python, str(source / "eval_main.py"), "--model", MODEL, "--category", f"agent_{which.category}"]
        evaluate += ["--language", which.language]
        variables = {
            "PYTHONPATH": str(self.environment.folder / "stubs"),
            "OPENBLAS_NUM_THREADS": "1",  # more threads would take address space for each core
            "GPT_AGENT_BASE_URL": relay_url(AGENT_PORT),
            "GPT_AGENT_API_KEY": "none",
            "GPT_BASE_URL": relay_url(USER_PORT),
            "GPT_API_KEY": "none",
        }
        for command, at_ports in ((generate, relays), (evaluate, {})):
            await run_harness(
                command,
                folder=which.harness_folder,
                log=which.folder / "harness.log",
                variables=variables,
                readable=[self.environment.folder],
                relays=at_ports,
                cpu_seconds=_CPU_SECONDS,
                memory_bytes=_MEMORY_BYTES,
            )

    def _sample(self, which: Conversation, outcome: Outcome | None, fault: str, seconds: float) -> Sample:
        of_agent, of_user = (whole_lines(request_log(which.folder, who)) for who in _WHO)
        answers, said_by_user = _answers(of_agent), _answers(of_user)
        lost = [lines[-1] for lines in (of_agent, of_user) if lines and lines[-1]["status"] != 200]
        detail = f"the official code ended: {fault}" if outcome is None else outcome.error
        if is_lost := outcome is None and bool(lost):
            detail = str(lost[0].get("error"))[:200]
        return sample_of(
            answers,
            passed=outcome is not None and outcome.is_right,
            causes={
                "transport": is_lost,
                "user": any(said.is_cut or said.is_empty for said in said_by_user),
                "step_limit": which.had_most_messages(self.config.max_messages),
            },
            seconds=seconds,
            id=which.id,
            category=which.category,
            trial=which.trial,
            turns=len(said_by_user) if which.category == "multi_turn" else 1,
            tool_calls=0 if outcome is None else outcome.executed_messages,
            detail=detail,
        )


def _answers(lines: Sequence[dict[str, Any]]) -> list[Answer]:
    """Return the answers in the log of a relay."""
    return [
        Answer(line["finish"] == "length", line["is_empty"], line["prompt_tokens"], line["completion_tokens"])
        for line in lines
        if line["status"] == 200
    ]
