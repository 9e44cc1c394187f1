"""BFCL by the official package: its multi-turn categories, whose cases are asked turn by turn, and single-turn ones.

BFCL passes over every case that has a line in its results, so that a run goes on by itself; the lines of lost answers
are removed before.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Final, Literal, get_args

from pydantic import BaseModel, Field, ValidationError, model_validator

from astra_jax.benchmarks.benchmark import Benchmark, BenchmarkConfig, cases_of_each
from astra_jax.benchmarks.harness_process import AGENT_PORT, relay_url, run_harness
from astra_jax.benchmarks.harnesses import BFCL_HARNESS
from astra_jax.benchmarks.relay import Relay
from astra_jax.benchmarks.results import Answer, BenchmarkFailed, Sample, sample_of, whole_lines
from astra_jax.errors import first_fault
from astra_jax.evaluate.endpoint import Endpoint
from synthesis.run.destination import write_whole

MultiTurnCategory = Literal["base", "miss_func", "miss_param", "long_context"]
SingleTurnCategory = Literal["simple_python", "multiple", "parallel", "irrelevance"]
Category = MultiTurnCategory | SingleTurnCategory
MULTI_TURN: Final[tuple[Category, ...]] = get_args(MultiTurnCategory)
CASES: Final[Mapping[str, int]] = {
    **dict.fromkeys(MULTI_TURN, 200),
    "simple_python": 400,
    "multiple": 200,
    "parallel": 200,
    "irrelevance": 240,
}
"""Number of cases that a category has."""
_MODEL: Final = "openbmb/MiniCPM-SALA-FC"
"""An entry of BFCL's table of models whose handler asks OpenAI's chats with tools."""
_MOST_STEPS: Final = 20
"""Steps of a turn; BFCL fails a case that has one more."""
_LOST: Final = "Error during inference"
"""Text in place of the answers of a case in which a request failed."""


class BFCLConfig(BenchmarkConfig):
    """Config of `astra evaluate bfcl`."""

    categories: tuple[Category, ...] = Field(default=MULTI_TURN, min_length=1)
    """Categories to run: multi-turn ones, or `simple_python`, `multiple`, `parallel` and `irrelevance`."""
    subset: dict[Category, int] = Field(default={})
    """Number of cases of a category, drawn by the seed; without an entry all of them."""
    mend_format: bool = False
    """Whether JSON of a call in an answer's text, bare or in a fence, is taken for a call: a base model knows no
    `<tool_call>`."""
    max_tokens: int | None = Field(default=None, ge=1)
    """Tokens of one answer; BFCL asks for no limit, and the server's default is all that fits."""

    @model_validator(mode="after")
    def _check(self) -> BFCLConfig:
        if 0 < sum(each in MULTI_TURN for each in self.categories) < len(self.categories):
            raise ValueError("categories are multi-turn or single-turn; run the others with another `out`")
        for category, cases in self.subset.items():
            if category not in self.categories or not 0 < cases <= CASES[category]:
                raise ValueError(f"subset.{category} expected a category of the run and 1 to {CASES[category]} cases")
        return self


class BFCL(Benchmark):
    """BFCL's multi-turn categories, or its single-turn ones."""

    name = "bfcl"
    config_type = BFCLConfig
    harness = BFCL_HARNESS
    config: BFCLConfig

    def choose(self, limit: int | None) -> None:
        """Choose the first cases of each category, or of its subset."""
        config = self.config
        drawn = {each: _cases(each, config.subset.get(each), config.seed) for each in config.categories}
        most = cases_of_each(limit, config.categories, "categories", min(map(len, drawn.values()))) if limit else None
        self.cases = {_full_name(category): ids[:most] for category, ids in drawn.items()}
        """Ids of each category's cases, in the form of BFCL's file of ids."""
        self.num_cases = sum(map(len, self.cases.values()))
        is_multi_turn = config.categories[0] in MULTI_TURN
        self.of_cases = sum(cases for category, cases in CASES.items() if (category in MULTI_TURN) == is_multi_turn)
        self.made_with = {"samples": self.num_cases}

    async def run(self, endpoint: Endpoint, raw: Path) -> None:
        """Let BFCL generate answers and evaluate them."""
        config, log, readable = self.config, raw / "harness.log", [self.environment.folder]
        write_whole(raw / "test_case_ids_to_generate.json", json.dumps(self.cases))
        drop_lost_results(raw / "result")
        relay = Relay(
            endpoint,
            settings={"top_p": config.top_p, "top_k": config.top_k, "max_tokens": config.max_tokens},
            # Calls of single-turn cases are compared, and never run as Python.
            tool_names=_tool_names(self.environment.packages()) if config.categories[0] in MULTI_TURN else None,
            mends_format=config.mend_format,
            log=raw / "requests.jsonl",
        )
        variables = {"OPENAI_BASE_URL": relay_url(AGENT_PORT), "OPENAI_API_KEY": "none", "BFCL_PROJECT_ROOT": str(raw)}
        program, places = str(self.environment.program("bfcl")), ["--result-dir", "result"]
        generate = [program, "generate", "--model", _MODEL, "--run-ids", *places]
        generate += ["--temperature", str(config.temperature), "--num-threads", str(config.requests_at_once)]
        evaluate = [program, "evaluate", "--model", _MODEL, "--partial-eval", *places, "--score-dir", "score"]
        evaluate += ["--test-category", ",".join(self.cases)]
        relays = {AGENT_PORT: relay}
        await run_harness(generate, folder=raw, log=log, variables=variables, readable=readable, relays=relays)
        await run_harness(evaluate, folder=raw, log=log, variables=variables, readable=readable)

    def read(self, raw: Path) -> list[Sample]:
        """Read the results and scores of BFCL."""
        lines = whole_lines(raw / "requests.jsonl")
        cut = {(line["prompt_tokens"], line["completion_tokens"]) for line in lines if line.get("finish") == "length"}
        return read_samples(raw / "result", raw / "score", cut, chain(*self.cases.values()))

    def requests(self, samples: Sequence[Sample], raw: Path) -> dict[str, int]:
        """Count the requests of all commands of the run."""
        lines = whole_lines(raw / "requests.jsonl")
        return {
            "failed_requests": sum(line["status"] != 200 for line in lines),
            "renamed_calls": sum(line.get("renamed_calls", 0) for line in lines),
        }


class _Result(BaseModel):
    """One line of a file of results."""

    id: str
    result: str | list[list[Any]]
    """Lists of calls, or a text, for each step of each turn; one text for all turns if an answer was lost."""
    input_token_count: list[list[int]] = []
    output_token_count: list[list[int]] = []
    latency: list[list[float]] = []


def _full_name(category: str) -> str:
    """Return BFCL's name of a category."""
    return f"multi_turn_{category}" if category in MULTI_TURN else category


def _cases(category: str, count: int | None, seed: int) -> list[str]:
    """Return the ids of a category's cases, in their order: all, or `count` that the seed draws."""
    drawn = random.Random(f"{category}/{seed}").sample(
        range(CASES[category]), CASES[category] if count is None else count
    )
    return [f"{_full_name(category)}_{case}" for case in sorted(drawn)]


def category_of(case_id: str) -> str:
    """Return the category of a case.

    >>> category_of("multi_turn_long_context_17")
    'long_context'
    """
    return case_id.removeprefix("multi_turn_").rpartition("_")[0]


def _tool_names(packages: Path) -> frozenset[str]:
    """Read the names of all tools that multi-turn cases have from the packages of the environment."""
    files = sorted((packages / "bfcl_eval" / "data" / "multi_turn_func_doc").glob("*.json"))
    names = frozenset(str(document["name"]) for path in files for document in whole_lines(path))
    if not names:
        raise BenchmarkFailed(
            f"there are no tool documents of BFCL below {packages}; delete its environment and set it up again"
        )
    return names


def drop_lost_results(results: Path) -> None:
    """Remove half written lines and lost answers, so that BFCL runs these cases again."""
    for path in sorted(results.rglob("*_result.json")):
        kept = [line for line in whole_lines(path) if not str(line.get("result")).startswith(_LOST)]
        write_whole(path, "".join(json.dumps(line) + "\n" for line in kept))


def read_samples(results: Path, scores: Path, cut: Container[tuple[int, int]], asked: Iterable[str]) -> list[Sample]:
    """Read BFCL's results and scores of the cases that were asked for, in their order.

    `cut` has the tokens of prompt and answer of each answer that was cut off at its longest. BFCL's files do not say
    which answers were cut, so that an answer with the same two numbers counts as one.

    Raises:
        BenchmarkFailed: a case is missing or has no verdict, or a file is not one of BFCL's.
    """
    found: dict[str, _Result] = {}
    for path in sorted(results.rglob("*_result.json")):
        for number, line in enumerate(whole_lines(path), 1):
            try:
                result = _Result.model_validate(_in_turns(line))
            except ValidationError as error:
                raise BenchmarkFailed(
                    f"line {number} of {path} is not a result of BFCL: {first_fault(error)}"
                ) from None
            found[result.id] = result
    wrong = _read_scores(scores, Counter(category_of(case) for case in found))
    samples = []
    for case in asked:
        if case not in found:
            raise BenchmarkFailed(f"{results} has no result of {case}; the same command goes on")
        samples.append(_sample(found[case], wrong.get(case), cut))
    return samples


def _in_turns(line: dict[str, Any]) -> dict[str, Any]:
    """Give a line of a single-turn case the form of the others: one turn with one step."""
    if not isinstance(line.get("input_token_count"), int):
        return line
    of_turns = ("result", "input_token_count", "output_token_count", "latency")
    return line | {name: [[line[name]]] for name in of_turns if name in line}


def _read_scores(scores: Path, counts: Mapping[str, int]) -> dict[str, str]:
    """Return the reason of each failed case; the header of each file must count the cases that were run."""
    wrong: dict[str, str] = {}
    for category, count in counts.items():
        paths = sorted(scores.rglob(f"BFCL_v4_{_full_name(category)}_score.json"))
        if len(paths) != 1:
            raise BenchmarkFailed(f"{len(paths)} files of scores of {category} lie below {scores} instead of one")
        header, *failed = whole_lines(paths[0]) or [{}]
        if (header.get("total_count"), header.get("correct_count")) != (count, count - len(failed)):
            raise BenchmarkFailed(
                f"{paths[0]} says {header.get('correct_count')} right of {header.get('total_count')}, but {count} "
                f"cases were asked and {len(failed)} are listed as wrong; the same command scores again"
            )
        for line in failed:
            error = line.get("error")
            found = error.get("error_type", error) if isinstance(error, dict) else line.get("error_type", error)
            wrong[str(line["id"])] = str(found)[:200]
    return wrong


def _sample(result: _Result, wrong: str | None, cut: Container[tuple[int, int]]) -> Sample:
    is_lost = isinstance(result.result, str)
    if wrong is None and is_lost:
        raise BenchmarkFailed(f"BFCL passed {result.id}, although its answers were lost")
    turns: Sequence[Sequence[Any]] = [] if isinstance(result.result, str) else result.result
    steps, tokens = list(chain(*turns)), (chain(*result.input_token_count), chain(*result.output_token_count))
    answers = [
        # An empty answer has neither a call nor a word.
        Answer((before, said) in cut, not (step.strip() if isinstance(step, str) else step), before, said)
        for step, before, said in zip(steps, *tokens, strict=True)
    ]
    return sample_of(
        answers,
        passed=wrong is None,
        causes={"transport": is_lost, "step_limit": any(len(turn) > _MOST_STEPS for turn in turns)},
        seconds=sum(chain(*result.latency)),
        id=result.id,
        category=category_of(result.id),
        turns=len(turns),
        tool_calls=sum(len(step) for step in steps if isinstance(step, list)),
        detail=(result.result[:200] if isinstance(result.result, str) else wrong) or "",
    )
