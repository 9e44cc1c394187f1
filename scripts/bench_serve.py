"""`astra serve` under load, on this CPU: one JSON line a figure.

    python scripts/bench_serve.py [FIGURE …] [--layers-of qwen3-14b]

A Qwen3 with random weights (hidden 256, 4 layers, vocabulary 2,304 or as its tokenizer has it) is served by a process
of its own, `astra serve`, whose clients are this one. With `--layers-of` it has two layers of a released Qwen3's sizes:
what a figure depends on the model for shows there, as how much of a long prompt's time is attention.

    clients        tokens per second of one client after another, and of 64 at once: 64 messages of 96 tokens
    conversation   20 turns, whose prompt grows to 4,000 tokens: tokens computed over tokens that are new, and how long
                   the first token takes in the last turn and in the first
    overhead       32 streams of 256 tokens: time a token over HTTP, and of the same messages by the decoder in this
                   process; beside the wall clock's, processor time of the server alone, whatever its clients cost
    malformed      10,000 bodies, random or broken: statuses, and whether the server is well afterwards
    stalled        1,000 clients that connect and send half a request, and whether others are answered meanwhile
    hang_ups       200 streams whose client leaves after the first event: rows and pages afterwards
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
from measured_qwen3 import Shape, our_config

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


async def complete(http: aiohttp.ClientSession, ids: list[int], **rest: Any) -> int:
    """Have one text sampled; return how many tokens it has."""
    body = {"prompt": ids, "max_tokens": MESSAGE_TOKENS, "seed": 1, **rest}
    async with http.post("/v1/completions", json=body) as reply:
        document = await reply.json()
        assert reply.status == 200, document
        return int(document["usage"]["completion_tokens"])


async def stream(http: aiohttp.ClientSession, ids: list[int], seed: int) -> int:
    """Have one text sampled as a stream; return how many tokens it has."""
    body = {"prompt": ids, "max_tokens": STREAM_TOKENS, "seed": seed, "stream": True}
    body["stream_options"] = {"include_usage": True}
    last = b""
    async with http.post("/v1/completions", json=body) as reply:
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
    """What was seen of one."""

    computed: int = 0
    distinct: int = 0
    prompt_tokens: int = 0
    """Of its last turn."""
    first_token_seconds: list[float] = field(default_factory=list)


async def chat(http: aiohttp.ClientSession, seed: int) -> Chat:
    """Have one of 20 turns."""
    messages: list[dict[str, str]] = []
    words, seen, said, tokenizer = random.Random(seed), Chat(), "", tiny_tokenizer()
    for turn in range(TURNS):
        # It grows by as much each turn, whatever was said.
        wanted = GROWN_TO * (turn + 1) // TURNS - seen.prompt_tokens - len(tokenizer.encode(said))
        text = ""
        while len(tokenizer.encode(text)) < wanted:
            text += "".join(words.choices("abcdefghij", k=4)) + " "
        messages.append({"role": "user", "content": text})
        body = {"messages": messages, "max_tokens": 24, "temperature": 0, "stream": True, "separate_reasoning": False}
        body["stream_options"] = {"include_usage": True}
        before, said, usage = await first_tokens_seconds(http), "", {}
        async with http.post("/v1/chat/completions", json=body) as reply:
            async for line in reply.content:
                if not line.startswith(b"data: {"):
                    continue
                document = json.loads(line.removeprefix(b"data: "))
                delta = document["choices"][0]["delta"] if document["choices"] else {}
                said += delta.get("content") or ""
                usage = document.get("usage") or usage
        seen.first_token_seconds.append(await first_tokens_seconds(http) - before)
        seen.computed += usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"]
        # What is new in a turn: all that the prompt has beyond the one before, and what was said to that.
        seen.distinct += usage["prompt_tokens"] - seen.prompt_tokens
        seen.prompt_tokens = usage["prompt_tokens"]
        messages.append({"role": "assistant", "content": said})
    return seen


async def first_tokens_seconds(http: aiohttp.ClientSession) -> float:
    """Return how long all requests so far waited for their first token, by the server's own count.

    A client sees text, and of random weights the first token is often no text: then its second call is waited for.
    """
    async with http.get("/metrics") as reply:
        lines = (await reply.text()).splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith("astra_serve_first_token_seconds_sum"))


async def overhead(http: aiohttp.ClientSession, server: Server, vocab_size: int) -> dict[str, Any]:
    """Streams over HTTP, and the same messages without it: in turns, and the median of what each pair differs by."""
    prompts = [prompt(1000 + seed, vocab_size) for seed in range(STREAMS)]
    served = served_policy(server.folder, rows=ROWS, most_tokens=MOST_TOKENS)
    decoder = served.decoder()
    wall: dict[str, list[float]] = {"http": [], "decoder": []}
    processor: dict[str, list[float]] = {"http": [], "decoder": []}
    for attempt in range(ATTEMPTS):
        started, spent = time.perf_counter(), processor_seconds(server.process.pid)
        tokens = sum(await asyncio.gather(*(stream(http, ids, attempt) for ids in prompts)))
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


async def malformed(http: aiohttp.ClientSession, vocab_size: int) -> dict[str, Any]:
    """Bodies that are broken, and such whose fields are anything."""
    rng = random.Random(0)
    anything = [
        None,
        True,
        -1,
        0,
        3.5,
        1e308,
        "",
        "x",
        [],
        {},
        [[]],
        {"role": "user"},
        [{"role": "user", "content": 1}],
        10**30,
    ]
    fields = [
        "messages",
        "prompt",
        "model",
        "tools",
        "n",
        "stop",
        "seed",
        "temperature",
        "max_tokens",
        "stream",
        "logprobs",
    ]
    good = json.dumps({"messages": [{"role": "user", "content": "Hi"}], "prompt": "Hi", "max_tokens": 1})
    statuses: Counter[int] = Counter()
    without_error = 0

    def body(number: int) -> bytes:
        kind = number % 4
        if kind == 0:
            return rng.randbytes(rng.randrange(200))
        if kind == 1:
            return good[: rng.randrange(len(good))].encode()
        document: dict[str, Any] = {name: rng.choice(anything) for name in rng.sample(fields, rng.randrange(1, 6))}
        return json.dumps({"max_tokens": 1, **document}).encode()

    async def send(number: int) -> None:
        nonlocal without_error
        path = ("/v1/chat/completions", "/v1/completions", "/inference/v1/generate")[number % 3]
        async with http.post(path, data=body(number)) as reply:
            statuses[reply.status] += 1
            text = await reply.text()
            if reply.status != 200:
                without_error += "error" not in json.loads(text)

    for first in range(0, 10_000, 50):
        await asyncio.gather(*(send(number) for number in range(first, first + 50)))
    return {
        "statuses": dict(sorted(statuses.items())),
        "without_error": without_error,
        "well": await is_well(http, vocab_size),
    }


async def stalled(http: aiohttp.ClientSession, server: Server, vocab_size: int) -> dict[str, Any]:
    """Clients that send half a request and wait, and one that is served meanwhile."""
    host, port = server.url.removeprefix("http://").split(":")
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{"
    connections = []
    for number in range(1000):
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(head if number % 2 else head[:40])
        connections.append((reader, writer))
    started = time.perf_counter()
    await complete(http, prompt(1, vocab_size))
    meanwhile = time.perf_counter() - started
    started = time.perf_counter()
    ended: Counter[str] = Counter()
    for number, (reader, writer) in enumerate(connections):
        with suppress(OSError):
            try:
                async with asyncio.timeout(max(0.1, 90 - (time.perf_counter() - started))):
                    line = await reader.readline()
                ended["408" if b" 408 " in line else "closed" if not line else line.decode().strip()] += 1
            except TimeoutError:
                ended["open, head incomplete" if number % 2 == 0 else "open"] += 1
        writer.close()
    return {
        "one_served_meanwhile_seconds": round(meanwhile, 2),
        "ended": dict(ended),
        "well": await is_well(http, vocab_size),
    }


async def hang_ups(http: aiohttp.ClientSession) -> dict[str, Any]:
    """Streams that nobody reads to the end."""
    for _ in range(10):

        async def leave() -> None:
            body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2000, "stream": True}
            async with http.post("/v1/chat/completions", json=body) as reply:
                await reply.content.readline()
                reply.close()

        await asyncio.gather(*(leave() for _ in range(20)))
    for _ in range(100):
        load = await health(http)
        if load["requests"] == 0 and load["decoder"]["sessions"] == 0:
            break
        await asyncio.sleep(0.1)
    load = await health(http)
    return {
        "requests": load["requests"],
        "sessions": load["decoder"]["sessions"],
        "free_pages": load["decoder"]["free_pages"],
    }


async def health(http: aiohttp.ClientSession) -> dict[str, Any]:
    """Return what the server says of itself."""
    async with http.get("/health") as reply:
        document: dict[str, Any] = await reply.json()
        return document


async def is_well(http: aiohttp.ClientSession, vocab_size: int) -> bool:
    """Say whether the server still answers."""
    return await complete(http, prompt(2, vocab_size)) > 0


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
            "malformed": lambda: malformed(http, vocab_size),
            "stalled": lambda: stalled(http, server, vocab_size),
            "hang_ups": lambda: hang_ups(http),
        }
        for name in chosen or figures:
            print(json.dumps({"figure": name, **await figures[name]()}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("figures", nargs="*", metavar="FIGURE", help="all of them without one")
    parser.add_argument("--layers-of", choices=QWEN3_PRESETS, help="serve two layers of this Qwen3's sizes")
    options = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    with serving(options.layers_of) as server:
        asyncio.run(measure(server, options.figures))


if __name__ == "__main__":
    main()
