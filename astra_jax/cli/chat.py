"""`astra chat`: talk to a policy in the terminal, with the tools of an environment, which run in the sandbox."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
from collections.abc import Sequence
from typing import Final

from astra_jax.chat.format import Segment, Source, generation_prompt, segments, user_segment
from astra_jax.chat.tool_calls import parse_turn
from astra_jax.cli.surroundings import sandbox_for
from astra_jax.config import ConfigError
from astra_jax.engine.decoder import PagedDecoder
from astra_jax.engine.interface import DecoderError, Sampling, Session
from astra_jax.episodes.episode import Episode
from astra_jax.episodes.ledger import TokenLedger
from astra_jax.serve.policy import ServedPolicy, served_policy
from sandbox.client import AsyncSandboxClient
from synthesis.record_io import RecordSource
from synthesis.records import Environment, Message

_CALLS_IN_A_ROW: Final = 8
"""Messages with calls after which the policy has to wait for the user."""
_HELP: Final = "/question asks the environment's question, /new begins anew, /quit or Ctrl-D ends"


def chat(options: argparse.Namespace) -> None:
    """Talk until the input ends.

    Raises:
        ConfigError: there is no environment of that number.
    """
    environment = None if options.environment is None else _environment(options)
    policy = served_policy(options.checkpoint, most_tokens=options.max_model_len, rows=1, dtype=options.dtype)
    with contextlib.nullcontext("") if environment is None else sandbox_for(options) as url:
        stack = contextlib.AsyncExitStack()
        with asyncio.Runner() as runner:
            try:
                talk = runner.run(_begun(stack, policy, environment, url, options))
                _talk(runner, talk, environment, policy.names[0])
            finally:
                runner.run(stack.aclose())


def _talk(runner: asyncio.Runner, talk: _Talk, environment: Environment | None, name: str) -> None:
    print(f"{name}: {len(talk.tools)} tools; {_HELP}")
    for tool in talk.tools:
        print(f"  {tool.document.name}: {tool.document.description}")
    while (text := _asked()) not in (None, "/quit"):  # outside of the event loop, so that Ctrl-C ends it
        if text == "/new":
            talk.begin()
        elif text == "/question" and environment is not None:
            print(environment.question)
            runner.run(talk.say(environment.question))
        elif text.startswith("/"):
            print(_HELP)
        elif text:
            runner.run(talk.say(text))


def _environment(options: argparse.Namespace) -> Environment:
    environments = RecordSource(options.environment, Environment)
    if options.number >= len(environments):
        raise ConfigError(
            f"--number {options.number}: {options.environment} has environments 0 to {len(environments) - 1}"
        )
    return environments[options.number]


async def _begun(
    stack: contextlib.AsyncExitStack,
    policy: ServedPolicy,
    environment: Environment | None,
    url: str,
    options: argparse.Namespace,
) -> _Talk:
    decoder = policy.decoder()
    stack.push_async_callback(decoder.close)
    sandbox = None if environment is None else await stack.enter_async_context(AsyncSandboxClient(url))
    return _Talk(policy, decoder, environment, sandbox, options)


def _asked() -> str | None:
    """Return the next line of the user; None at the end of the input."""
    try:
        return input("\nyou> ").strip()
    except EOFError:
        print()
        return None


class _Talk:
    """One conversation: its tokens, and the state of its tools."""

    def __init__(
        self,
        policy: ServedPolicy,
        decoder: PagedDecoder,
        environment: Environment | None,
        sandbox: AsyncSandboxClient | None,
        options: argparse.Namespace,
    ):
        self._policy, self._decoder, self._environment, self._sandbox = policy, decoder, environment, sandbox
        self._options = options
        self.tools = [] if environment is None else environment.tools
        self._session = Session(seed=options.seed, slot=0)
        self.begin()

    def begin(self) -> None:
        """Forget what was said."""
        self._ids: list[int] = []
        self._was_tool = False
        self._decoder.forget(self._session)
        if self._environment is not None:
            state = self._environment.state
            self._episode = Episode(self._environment, self.tools, TokenLedger(), state)

    async def say(self, text: str) -> None:
        """Answer the user, after as many calls of tools as the policy makes."""
        if self._ids:
            # The template has a line end after an assistant's message, and tools' responses end with one.
            line = [] if self._was_tool else [Segment("\n", Source.TEMPLATE)]
            self._add([*line, user_segment(text)])
        else:
            self._add([*segments([Message(role="user", content=text)], [tool.document for tool in self.tools])])
        for _ in range(_CALLS_IN_A_ROW):
            self._add([Segment(generation_prompt(enable_thinking=not self._options.no_thinking), Source.TEMPLATE)])
            self._was_tool, said = False, await self._message()
            if said is None or not parse_turn(said).tool_calls or self._sandbox is None:
                return
            before = len(self._episode.outcomes)
            self._episode.num_turns += 1
            self._was_tool = True
            self._add((await self._episode.take_turn(said, self._sandbox))[:-1])  # without the next message's head
            for outcome in self._episode.outcomes[before:]:
                print(f"  {outcome.name or 'a call that is none'} -> {outcome.response}")
        print(f"(it has called tools in {_CALLS_IN_A_ROW} messages in a row; say how to go on)")

    async def _message(self) -> str | None:
        """Print a message while it is sampled, and return it; None if it was cut off."""
        shown = ""
        ids: list[int] = []

        def told(new: Sequence[int], _: Sequence[float]) -> None:
            nonlocal shown
            ids.extend(each for each in new if each not in self._policy.end_ids)
            text = self._policy.policy.tokenizer.decode(ids)
            if not text.endswith("\ufffd"):  # half a letter
                print(text[len(shown) :], end="", flush=True)
                shown = text

        room = self._policy.limits.max_tokens - len(self._ids)
        sampling = Sampling(min(self._options.max_tokens, room), temperature=self._options.temperature)
        try:
            message = await self._decoder.generate(self._ids, sampling, self._session, told)
        except DecoderError as error:
            print(f"{error}; /new begins anew", file=sys.stderr)
            return None
        print()
        self._ids += message.ids
        if message.finish != "end":
            print(f"(cut off after {len(message.ids)} tokens; --max-tokens allows more)")
            self._add([Segment("<|im_end|>", Source.TEMPLATE)])
            return None
        return self._policy.policy.tokenizer.decode(message.ids)

    def _add(self, shown: Sequence[Segment]) -> None:
        self._ids += self._policy.policy.tokenizer.encode_segments(shown).ids.tolist()
