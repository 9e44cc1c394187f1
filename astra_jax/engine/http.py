"""A decoder behind a process boundary: messages are asked for at `POST /inference/v1/generate`.

`astra serve` answers there, and so does vLLM (whose log-probs are those sampled from with
`--logprobs-mode processed_logprobs` alone). It takes no weights, so that nothing can learn from what it samples.

A request carries its seed, so that sending it twice does no harm where the server replays: what is lost, cut short or
refused for now is sent again until the deadline.
"""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import json
import os
import random
import re
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NoReturn

import aiohttp
import httpx
from pydantic import BaseModel, ValidationError

from astra_jax.engine.interface import (
    PENALTIES,
    Capabilities,
    DecoderError,
    Finish,
    Generated,
    Load,
    Sampling,
    Session,
    Told,
)

KEY_VARIABLE: Final = "ASTRA_SERVE_KEY"
_MOST_SEED: Final = 2**62
_MOST_BACKOFF_SECONDS: Final = 5.0
_CONNECT_SECONDS: Final = 10.0
_FIRST_CONTACT_SECONDS: Final = 5.0
_FINISHES: Final[dict[str, Finish]] = {"stop": "end", "length": "length", "abort": "aborted"}


def key_or_none(variable: str) -> str | None:
    """Return the key in an environment variable, without blanks around it; None where there is none.

    Raises:
        DecoderError: it cannot travel in a header.
    """
    key = os.environ.get(variable, "").strip()
    if key and not re.fullmatch(r"[!-~]+", key):
        raise DecoderError(f"expected a key of visible ASCII characters in {variable}, found another (not shown)")
    return key or None


@dataclass(frozen=True)
class Endpoint:
    """Who answers at a URL."""

    url: str
    model: str
    most_tokens: int
    """Of a sequence."""
    replays: bool
    """Whether it says that a request's seed decides every draw."""
    policy: str | None
    """Digest of the policy folder that it serves, if it says so."""
    key_variable: str = KEY_VARIABLE


class _Model(BaseModel):
    id: str
    max_model_len: int
    replays: bool = False
    policy: str | None = None


def first_contact(url: str, *, key_variable: str = KEY_VARIABLE) -> Endpoint:
    """Ask who answers at a URL; the first of its models is the one that will be asked.

    Raises:
        DecoderError: nobody does, or somebody else.
    """
    url, deadline = url.rstrip("/"), time.monotonic() + _FIRST_CONTACT_SECONDS
    with httpx.Client(trust_env=False, timeout=_FIRST_CONTACT_SECONDS, headers=_headers(key_variable)) as http:
        while True:
            try:
                response = http.get(f"{url}/v1/models")
                break
            except httpx.TransportError as error:
                if time.monotonic() > deadline:
                    why = str(error) or type(error).__name__
                    raise DecoderError(f"nobody serves a policy at {url}: {why}; `astra serve` does") from None
                time.sleep(0.25)
    if response.status_code == 401:
        raise _not_let_in(url, key_variable)
    try:
        models = [_Model.model_validate(each) for each in response.json()["data"]]
        served = models[0]
    except (ValueError, LookupError, TypeError):
        raise DecoderError(
            f"expected a list of models at {url}/v1/models, found HTTP {response.status_code} from something else"
        ) from None
    return Endpoint(url, served.id, served.max_model_len, served.replays, served.policy, key_variable)


@dataclass
class _Message:
    """A message that somebody waits for."""

    asking: asyncio.Task[Generated] | None = None
    is_sent: bool = False
    request_id: str = ""
    """Of the last attempt."""
    is_aborted: bool = False


@dataclass
class _Lost(Exception):
    """An attempt has no whole reply; the next one may have."""

    why: str
    retry_after_seconds: float = 0.0


class HTTPDecoder:
    """A `Decoder` that asks an endpoint.

    Each message is a request of its own; that the server has seen its history before, it finds out itself. Of its
    `load` it knows what passes through its own hands: the rest is 0.

    Args:
      end_ids: what ends a message, whatever else the server takes for an end.
      deadline_seconds: the most that one message may take, with waiting and all attempts.
    """

    def __init__(self, endpoint: Endpoint, *, end_ids: tuple[int, ...], deadline_seconds: float = 1800.0):
        self._endpoint, self._end_ids, self._deadline_seconds = endpoint, end_ids, deadline_seconds
        self._headers = _headers(endpoint.key_variable)
        self._messages: dict[Session, _Message] = {}
        self._first_tokens: dict[Session, int] = {}
        """How many tokens each session's first call had: draws are counted from there."""
        self._aborts: set[asyncio.Task[None]] = set()
        self._opened: aiohttp.ClientSession | None = None
        self._sampled_tokens = 0
        self._is_closed = False

    @property
    def capabilities(self) -> Capabilities:
        """What it can do."""
        return Capabilities(takes_weights=False, replays=self._endpoint.replays, tells_raw_and_kept=False)

    @property
    def load(self) -> Load:
        """How busy it is."""
        return Load(
            sessions=len(self._first_tokens),
            waiting=len(self._messages),
            free_pages=0,
            row_steps=0,
            sampled_tokens=self._sampled_tokens,
            read_tokens=0,
            programs=0,
        )

    async def generate(
        self, ids: Sequence[int], sampling: Sampling, session: Session, told: Told | None = None
    ) -> Generated:
        """Sample the message that follows `ids`, all tokens of the session so far; `told` hears of it as a whole.

        Raises:
            DecoderError: the server refuses it, or gave no answer before the deadline; or the session is asked for two
                messages at once.
        """
        if session in self._messages:
            raise DecoderError(f"expected one message at a time, found two of seed {session.seed} slot {session.slot}")
        message = self._messages[session] = _Message()
        first_tokens = min(self._first_tokens.get(session, len(ids)), len(ids))
        document = self._document(ids, sampling, session, first_tokens)
        try:
            while not message.is_aborted:
                asking = message.asking = asyncio.ensure_future(self._ask(document, message))
                try:
                    await asyncio.wait([asking])
                except asyncio.CancelledError:  # nobody waits for it any more
                    asking.cancel()
                    await asyncio.gather(asking, return_exceptions=True)
                    raise
                if not asking.cancelled():
                    generated = asking.result()
                    self._first_tokens[session] = first_tokens  # what is refused is no call
                    if told is not None and generated.ids:
                        told(generated.ids, generated.logprobs)
                    return generated
                message.is_sent = False  # it was taken back, by `abort` or `close`
                if self._is_closed:
                    raise DecoderError("expected no message under way when a decoder is closed, found one")
            return Generated([], [], [], "aborted")
        finally:
            del self._messages[session]

    def abort(self, session: Session) -> None:
        """End the session's message where it stands: its `generate` returns what the server had."""
        message = self._messages.get(session)
        if message is None or message.is_aborted:
            return
        message.is_aborted = True
        assert message.asking is not None
        if message.is_sent:
            abort = asyncio.ensure_future(self._abort(message, message.asking))
            self._aborts.add(abort)
            abort.add_done_callback(self._aborts.discard)
        else:
            message.asking.cancel()

    def forget(self, session: Session) -> None:
        """Let go of the session; the server has done so already.

        Raises:
            DecoderError: a message of it is under way.
        """
        if session in self._messages:
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
            "evaluated through it, but none can learn from what it samples"
        )

    async def until_failed(self) -> NoReturn:
        """Wait: whoever makes a request is told what fails of it."""
        while True:
            await asyncio.Event().wait()

    async def close(self, *, failed: bool = False) -> None:
        """Close the connections; no message may be under way that somebody waits for."""
        self._is_closed = True
        for task in (*self._aborts, *(message.asking for message in self._messages.values() if message.asking)):
            task.cancel()
        await asyncio.gather(*self._aborts, return_exceptions=True)
        if self._opened is not None:
            await self._opened.close()

    # --- one message ---

    def _document(self, ids: Sequence[int], sampling: Sampling, session: Session, first_tokens: int) -> dict[str, Any]:
        replays, params = self._endpoint.replays, dataclasses.asdict(sampling)
        stop_ids = params.pop("stop_ids")
        if not sampling.is_penalized:  # some servers know none
            for name in PENALTIES:
                del params[name]
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
        if replays:  # ours: it draws what a decoder in this process would
            document["draws_from"] = first_tokens
        if session.salt:
            document["cache_salt"] = session.salt
        return document

    async def _ask(self, document: dict[str, Any], message: _Message) -> Generated:
        message.is_sent = True
        why = ["no reply yet"]  # a list, which outlives the attempts that have written their reason there
        try:
            async with asyncio.timeout(self._deadline_seconds):
                generated = await self._attempts(document, message, why)
        except TimeoutError:
            raise DecoderError(
                f"no answer from the server at {self._endpoint.url} in {self._deadline_seconds:g} s: {why[0]}"
            ) from None
        self._sampled_tokens += len(generated.ids)
        return generated

    async def _attempts(self, document: dict[str, Any], message: _Message, why: list[str]) -> Generated:
        attempt = 0
        while True:
            message.request_id = secrets.token_hex(16)
            try:
                status, headers, body = await self._post("generate", document | {"request_id": message.request_id})
                generated = self._generated(status, headers, body, document["sampling_params"]["max_tokens"])
                if generated.finish != "aborted" or message.is_aborted:
                    return generated
                raise _Lost("the server ended the message")
            except aiohttp.ClientConnectorError as error:
                lost = _Lost(f"{type(error).__name__}: {error.os_error}")
            except (aiohttp.ClientError, ConnectionError) as error:
                lost = _Lost(f"{type(error).__name__}: {error}")
            except _Lost as error:
                lost = error
            if message.is_aborted:
                return Generated([], [], [], "aborted")
            why[0] = " ".join(lost.why.split())
            backoff = min(_MOST_BACKOFF_SECONDS, 0.05 * 2**attempt)
            await asyncio.sleep(max(backoff, lost.retry_after_seconds) * (0.5 + random.random()))
            attempt += 1

    async def _post(self, what: str, document: dict[str, Any]) -> tuple[int, Any, bytes]:
        if self._opened is None:  # by the first call: it belongs to the event loop that runs then
            self._opened = aiohttp.ClientSession(
                headers=self._headers,
                connector=aiohttp.TCPConnector(limit=0),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS),
                cookie_jar=aiohttp.DummyCookieJar(),
                trust_env=False,  # no proxy and no .netrc: the key is for this server alone, as are its redirects
            )
        url, body = f"{self._endpoint.url}/inference/v1/{what}", json.dumps(document).encode()
        async with self._opened.post(url, data=body, allow_redirects=False) as response:
            return response.status, response.headers, await response.read()

    def _generated(self, status: int, headers: Any, body: bytes, max_tokens: int) -> Generated:
        url = self._endpoint.url
        if status == 401:
            raise _not_let_in(url, self._endpoint.key_variable)
        if status in (408, 429) or status >= 500:
            retry_after = headers.get("retry-after", "")
            raise _Lost(f"HTTP {status}: {_error_message(body)}", float(retry_after) if retry_after.isdigit() else 0.0)
        if status != 200:
            raise DecoderError(f"the server at {url} refuses the request: HTTP {status}: {_error_message(body)}")
        try:
            return _Reply.model_validate_json(body).message(max_tokens)
        except (ValidationError, LookupError, ValueError) as error:
            why = error.errors()[0]["msg"] if isinstance(error, ValidationError) else error
            raise DecoderError(f"the reply of the server at {url} is not one of this protocol: {why}") from None

    async def _abort(self, message: _Message, asking: asyncio.Task[Generated]) -> None:
        """Ask the server until the message has ended: the first time it may not have come there yet."""
        pause_seconds = 0.05
        while not asking.done():
            try:
                status, _, _ = await self._post(
                    "abort_requests", {"request_ids": [f"generate-tokens-{message.request_id}"]}
                )
            except (aiohttp.ClientError, ConnectionError):
                status = 0
            if status != 200:  # a server that ends no messages is not waited for
                asking.cancel()
            await asyncio.wait([asking], timeout=pause_seconds)
            pause_seconds *= 2


def seed_of_message(session: Session, num_tokens: int) -> int:
    """Return a seed for the message after so many tokens, where a server counts draws from each request anew.

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
        return [0] * count  # weights that nobody has given a version
    versions = [int(span.version) for span in spans for _ in range(span.start, span.end)]
    if len(versions) != count:
        raise ValueError(f"expected the weights of {count} tokens, found those of {len(versions)}")
    return versions


def _headers(key_variable: str) -> dict[str, str]:
    key = key_or_none(key_variable)
    return {"content-type": "application/json"} | ({"authorization": f"Bearer {key}"} if key else {})


def _not_let_in(url: str, key_variable: str) -> DecoderError:
    return DecoderError(f"the server at {url} wants another key (HTTP 401): set {key_variable} to its own")


def _error_message(body: bytes) -> str:
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return body[:200].decode("utf-8", "replace") or "no message"
