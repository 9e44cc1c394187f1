"""BFCL's single-turn cases by a program that reads no meaning: how far words and numbers of a question carry.

    python -m scripts.peers.bfcl_by_rule configs/smollm2_bfcl.toml out=runs/real/bfcl_by_rule

    tool       the one whose name and description share the most words with the question
    arguments  for each required parameter the next number, quoted text, name with a capital or known choice in the
               question, by the parameter's type; a flag is true

It serves this program as a model and runs `astra evaluate bfcl` with the rest of the command line.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

from astra_jax.cli.command import main

_NUMBER = re.compile(r"-?\d+(?:,\d{3})*(?:\.\d+)?")
_TEXT = re.compile(r"'([^']+)'|\"([^\"]+)\"|((?:[A-Z][\w.]*)(?:[ ,]+[A-Z][\w.]*)*)")


def call(question: str, tools: list[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the call that a question's words name.

    >>> area = {"type": "object", "properties": {"base": {"type": "integer"}}, "required": ["base"]}
    >>> call("Find the area of base 10.", [{"name": "area", "description": "An area", "parameters": area}])
    {'name': 'area', 'arguments': {'base': 10}}
    """
    words = _words(question)
    tool = max(tools, key=lambda each: len(words & _words(f"{each['name']} {each.get('description', '')}")))
    schema = tool["parameters"]
    numbers = [float(each.replace(",", "")) for each in _NUMBER.findall(question)]
    first_word_left_out = question.partition(" ")[2]
    texts = iter([next(filter(None, found)) for found in _TEXT.findall(first_word_left_out)])
    values = iter(numbers)
    found = {name: _value(schema["properties"][name], question, values, texts) for name in schema.get("required", ())}
    return {"name": tool["name"], "arguments": {name: value for name, value in found.items() if value is not None}}


def _words(text: str) -> set[str]:
    return {word.rstrip("s") for word in re.findall(r"[a-z]{3,}", text.lower())}


def _value(schema: Mapping[str, Any], question: str, numbers: Iterator[float], texts: Iterator[str]) -> Any:
    if choices := schema.get("enum"):
        return next((each for each in choices if str(each).lower() in question.lower()), choices[0])
    match schema.get("type"):
        case "integer" | "number" | "float":
            number = next(numbers, None)
            return int(number) if number is not None and number.is_integer() else number
        case "boolean":
            return True
        case "array":
            is_of_numbers = schema.get("items", {}).get("type") in ("integer", "number", "float")
            return [int(each) if each.is_integer() else each for each in numbers] if is_of_numbers else list(texts)
        case _:
            return next(texts, None)


class _Server(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self._answer({"data": [{"id": "by-rule", "max_model_len": 2048, "policy": None}]})

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        (question,) = [each["content"] for each in asked["messages"] if each["role"] == "user"]
        made = call(question, [tool["function"] for tool in asked["tools"]])
        function = {"name": made["name"], "arguments": json.dumps(made["arguments"])}
        message = {"role": "assistant", "content": None, "tool_calls": [{"id": "call", "type": "function"}]}
        message["tool_calls"][0]["function"] = function
        usage = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
        choice = {"index": 0, "message": message, "finish_reason": "tool_calls"}
        self._answer({"id": "by-rule", "object": "chat.completion", "created": 0, "model": "by-rule"}
                     | {"choices": [choice], "usage": usage})  # fmt: skip

    def _answer(self, body: Mapping[str, Any]) -> None:
        sent = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(sent)))
        self.end_headers()
        self.wfile.write(sent)

    def log_message(self, *_: object) -> None:
        """Say nothing of requests."""


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Server)
    Thread(target=server.serve_forever, daemon=True).start()
    sys.exit(main(["evaluate", "bfcl", *sys.argv[1:], "--url", f"http://127.0.0.1:{server.server_port}"]))
