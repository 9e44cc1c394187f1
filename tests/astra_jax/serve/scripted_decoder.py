"""A decoder that says a test's text, a few tokens a call."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from astra_jax.chat.tokenizer import Tokenizer
from astra_jax.engine.interface import DecoderError, Generated, Load, Sampling, Session, Told

TOKENS_A_CALL = 3


class ScriptedDecoder:
    """Ends each message with the end token, at the asked length, or where it is aborted."""

    def __init__(self, tokenizer: Tokenizer):
        self._tokenizer = tokenizer
        self.text = ""
        self.prompts: list[str] = []
        self.samplings: list[Sampling] = []
        self.sessions: list[Session] = []
        self.failure: Exception | None = None
        """Raised after the first call."""
        self.aborted: set[Session] = set()
        self._known: set[Session] = set()
        self.seconds_a_call = 0.0

    @property
    def load(self) -> Load:
        return Load(len(self._known), len(self._known), 0, 0, 0, 0, 0.0, 0.0, 0.0)

    async def generate(
        self, ids: Sequence[int], sampling: Sampling, session: Session, told: Told | None = None
    ) -> Generated:
        self._known.add(session)
        self.prompts.append(self._tokenizer.decode(list(ids)))
        self.samplings.append(sampling)
        self.sessions.append(session)
        script = [*self._tokenizer.encode(self.text), self._tokenizer.end_id][: sampling.max_tokens]
        said: list[int] = []
        while len(said) < len(script) and session not in self.aborted:
            await asyncio.sleep(self.seconds_a_call)
            new = script[len(said) : len(said) + TOKENS_A_CALL]
            said += new
            if told is not None:
                told(new, [-0.5] * len(new))
            if self.failure is not None:
                raise self.failure
        finish = "aborted" if session in self.aborted else "end" if said[-1] == self._tokenizer.end_id else "length"
        return Generated(said, [-0.5] * len(said), [0] * len(said), finish, computed_tokens=min(len(ids), 5))

    def abort(self, session: Session) -> None:
        self.aborted.add(session)

    def forget(self, session: Session) -> None:
        if session not in self._known:
            raise DecoderError("never asked")
        self._known.discard(session)

    async def close(self, *, failed: bool = False) -> None:
        pass
