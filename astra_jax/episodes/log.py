"""The episode log: finished episodes as JSON lines, with the id and the writer of every token.

One line per episode. The texts of its tokens, joined, are the exact text of the episode. The quickstart and
`astra evaluate` write `episodes.jsonl`, `astra rl` one file a step under `episodes/`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import Field, ValidationError, field_validator, model_validator

from astra_jax.chat.format import Source
from astra_jax.chat.tokenizer import Tokenizer
from astra_jax.config import Frozen
from astra_jax.episodes.episode import Episode, TurnSeconds
from astra_jax.episodes.figures import num_irrelevant_calls
from astra_jax.episodes.finished import EpisodeMessage, FinishedEpisode, finished_episode, messages_of
from astra_jax.episodes.rewards import f1
from astra_jax.errors import RunUnreadable, first_fault
from synthesis.records import JsonObject, Language, Scenario
from synthesis.run.destination import write_whole

SourceName = Literal["prompt", "template", "model", "tool"]

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_MOST_TOKENS_OF_A_CHARACTER = 4  # a character has at most four bytes, a token at least one


class LoggedToken(NamedTuple):
    """One token: `[id, text, source, sampled log-prob, turn, policy version]`."""

    id: int
    text: str
    """Text of the token; empty if the character that it is part of began in an earlier token."""
    source: SourceName
    """Writer of the token; tokens of the model, and no others, have loss."""
    sampled_logprob: float
    """Log-prob under the sampling distribution, to six decimals; 0 for other tokens."""
    turn: int
    """Number of the assistant message from 1; 0 for the prompt."""
    policy_version: int = -1
    """Updates that the policy had seen when it sampled the token; -1 for other tokens."""


class RolledOut(Frozen):
    """The seed, slot and limits that decide the tokens of an episode, beside policy and environment."""

    seed: int
    slot: int
    limits: JsonObject
    """Keys of a `RolloutConfig`."""


class LoggedEpisode(FinishedEpisode):
    """One line of the log."""

    messages: tuple[EpisodeMessage, ...] = Field(default=(), exclude=True)
    """The conversation in order; the line has its text in the tokens."""
    domain: str
    language: Language
    scenario: Scenario
    policy: str
    """Name of the policy: `base`, `sft`, `rl`, or `step 10` of a training run."""
    reward: float
    f1: float
    """F1 of the paper, even if the reward of the run is another."""
    num_irrelevant_calls: int
    policy_version: int | None
    """Updates that the policy had seen when it sampled its first token; None without sampled tokens."""
    met_expectation: bool
    """Whether the episode refused or asked back, if that was expected, as it was judged then."""
    rolled_out: RolledOut | None
    """Seed, slot and limits of the rollout; None if no policy spoke."""
    split: str = ""
    """Folder of the environments that the episode's is one of; empty in logs of earlier versions."""
    advantage: float | None = None
    """Advantage in its group, in RL; None elsewhere and in a group without reward variance."""
    learner_logprobs: tuple[float, ...] = ()
    """Log-prob of each sampled token by the learner's program before its update, to six decimals; empty if the episode
    was not in the batch of the step."""
    seconds: tuple[TurnSeconds, ...] = ()
    """The time line, turn by turn; empty for an episode of another host, or from a checkpoint."""
    tokens: tuple[LoggedToken, ...]

    @field_validator("tokens", mode="before")
    @classmethod
    def _without_kept_ids(cls, tokens: Any) -> Any:
        """Read earlier logs as well: their tokens end with the ids that truncation kept, none without truncation."""
        if not isinstance(tokens, list):
            return tokens
        return [token[:6] if isinstance(token, list) and token[6:] == [[]] else token for token in tokens]

    @model_validator(mode="after")
    def _is_whole(self) -> LoggedEpisode:
        """Refuse a line without one of the fields that a test of a reward may leave out, and join the messages."""
        if missing := sorted(FinishedEpisode.model_fields.keys() - self.model_fields_set - {"messages"}):
            raise ValueError(f"{missing[0]} is missing")
        runs = itertools.groupby(self.tokens, key=lambda token: (token.turn, token.source))
        said = ((Source[source.upper()], "".join(token.text for token in tokens)) for (_, source), tokens in runs)
        object.__setattr__(self, "messages", messages_of(self.question, said))  # the model is frozen
        return self


def episode_to_json(
    episode: Episode,
    tokenizer: Tokenizer,
    *,
    policy: str,
    reward: float,
    split: str = "",
    advantage: float | None = None,
    learner_logprobs: Sequence[float] = (),
) -> JsonObject:
    """Return the line of a finished episode and its reward.

    Raises:
        ValueError: the episode still runs.
    """
    environment, ledger = episode.environment, episode.ledger
    texts = token_texts(ledger.ids, tokenizer)
    sources = [Source(source).name.lower() for source in ledger.sources]
    logprobs = [round(logprob, 6) for logprob in ledger.sampled_logprobs]
    columns = (ledger.ids, texts, sources, logprobs, ledger.turns, ledger.policy_versions)
    versions = [version for version in ledger.policy_versions if version >= 0]
    return LoggedEpisode(
        **dict(finished_episode(episode, tokenizer)),
        domain=environment.domain,
        language=environment.language,
        scenario=environment.scenario,
        policy=policy,
        reward=reward,
        f1=f1(**episode.counts._asdict()),
        num_irrelevant_calls=num_irrelevant_calls(episode),
        policy_version=versions[0] if versions else None,
        met_expectation=episode.met_expectation,
        rolled_out=RolledOut.model_validate(episode.rolled_out) if episode.rolled_out is not None else None,
        split=split,
        advantage=advantage,
        learner_logprobs=tuple(round(logprob, 6) for logprob in learner_logprobs),
        seconds=tuple(TurnSeconds._make(round(each, 3) for each in turn) for turn in episode.seconds),
        tokens=tuple(itertools.starmap(LoggedToken, zip(*columns, strict=True))),
    ).model_dump(mode="json")


def write_episodes(path: Path, episodes: Iterable[JsonObject]) -> int:
    """Write the lines of a log, or none of them; return how many.

    Raises:
        OSError: the disk is full or not writable; the file at `path` is unchanged.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [LoggedEpisode.model_validate(episode).model_dump_json() + "\n" for episode in episodes]
    write_whole(path, "".join(lines))
    return len(lines)


def step_episodes_path(out: Path, step: int) -> Path:
    """Return where the log of one training step lies, such as `runs/rl/episodes/step_000020.jsonl`."""
    return out / "episodes" / f"step_{step:06d}.jsonl"


def logs_of_run(run_dir: Path) -> list[Path]:
    """Return the logs that a run's folder holds: its `episodes.jsonl`, then those of training steps in order."""
    return [*run_dir.glob("episodes.jsonl"), *sorted(run_dir.glob("episodes/step_*.jsonl"))]


def read_episodes(path: Path) -> list[LoggedEpisode]:
    """Return the episodes of a log in order.

    Raises:
        RunUnreadable: a line is not an episode.
    """
    episodes = []
    with path.open("rb") as lines:  # text that is no UTF-8 is a fault of its line
        for number, line in enumerate(lines, start=1):
            try:
                episodes.append(LoggedEpisode.model_validate_json(line))
            except ValidationError as error:
                fault = f"line {number} of {path} is not an episode: {first_fault(error)}"
                raise RunUnreadable(f"{fault}; write it again by running again") from error
    return episodes


def token_texts(ids: Sequence[int], tokenizer: Tokenizer) -> list[str]:
    """Return the text of each token, so that all of them joined are exactly the text of all tokens.

    A character may span tokens: its text stands with the first of them, and the others have none.
    """
    texts: list[str] = []
    while len(texts) < len(ids):
        start, end = len(texts), len(texts) + 1
        # A cut beside a whole character changes nothing: tokens that end or begin with one decode alone as in place.
        while (
            tokenizer.decode(ids[max(start, end - _MOST_TOKENS_OF_A_CHARACTER) : end]).endswith(_REPLACEMENT)
            and end < len(ids)
            and tokenizer.decode([ids[end]]).startswith(_REPLACEMENT)
        ):
            end += 1
        texts += [tokenizer.decode(ids[start:end]), *[""] * (end - start - 1)]
    return texts
