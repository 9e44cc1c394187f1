"""`astra serve` under load, on this CPU: one JSON line a figure.

    python scripts/bench_serve.py [FIGURE …] [--layers-of qwen3-14b]

A Qwen3 with random weights (hidden 256, 4 layers, vocabulary 2,304 or as its tokenizer has it) is served by a process
of its own, `astra serve`; its clients run in this one. With `--layers-of` it has two layers of a released Qwen3,
which shows how a figure depends on the sizes.

    clients        tokens per second of one client after another, and of 64 at once: 64 messages of 96 tokens
    conversation   20 turns, whose prompt grows to 4,000 tokens: computed tokens over new tokens, and the time to the
                   first token in the last turn and in the first
    overhead       32 streams of 256 tokens: time per token over HTTP, and by the decoder in this process for the same
                   messages; both of the wall clock and of the server's processor time
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
from peers.qwen3 import Shape, our_config

from astra_jax.checkpoints.policy import Policy, save_policy
from astra_jax.engine.interface import Sampling, Session
from astra_jax.model.config import QWEN3_PRESETS
from astra_jax.model.qwen3 import init_params
from astra_jax.serve.policy import served_policy
from astra_jax.testing import tiny_tokenizer

MESSAGE_TOKENS, PROMPT_TOKENS, CLIENTS, STREAMS = 96, 64, 64, 32
CHATS, TURNS, GROWN_TO = 3, 20, 4000
STREAM_TOKENS, ATTEMPTS = 256, 6
ROWS, MOST_TOKENS = 64, 4608


@dataclass
class Server:
    """A server that is up."""

    url: str
    folder: Path
    process: subprocess.Popen[str]


@contextmanager
def serving(layers_of: str | None) -> Iterator[Server]:
    """Serve a policy with random weights."""
    with tempfile.TemporaryDirectory() as directory:
        folder, tokenizer = Path(directory) / "policy", tiny_tokenizer()
        small = our_config(Shape(tokenizer.vocab_size, layers=4))
        sizes = {"vocab_size": tokenizer.vocab_size, "num_layers": 2, "tie_word_embeddings": True}
        config = small if layers_of is None else QWEN3_PRESETS[layers_of].model_copy(update=sizes)
        config = config.model_copy(update={"max_position_embeddings": 8192})
        save_policy(Policy(config, init_params(config, seed=0), tokenizer), folder)
        command = [sys.executable, "-m", "astra_jax.cli", "serve", str(folder), "--port", "0", "--rows", str(ROWS)]
        process = subprocess.Popen([*command, "--max-model-len", str(MOST_TOKENS)], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        line = process.stdout.readline()
        assert " on http://" in line, line
        try:
            yield Server(line.split(" on ")[1].split(",")[0], folder, process)
        finally:
            process.terminate()
            process.wait(60)


def prompt(seed: int, vocab_size: int, length: int = PROMPT_TOKENS) -> list[int]:
    """Return random ids, none of which ends a message."""
    return np.random.default_rng(seed).integers(20, vocab_size, length).tolist()


async def complete(http: aiohttp.ClientSession, ids: list[int]) -> int:
    """Have one message sampled; return how many tokens it has."""
    body = {"token_ids": ids, "sampling_params": {"max_tokens": MESSAGE_TOKENS, "seed": 1}}
    async with http.post("/inference/v1/generate", json=body) as reply:
        document = await reply.json()
        assert reply.status == 200, document
        return int(document["usage"]["completion_tokens"])


async def stream(http: aiohttp.ClientSession, messages: list[dict[str, str]], seed: int) -> int:
    """Have one message sampled as a stream; return how many tokens it has."""
    body = {"messages": messages, "max_tokens": STREAM_TOKENS, "seed": seed, "stream": True}
    body["stream_options"] = {"include_usage": True}
    last = b""
    async with http.post("/v1/chat/completions", json=body) as reply:
        assert reply.status == 200
        async for line in reply.content:
            if line.startswith(b"data: {"):
                last = line
    return int(json.loads(last.removeprefix(b"data: "))["usage"]["completion_tokens"])


async def clients(http: aiohttp.ClientSession, vocab_size: int) -> dict[str, Any]:
    """One after another, and all at once; warm both times."""
    found: dict[str, Any] = {}
    prompts = [prompt(seed, vocab_size) for seed in range(CLIENTS)]
    for name, at_once in (("one", 1), ("all", CLIENTS)):
        limit = asyncio.Semaphore(at_once)

        async def one(ids: list[int], limit: asyncio.Semaphore = limit) -> int:
            async with limit:
                return await complete(http, ids)

        for is_warm in (False, True):
            chosen = prompts if is_warm or at_once > 1 else prompts[:2]
            started = time.perf_counter()
            tokens = sum(await asyncio.gather(*map(one, chosen)))
            found[f"{name}_tokens_per_second"] = round(tokens / (time.perf_counter() - started), 1)
    return {**found, "ratio": round(found["all_tokens_per_second"] / found["one_tokens_per_second"], 2)}


async def conversation(http: aiohttp.ClientSession) -> dict[str, Any]:
    """Chats that send their whole history each time, one after another; the first compiles."""
    chats = [await chat(http, seed) for seed in range(1 + CHATS)][1:]
    first, last = (statistics.median(each.first_token_seconds[turn] for each in chats) for turn in (0, -1))
    return {
        "prompt_tokens_of_last_turn": [each.prompt_tokens for each in chats],
        "computed_over_distinct": round(sum(each.computed for each in chats) / sum(each.distinct for each in chats), 3),
        "first_token_ms_of_turn_1": round(1000 * first, 1),
        "first_token_ms_of_last_turn": round(1000 * last, 1),
        "ratio": round(last / first, 2),
    }


@dataclass
class Chat:
    """The observation of one request."""

    computed: int = 0
    distinct: int = 0
    prompt_tokens: int = 0
    """Tokens of the last turn's prompt."""
    first_token_seconds: list[float] = field(default_factory=list)


async def chat(http: aiohttp.ClientSession, seed: int) -> Chat:
    """Have one of 20 turns."""
    messages: list[dict[str, str]] = []
    words, seen, said, tokenizer = random.Random(seed), Chat(), "", tiny_tokenizer()
    for turn in range(TURNS):
        # The conversation grows by as many tokens each turn, after replies of any length.
        wanted = GROWN_TO * (turn + 1) // TURNS - seen.prompt_tokens - len(tokenizer.encode(said))
        text = ""
        while len(tokenizer.encode(text)) < wanted:
            text += "".join(words.choices("abcdefghij", k=4)) + " "
        messages.append({"role": "user", "content": text})
        body = {"messages": messages, "max_tokens": 24, "temperature": 0, "stream": True, "logprobs": True}
        body["stream_options"] = {"include_usage": True}
        started, first, said, usage = time.perf_counter(), 0.0, "", {}
        async with http.post("/v1/chat/completions", json=body) as reply:
            async for line in reply.content:
                if not line.startswith(b"data: {"):
                    continue
                document = json.loads(line.removeprefix(b"data: "))
                for choice in document["choices"]:
                    said += choice["delta"].get("content") or ""
                    # The first token of random weights is often no text.
                    if choice["logprobs"]["content"] and not first:
                        first = time.perf_counter() - started
                usage = document.get("usage") or usage
        seen.first_token_seconds.append(first)
        seen.computed += usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"]
        # New tokens of a turn: those that the prompt has beyond the prompt before, the reply to it included.
        seen.distinct += usage["prompt_tokens"] - seen.prompt_tokens
        seen.prompt_tokens = usage["prompt_tokens"]
        messages.append({"role": "assistant", "content": said})
    return seen


async def overhead(http: aiohttp.ClientSession, server: Server, vocab_size: int) -> dict[str, Any]:
    """Streams over HTTP and the same messages without it, in turns: the median difference of the pairs."""
    served = served_policy(server.folder, rows=ROWS, most_tokens=MOST_TOKENS)
    assert served.template is not None
    tokenizer = served.policy.tokenizer
    texts = [tokenizer.decode(prompt(1000 + seed, vocab_size)) for seed in range(STREAMS)]
    chats = [[{"role": "user", "content": text}] for text in texts]
    prompts = [tokenizer.encode(served.template.render(messages, [])) for messages in chats]
    decoder = served.decoder()
    wall: dict[str, list[float]] = {"http": [], "decoder": []}
    processor: dict[str, list[float]] = {"http": [], "decoder": []}
    for attempt in range(ATTEMPTS):
        started, spent = time.perf_counter(), processor_seconds(server.process.pid)
        tokens = sum(await asyncio.gather(*(stream(http, messages, attempt) for messages in chats)))
        wall["http"].append((time.perf_counter() - started) / tokens)
        processor["http"].append((processor_seconds(server.process.pid) - spent) / tokens)
        started, spent = time.perf_counter(), time.process_time()
        sessions = [Session(0, attempt, number=100 * attempt + number) for number in range(STREAMS)]
        messages = await asyncio.gather(
            *(
                decoder.generate(ids, Sampling(STREAM_TOKENS), session)
                for ids, session in zip(prompts, sessions, strict=True)
            )
        )
        for session in sessions:
            decoder.forget(session)
        tokens = sum(len(message.ids) for message in messages)
        wall["decoder"].append((time.perf_counter() - started) / tokens)
        processor["decoder"].append((time.process_time() - spent) / tokens)
    await decoder.close()
    found: dict[str, Any] = {}
    for clock, of_clock in (("wall", wall), ("processor", processor)):
        pairs = list(zip(of_clock["http"], of_clock["decoder"], strict=True))[1:]  # the first compiles
        for name, each in of_clock.items():
            found[f"{clock}_{name}_us_per_token"] = round(1e6 * statistics.median(each[1:]), 1)
        found[f"{clock}_ratio"] = round(statistics.median(http / alone for http, alone in pairs), 3)
    return found


def processor_seconds(pid: int) -> float:
    """Return how long a process has computed so far, in itself and for itself."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def measure(server: Server, chosen: list[str]) -> None:
    """Print one line a figure."""
    vocab_size = tiny_tokenizer().vocab_size
    timeout = aiohttp.ClientTimeout(total=600)
    connector = aiohttp.TCPConnector(limit=256)
    async with aiohttp.ClientSession(server.url, timeout=timeout, connector=connector) as http:
        figures = {
            "clients": lambda: clients(http, vocab_size),
            "conversation": lambda: conversation(http),
            "overhead": lambda: overhead(http, server, vocab_size),
        }
        for name in chosen or figures:
            print(json.dumps({"figure": name, **await figures[name]()}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("figures", nargs="*", metavar="FIGURE", help="all of them without one")
    parser.add_argument("--layers-of", choices=QWEN3_PRESETS, help="serve two layers of this Qwen3's sizes")
    options = parser.parse_args()
    with serving(options.layers_of) as server:
        asyncio.run(measure(server, options.figures))


if __name__ == "__main__":
    main()
