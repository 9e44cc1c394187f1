"""An OpenAI-compatible endpoint whose answers, delays and faults the test chooses; without any library."""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from random import Random

FAULTS = ("429", "500", "hang", "cut", "not_json", "wrong_schema", "refusal")


class MockEndpoint:
    """Counts the questions; `answer` makes the reply from the request's body: its text, or fields of its message."""

    refuse: Callable[[dict], tuple[str, object] | None] = staticmethod(lambda body: None)
    """Gives the status line and the body for a request that is not to be answered; a text is sent as it is."""

    def __init__(
        self, answer: Callable[[dict], str | dict], *, latency_seconds=0.0, fault_rate=0.0, faults=FAULTS, seed=0
    ):
        self.answer = answer
        self.prompt_tokens: Callable[[dict], int] = lambda _: 100
        self.latency_seconds, self.fault_rate, self.faults = latency_seconds, fault_rate, faults
        self.rng = Random(seed)
        self.bodies: list[dict] = []
        self.keys: set[str] = set()
        self.injected: Counter[str] = Counter()
        self.in_flight = self.most_in_flight = 0
        self.url = ""

    @asynccontextmanager
    async def serving(self, port: int = 0) -> AsyncIterator[MockEndpoint]:
        self._open: set[asyncio.StreamWriter] = set()
        server = await asyncio.start_server(self._connection, "127.0.0.1", port, backlog=1024)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        try:
            yield self
        finally:
            server.close()
            for writer in list(self._open):
                writer.close()
            await asyncio.sleep(0)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:] if b": " in line)
                body = json.loads(await reader.readexactly(int(fields[b"content-length"])))
                self.keys.add(fields.get(b"authorization", b"").decode())
                self.in_flight += 1
                self.most_in_flight = max(self.in_flight, self.most_in_flight)
                try:
                    if not await self._respond(body, writer):
                        return
                finally:
                    self.in_flight -= 1
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self._open.discard(writer)
            writer.close()

    async def _respond(self, body: dict, writer: asyncio.StreamWriter) -> bool:
        self.bodies.append(body)
        fault = self.rng.choice(self.faults) if self.rng.random() < self.fault_rate else None
        if fault:
            self.injected[fault] += 1
        await asyncio.sleep(self.latency_seconds)
        if (refusal := self.refuse(body)) is not None:
            self._send(writer, *refusal, "Retry-After: 0.01\r\n")
            return True
        message = {"role": "assistant", "content": None, "refusal": None}
        if fault in ("429", "500"):
            self._send(writer, f"{fault} Fault", {"error": {"message": "no"}}, "Retry-After: 0.01\r\n")
            return True
        if fault == "hang":
            await asyncio.sleep(3600)
        if fault == "cut":
            writer.write(
                b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 900\r\n\r\n{"id": "x", "cho'
            )
            return False
        if fault == "refusal":
            message["refusal"] = "I would rather not."
        elif fault == "not_json":
            message["content"] = "Sure! Here is your answer: {"
        elif fault == "wrong_schema":
            message["content"] = '{"unexpected": 1}'
        else:
            said = self.answer(body)
            message |= said if isinstance(said, dict) else {"content": said}
        usage = {"prompt_tokens": self.prompt_tokens(body), "completion_tokens": 10}
        if (reasoning_tokens := message.pop("reasoning_tokens", None)) is not None:
            usage["completion_tokens_details"] = {"reasoning_tokens": reasoning_tokens}
        finish_reason = "length" if message.pop("cut", False) else "stop"
        choice = {"index": 0, "message": message, "finish_reason": finish_reason, "logprobs": None}
        completion = {"id": "c", "object": "chat.completion", "created": 0, "model": body["model"], "choices": [choice]}
        self._send(writer, "200 OK", completion | {"usage": usage})
        return True

    @staticmethod
    def _send(writer: asyncio.StreamWriter, status: str, body: object, more: str = "") -> None:
        data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n{more}\r\n"
        writer.write(head.encode() + data)


async def main(port: int, latency_seconds: float) -> None:
    """Serve fixed task scores until killed."""
    scores = json.dumps({"reason": "plain", "clarity": 1, "realism": 1, "tool_necessity": 1})
    async with MockEndpoint(lambda _: scores, latency_seconds=latency_seconds).serving(port) as endpoint:
        print(endpoint.url, flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), float(sys.argv[2])))
