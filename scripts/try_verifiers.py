"""What the clients of Prime's `verifiers` make of `astra serve`, unchanged: text by one, token ids by the other.

    python3.11 -m venv /path/to/verifiers && /path/to/verifiers/bin/pip install 'verifiers==0.4.0'
    astra convert orbax-to-hf POLICY HF        # its renderer reads a tokenizer from a HuggingFace folder
    astra serve POLICY --port 8000 --served-model-name tiny &
    /path/to/verifiers/bin/python scripts/try_verifiers.py http://127.0.0.1:8000/v1 HF

One JSON line; a fault is a traceback. It imports nothing of ours: `verifiers` has an environment of its own.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

AT_ONCE = 16
ASKED = [{"role": "user", "content": "What is the rent of Amber Falcon?"}]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_rent",
            "description": "The rent of a flat.",
            "parameters": {"type": "object", "properties": {"flat": {"type": "string"}}, "required": ["flat"]},
        },
    }
]


async def main(url: str, tokenizer: str) -> None:
    """Print what came of each."""
    from verifiers.v1.clients.client import resolve_client
    from verifiers.v1.configs.client import EvalClientConfig, TrainClientConfig
    from verifiers.v1.dialects import ChatDialect
    from verifiers.v1.types import SamplingConfig

    chat = ChatDialect()
    body: dict[str, Any] = {"model": "tiny", "messages": ASKED, "tools": TOOLS, "temperature": 0, "max_tokens": 32}
    greedy = SamplingConfig(temperature=0.0, max_tokens=32)
    found: dict[str, Any] = {}

    by_text = resolve_client(EvalClientConfig(base_url=url, api_key_var="NO_SUCH_KEY"))
    reply = await by_text.get_response(chat, body, greedy, session_id="s")
    found["text"] = {"finish": reply.finish_reason, "tokens": reply.usage.total_tokens}
    streamed = await by_text.relay(chat, {**body, "stream": True})
    found["events"] = sum([1 async for _ in streamed.chunks])
    await streamed.close()
    await by_text.close()

    ids = resolve_client(
        TrainClientConfig(
            base_url=url, api_key_var="NO_SUCH_KEY", renderer_model_name=tokenizer, renderer={"name": "qwen3"}
        )
    )
    by_ids = await ids.get_response(chat, body, greedy, session_id="s")
    tokens = by_ids.tokens
    if len(tokens.completion_ids) != len(tokens.completion_logprobs):
        raise AssertionError("expected a log-prob of each token")
    if (by_ids.message.content or "") != (reply.message.content or ""):
        raise AssertionError(f"by ids {by_ids.message.content!r} was said, by text {reply.message.content!r}")
    found["ids"] = {"finish": by_ids.finish_reason, "tokens": by_ids.usage.total_tokens}
    # A rollout's second turn says from where a mixture's experts would be told.
    as_second = greedy.model_copy(update={"routed_experts_prompt_start": len(tokens.prompt_ids) - 1})
    found["as_second_turn"] = (await ids.get_response(chat, body, as_second)).finish_reason
    sampled = SamplingConfig(temperature=1.0, max_tokens=16, top_p=0.9, seed=1, presence_penalty=0.5)
    together = await asyncio.gather(*(ids.get_response(chat, body, sampled) for _ in range(AT_ONCE)))
    found["at_once"] = len(together)
    found["alike"] = len({tuple(each.tokens.completion_ids) for each in together}) == 1
    await ids.close()
    print(json.dumps(found))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
