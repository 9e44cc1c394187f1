"""An estimate of a run's calls, tokens and cost with a language model, before anything is spent.

The embedded teacher makes a small run. Its calls and tokens are counted and multiplied up to the size of the config.
Prompts are counted in full. The other figures are low: replies are as short as the embedded teacher's, each tool's code
passes at the first try, and retries, repairs and embeddings are left out. A model that thinks aloud writes several
times as many tokens.
"""

from __future__ import annotations

import io
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple, get_args

from synthesis.environments.pipeline import EnvironmentsConfig, synthesize_environments
from synthesis.procedural.teacher import ProceduralTeacher
from synthesis.procedural.worlds import domains
from synthesis.prompts.chains import BindArguments, ProposeChains, VoteOnChain
from synthesis.prompts.parameter_completion import CompleteOutput, CompleteParameters
from synthesis.questions.knowledge import Knowledge
from synthesis.records import canonical_json
from synthesis.teacher.calls import call_of
from synthesis.teacher.config import OpenAITeacherConfig
from synthesis.teacher.protocol import Reply, Request, Role
from synthesis.trajectories.pipeline import TrajectoriesConfig, synthesize_trajectories

BYTES_PER_TOKEN: Final = 3.5
"""UTF-8 bytes per token. With Qwen3's tokenizer, prompts and replies of both tracks have 3.3 to 4 in each language."""
_SAMPLE_TRAJECTORIES: Final = 100
_SAMPLE_ENVIRONMENTS: Final = 50
_PER_SERVER: Final = frozenset(
    kind.__name__ for kind in (CompleteParameters, CompleteOutput, ProposeChains, BindArguments, VoteOnChain)
)
"""Questions whose number depends on the servers, and not on the number of trajectories."""
_NO_PRICES: Final = (
    "a cost needs prices: set teacher.usd_per_million_prompt_tokens and teacher.usd_per_million_completion_tokens"
)


class Questions(NamedTuple):
    """Calls and tokens of one kind of question, or of all."""

    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0


@dataclass(frozen=True)
class CostEstimate:
    """Calls and tokens of a run by kind of question, and the role in which each kind is asked."""

    questions: dict[str, Questions]
    roles: dict[str, Role]

    @property
    def total(self) -> Questions:
        """Calls and tokens of all kinds together."""
        return Questions(*map(sum, zip(*self.questions.values(), strict=True)))

    def scaled(self, factor: float, *, fixed: Set[str] = frozenset()) -> CostEstimate:
        """Return the estimate of a larger run; the questions in `fixed` keep their calls and tokens."""
        scaled = {
            name: asked if name in fixed else Questions(*(round(amount * factor) for amount in asked))
            for name, asked in self.questions.items()
        }
        return CostEstimate(scaled, self.roles)

    def table(self, prices: OpenAITeacherConfig | None) -> str:
        """Return the estimate for a person to read: a line per kind of question, then the cost.

        >>> asked = {"WriteTask": Questions(1000, 250_000, 30_000)}
        >>> print(CostEstimate(asked, {"WriteTask": "task_writer"}).table(None))
        question                         calls  prompt tokens  completion tokens
        WriteTask                        1,000        250,000             30,000
        total                            1,000        250,000             30,000
        a cost needs prices: set teacher.usd_per_million_prompt_tokens and teacher.usd_per_million_completion_tokens
        """
        lines = [f"{'question':28}{'calls':>10}{'prompt tokens':>15}{'completion tokens':>19}"]
        for name, asked in (*sorted(self.questions.items()), ("total", self.total)):
            lines.append(f"{name:28}{asked.calls:>10,}{asked.prompt_tokens:>15,}{asked.completion_tokens:>19,}")
        cost = self.cost_usd(prices)
        return "\n".join([*lines, _NO_PRICES if cost is None else f"cost: {cost:,.2f} USD"])

    def cost_usd(self, prices: OpenAITeacherConfig | None) -> float | None:
        """Return the cost of all questions in US dollars, each role at its own prices; None without prices.

        >>> prices = {"usd_per_million_prompt_tokens": 2, "usd_per_million_completion_tokens": 8}
        >>> estimate = CostEstimate({"WriteTask": Questions(9, 500_000, 125_000)}, {"WriteTask": "task_writer"})
        >>> estimate.cost_usd(OpenAITeacherConfig(model="m", **prices))
        2.0
        """
        if prices is None or not any(prices.of(role).has_price for role in get_args(Role)):
            return None
        return sum(
            prices.of(self.roles[name]).cost_usd(asked.prompt_tokens, asked.completion_tokens)
            for name, asked in self.questions.items()
        )

    def json_line(self, stage: str, prices: OpenAITeacherConfig | None) -> str:
        """Return the machine-readable line of `astra synthesize … --estimate --json`; a cost without prices is null."""
        questions = {name: asked._asdict() for name, asked in sorted(self.questions.items())}
        total = {**self.total._asdict(), "cost_usd": self.cost_usd(prices)}
        return json.dumps({"stage": stage, "estimate": total, "questions": questions})


@dataclass
class MeteringTeacher:
    """The embedded teacher; it counts the tokens that a language model would read and write for the same questions."""

    stand_in: Callable[[Request[Any]], Request[Any]] = lambda request: request
    """Function that puts a question that the embedded teacher can answer in place of one that it cannot."""
    config: OpenAITeacherConfig | None = None
    """Settings of the language model that would be asked."""
    name: str = "estimate"
    _asked: defaultdict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    _roles: dict[str, Role] = field(default_factory=dict)

    async def ask(self, request: Request[Reply], *, seed: int) -> Reply:
        """Answer one question as the embedded teacher, and count its tokens."""
        return (await self._answered(request, [(request, seed)]))[0]

    async def ask_together(self, requests: Sequence[tuple[Request[Reply], int]]) -> list[Reply]:
        """Answer questions that a language model is asked in one call, and count that call's tokens."""
        return await self._answered(type(requests[0][0]).together([request for request, _ in requests]), requests)

    async def _answered(self, asked: Request[Any], requests: Sequence[tuple[Request[Reply], int]]) -> list[Reply]:
        """Answer each of some questions, which are `asked` in one call."""
        kind = type(asked).__name__
        self._roles[kind] = asked.role
        read = num_tokens(_read_by_a_model(asked, self.config))
        self._asked[kind].update(calls=1, prompt_tokens=read)  # also if the reply is bad
        replies: list[Reply] = [
            await ProceduralTeacher().ask(self.stand_in(request), seed=seed) for request, seed in requests
        ]
        self._asked[kind].update(completion_tokens=sum(num_tokens(reply.model_dump_json()) for reply in replies))
        return replies

    def estimate(self) -> CostEstimate:
        """Return the calls and tokens of everything asked so far."""
        return CostEstimate({kind: Questions(**asked) for kind, asked in self._asked.items()}, dict(self._roles))


def _read_by_a_model(request: Request[Any], config: OpenAITeacherConfig | None) -> str:
    """Return the text that a model reads in one call: messages, of which the first holds the schema, and tools."""
    # The request itself is counted, and not its stand-in, which only serves to get an answer.
    call = call_of(request, config or OpenAITeacherConfig(model="any"), seed=0)
    rest = [{name: value for name, value in message.items() if name != "content"} for message in call["messages"]]
    texts = [str(message.get("content") or "") for message in call["messages"]]
    return "".join([*texts, *(canonical_json(part) for part in rest), canonical_json(call.get("tools", []))])


def num_tokens(text: str) -> int:
    """Estimate how many tokens a text has.

    >>> num_tokens("Book a hotel in Oslo."), num_tokens("预订奥斯陆的酒店。")
    (6, 8)
    """
    return round(len(text.encode()) / BYTES_PER_TOKEN)


async def estimate_trajectories(config: TrajectoriesConfig) -> CostEstimate:
    """Estimate calls and tokens of the trajectories track; raise the errors of a real run."""
    sample = min(_SAMPLE_TRAJECTORIES, config.count)
    teacher = MeteringTeacher(config=config.teacher)
    with TemporaryDirectory() as folder:
        small = config.model_copy(update={"count": sample, "out": Path(folder) / "estimate"})
        await synthesize_trajectories(small, teacher, progress=io.StringIO())
    return teacher.estimate().scaled(config.count / sample, fixed=_PER_SERVER)


async def estimate_environments(config: EnvironmentsConfig, sandbox_url: str) -> CostEstimate:
    """Estimate calls and tokens of the environments track; raise the errors of a real run."""
    sample = min(_SAMPLE_ENVIRONMENTS, config.count)
    teacher = MeteringTeacher(_with_known_knowledge, config.teacher)
    with TemporaryDirectory() as folder:
        # An estimate opens no embedding model, and the directories in `disjoint_from` need not exist yet.
        out = Path(folder) / "estimate"
        changes = {"count": sample, "out": out, "embedding": "lexical", "disjoint_from": ()}
        await synthesize_environments(config.model_copy(update=changes), teacher, sandbox_url)
    return teacher.estimate().scaled(config.count / sample)


def _with_known_knowledge(request: Request[Any]) -> Request[Any]:
    """Return the request about a domain that the embedded teacher knows, if it is about prose or another domain."""
    knowledge: Knowledge | None = getattr(request, "knowledge", None)
    if knowledge is None or knowledge.kind == "tables":
        return request
    if knowledge.kind == "domain" and knowledge.domain in domains():
        return request
    known = knowledge.model_copy(update={"kind": "domain", "domain": next(iter(domains())), "text": ""})
    return request.model_copy(update={"knowledge": known})
