"""What a run would ask a language model, before anything is spent.

A small run with the embedded teacher is metered and scaled up to the run that is wanted. Prompts are rendered in full;
replies are as short as the embedded teacher's, and retries and repairs are not counted: a model that thinks aloud
writes several times as much.

Decided: docs/decisions/synthesis.md, “An estimate is a small metered run”.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Set
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from synthesis.procedural.teacher import ProceduralTeacher
from synthesis.teacher.config import OpenAITeacherConfig
from synthesis.teacher.protocol import Reply, Request

BYTES_PER_TOKEN: Final = 3.5
"""Of UTF-8; with Qwen3's tokenizer the prompts and replies of both tracks, English and Chinese, have 3.3 to 4."""


_NO_PRICES: Final = (
    "a cost needs prices: set teacher.usd_per_million_prompt_tokens and teacher.usd_per_million_completion_tokens"
)


@dataclass(frozen=True)
class Questions:
    """Calls and tokens of one kind of question, or of all."""

    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0

    def __add__(self, other: Questions) -> Questions:
        return Questions(
            self.calls + other.calls,
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
        )

    def scaled(self, factor: float) -> Questions:
        """Return the calls and tokens of a run `factor` times as large."""
        return Questions(*(round(amount * factor) for amount in asdict(self).values()))

    def cost_usd(self, prices: OpenAITeacherConfig) -> float:
        """Return the cost of the tokens in US dollars.

        >>> prices = {"usd_per_million_prompt_tokens": 2, "usd_per_million_completion_tokens": 8}
        >>> Questions(9, 500_000, 125_000).cost_usd(OpenAITeacherConfig(model="m", **prices))
        2.0
        """
        prompts = self.prompt_tokens * prices.usd_per_million_prompt_tokens
        return (prompts + self.completion_tokens * prices.usd_per_million_completion_tokens) / 1e6


@dataclass(frozen=True)
class CostEstimate:
    """What a run would ask, by kind of question."""

    questions: dict[str, Questions]

    @property
    def total(self) -> Questions:
        """Calls and tokens of all kinds together."""
        return sum(self.questions.values(), Questions())

    def scaled(self, factor: float, *, fixed: Set[str] = frozenset()) -> CostEstimate:
        """Return the estimate of a larger run, in which the questions in `fixed` are asked no more often."""
        return CostEstimate(
            {name: asked if name in fixed else asked.scaled(factor) for name, asked in self.questions.items()}
        )

    def table(self, prices: OpenAITeacherConfig | None) -> str:
        """Return the estimate for a person to read: one line per kind of question, then what all of it costs.

        >>> print(CostEstimate({"WriteTask": Questions(1000, 250_000, 30_000)}).table(None))
        question                         calls  prompt tokens  completion tokens
        WriteTask                        1,000        250,000             30,000
        total                            1,000        250,000             30,000
        a cost needs prices: set teacher.usd_per_million_prompt_tokens and teacher.usd_per_million_completion_tokens
        """
        lines = [f"{'question':28}{'calls':>10}{'prompt tokens':>15}{'completion tokens':>19}"]
        for name, asked in (*sorted(self.questions.items()), ("total", self.total)):
            lines.append(f"{name:28}{asked.calls:>10,}{asked.prompt_tokens:>15,}{asked.completion_tokens:>19,}")
        cost = self.cost_usd(prices)
        lines.append(_NO_PRICES if cost is None else f"cost: {cost:,.2f} USD")
        return "\n".join(lines)

    def cost_usd(self, prices: OpenAITeacherConfig | None) -> float | None:
        """Return the cost of all of it in US dollars; None without prices."""
        if prices is None or not (prices.usd_per_million_prompt_tokens or prices.usd_per_million_completion_tokens):
            return None
        return self.total.cost_usd(prices)

    def json_line(self, stage: str, prices: OpenAITeacherConfig | None) -> str:
        """Return the machine-readable line of `astra synthesize … --estimate --json`; a cost without prices is null."""
        questions = {name: asdict(asked) for name, asked in sorted(self.questions.items())}
        total = {**asdict(self.total), "cost_usd": self.cost_usd(prices)}
        return json.dumps({"stage": stage, "estimate": total, "questions": questions})


@dataclass
class MeteringTeacher:
    """The embedded teacher, with every prompt rendered and every reply measured as a language model's would be."""

    stand_in: Callable[[Request[Any]], Request[Any]] = lambda request: request
    """Gives the question that is answered in the place of one that only a language model can answer."""
    name: str = "estimate"
    _asked: defaultdict[str, Questions] = field(default_factory=lambda: defaultdict(Questions))

    async def ask(self, request: Request[Reply], *, seed: int) -> Reply:
        """Answer one question and measure it.

        Raises:
            BadReply: as the embedded teacher.
        """
        kind = type(request)
        schema = json.dumps(kind.reply_type.model_json_schema(), ensure_ascii=False)
        # Of the request itself: a stand-in only serves to get an answer.
        prompt = "".join(message["content"] for message in request.messages()) + schema
        self._asked[kind.__name__] += Questions(1, num_tokens(prompt), 0)
        reply: Reply = await ProceduralTeacher().ask(self.stand_in(request), seed=seed)
        self._asked[kind.__name__] += Questions(0, 0, num_tokens(reply.model_dump_json()))
        return reply

    def estimate(self) -> CostEstimate:
        """Return the calls and tokens of everything asked so far."""
        return CostEstimate(dict(self._asked))


def num_tokens(text: str) -> int:
    """Estimate how many tokens a text has.

    >>> num_tokens("Book a hotel in Oslo."), num_tokens("预订奥斯陆的酒店。")
    (6, 8)
    """
    return round(len(text.encode()) / BYTES_PER_TOKEN)
