"""A decoder behind a process boundary: messages are asked for at `POST /inference/v1/generate`.

`astra serve` answers there, and so does vLLM (with `--logprobs-mode processed_logprobs`, so that its log-probs are
those of the distribution that was sampled from). This decoder takes no weights: a policy is evaluated through it, not
trained.

Each message is one request that carries its seed. A request that is lost, cut short or refused for now is sent again
until the deadline; a server that replays gives the same message again.
"""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import itertools
import json
import random
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NoReturn

import httpx
from pydantic import BaseModel, ValidationError

from astra_jax.engine.interface import (
    DecoderError,
    Finish,
    Generated,
    Load,
    Sampling,
    Session,
    Told,
)
from astra_jax.evaluate.endpoint import Endpoint, headers, wrong_key

_MOST_SEED: Final = 2**62
_MOST_BACKOFF_SECONDS: Final = 5.0
_CONNECT_SECONDS: Final = 10.0
_FINISHES: Final[dict[str, Finish]] = {"stop": "end", "length": "length", "abort": "aborted"}


@dataclass
class _Lost(Exception):
    """An attempt without a whole reply; the next one may have it."""

    why: str
    pause_seconds: float = 0.0
    """Seconds that the server wants to be left alone."""


class HTTPDecoder:
    """A `Decoder` that asks a server.

    The server finds out itself which history it has seen before. `load` counts what passes through this object; figures
    of pages and rows are 0. A message comes as a whole, so an aborted one has no tokens.

    Args:
      end_ids: tokens that end a message, besides those that the server takes for an end.
      deadline_seconds: seconds for one message, with all attempts and the pauses between them.
    """

    def __init__(self, endpoint: Endpoint, *, end_ids: tuple[int, ...], deadline_seconds: float = 1800.0):
        self._endpoint, self._end_ids, self._deadline_seconds = endpoint, end_ids, deadline_seconds
        self._http = httpx.AsyncClient(
            headers=headers(endpoint.key_variable),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=None),
            timeout=httpx.Timeout(None, connect=_CONNECT_SECONDS),
            trust_env=False,  # no proxy and no .netrc: the key is for this server alone
        )
        self._under_way: dict[Session, asyncio.Task[Generated]] = {}
        self._first_tokens: dict[Session, int] = {}
        """Tokens of each session's first call: draws are counted from there."""
        self._sampled_tokens = 0
        self._is_closed = False

    @property
    def load(self) -> Load:
        """How busy it is."""
        sessions, waiting, sampled = len(self._first_tokens), len(self._under_way), self._sampled_tokens
        return Load(sessions, waiting, free_pages=0, row_steps=0, sampled_tokens=sampled, read_tokens=0, programs=0)

    async def generate(
        self, ids: Sequence[int], sampling: Sampling, session: Session, told: Told | None = None
    ) -> Generated:
        """Sample the message that follows `ids`, all tokens of the session so far; `told` hears of it as a whole.

        Raises:
            DecoderError: the server refuses it, or gave no answer before the deadline; or the session is asked for two
                messages at once.
        """
        if session in self._under_way:
            raise DecoderError(f"expected one message at a time, found two of seed {session.seed} slot {session.slot}")
        first_tokens = min(self._first_tokens.get(session, len(ids)), len(ids))
        document = self._document(ids, sampling, session, first_tokens)
        asking = self._under_way[session] = asyncio.create_task(self._ask(document))
        try:
            generated = await asking
            self._first_tokens[session] = first_tokens  # a refused call does not count as the first
            if told is not None and generated.ids:
                told(generated.ids, generated.logprobs)
            return generated
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if caller is not None and caller.cancelling():
                raise
            if self._is_closed:
                raise DecoderError("expected no message under way when a decoder is closed, found one") from None
            return Generated([], [], [], "aborted")
        finally:
            del self._under_way[session]

    def abort(self, session: Session) -> None:
        """End the session's message: its `generate` returns no tokens, and the server sees that the client has gone."""
        if session in self._under_way:
            self._under_way[session].cancel()

    def forget(self, session: Session) -> None:
        """Let go of the session; the server has done so already.

        Raises:
            DecoderError: a message of it is under way.
        """
        if session in self._under_way:
            raise DecoderError(
                f"expected a session without a message under way, found seed {session.seed} slot {session.slot}"
            )
        self._first_tokens.pop(session, None)

    async def update_weights(self, params: Any, version: int) -> None:
        """Refuse.

        Raises:
            DecoderError: always.
        """
        raise DecoderError(
            f"expected a decoder that takes weights, found the server at {self._endpoint.url}: a policy can be "
            "evaluated through it, but not trained"
        )

    async def until_failed(self) -> NoReturn:
        """Wait for ever: an error reaches the caller of `generate`."""
        while True:
            await asyncio.Event().wait()

    async def close(self, *, failed: bool = False) -> None:
        """Close the connections; no message may be under way that a caller waits for."""
        self._is_closed = True
        asking = list(self._under_way.values())
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
        await self._http.aclose()

    # --- one message ---

    def _document(self, ids: Sequence[int], sampling: Sampling, session: Session, first_tokens: int) -> dict[str, Any]:
        replays, params = self._endpoint.replays, dataclasses.asdict(sampling)
        stop_ids = params.pop("stop_ids")
        document: dict[str, Any] = {
            "model": self._endpoint.model,
            "token_ids": list(ids),
            "sampling_params": {
                **params,
                "top_k": sampling.top_k or 0,  # none: vLLM takes no null
                "seed": session.seed << 31 | session.slot if replays else seed_of_message(session, len(ids)),
                "stop_token_ids": [*self._end_ids, *stop_ids],
                "logprobs": 0,
            },
        }
        if replays:  # `astra serve` draws as a decoder in this process
            document["draws_from"] = first_tokens
        if session.salt:
            document["cache_salt"] = session.salt
        return document

    async def _ask(self, document: dict[str, Any]) -> Generated:
        why = "no reply yet"
        try:
            async with asyncio.timeout(self._deadline_seconds):
                for attempt in itertools.count():
                    pause_seconds = min(_MOST_BACKOFF_SECONDS, 0.05 * 2**attempt)
                    try:
                        generated = await self._attempt(document)
                        self._sampled_tokens += len(generated.ids)
                        return generated
                    except httpx.TransportError as error:
                        why = f"{type(error).__name__}: {error}"
                    except _Lost as error:
                        why, pause_seconds = error.why, max(pause_seconds, error.pause_seconds)
                    # Not all callers at once: a server that comes back is not flooded.
                    await asyncio.sleep(pause_seconds * (0.5 + random.random()))
                raise AssertionError("it counts for ever")
        except TimeoutError:
            raise DecoderError(
                f"no answer from the server at {self._endpoint.url} in {self._deadline_seconds:g} s: "
                f"{' '.join(why.split())}"
            ) from None

    async def _attempt(self, document: dict[str, Any]) -> Generated:
        url = self._endpoint.url
        body = json.dumps(document | {"request_id": secrets.token_hex(16)}).encode()
        response = await self._http.post(f"{url}/inference/v1/generate", content=body)
        status = response.status_code
        if status == 401:
            raise wrong_key(url, self._endpoint.key_variable)
        if status in (408, 429) or status >= 500:
            retry_after = response.headers.get("retry-after", "")
            pause_seconds = float(retry_after) if retry_after.isdigit() else 0.0
            raise _Lost(f"HTTP {status}: {_error_message(response.content)}", pause_seconds)
        if status != 200:
            message = _error_message(response.content)
            raise DecoderError(f"the server at {url} refuses the request: HTTP {status}: {message}")
        try:
            generated = _Reply.model_validate_json(response.content).message(document["sampling_params"]["max_tokens"])
        except (ValidationError, LookupError, ValueError) as error:
            why = error.errors()[0]["msg"] if isinstance(error, ValidationError) else error
            raise DecoderError(f"the reply of the server at {url} is not one of this protocol: {why}") from None
        if generated.finish == "aborted":
            raise _Lost("the server ended the message")
        return generated


def seed_of_message(session: Session, num_tokens: int) -> int:
    """Return a seed for the message after so many tokens, for a server that counts draws from each request anew.

    0 … 2⁶² − 1, another one for each message of a session:

    >>> seed_of_message(Session(0, 1), 20) == seed_of_message(Session(0, 1), 20) != seed_of_message(Session(0, 1), 25)
    True
    """
    key = f"{session.seed}/{session.slot}/{num_tokens}".encode()
    return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "big") % _MOST_SEED


class _LogProb(BaseModel):
    logprob: float


class _LogProbs(BaseModel):
    content: list[_LogProb]


class _Span(BaseModel):
    version: str
    start: int
    end: int


class _Choice(BaseModel):
    token_ids: list[int]
    finish_reason: str
    logprobs: _LogProbs
    weight_versions: list[_Span] | None = None


class _Reply(BaseModel):
    choices: list[_Choice]

    def message(self, max_tokens: int) -> Generated:
        """Return the message.

        Raises:
            ValueError: its parts do not fit together.
        """
        (choice,) = self.choices
        ids, logprobs = choice.token_ids, [each.logprob for each in choice.logprobs.content]
        if choice.finish_reason not in _FINISHES or not len(ids) == len(logprobs) <= max_tokens:
            raise ValueError(
                f"expected up to {max_tokens} tokens with their log-probs, found {len(ids)} and {len(logprobs)}, ended "
                f"by {choice.finish_reason!r}"
            )
        versions = _policy_versions(choice.weight_versions, len(ids))
        return Generated(ids, logprobs, versions, _FINISHES[choice.finish_reason])


def _policy_versions(spans: list[_Span] | None, count: int) -> list[int]:
    if spans is None or all(span.version == "default" for span in spans):
        return [0] * count  # weights without a version
    versions = [int(span.version) for span in spans for _ in range(span.start, span.end)]
    if len(versions) != count:
        raise ValueError(f"expected the weights of {count} tokens, found those of {len(versions)}")
    return versions


def _error_message(body: bytes) -> str:
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return body[:200].decode("utf-8", "replace") or "no message"
