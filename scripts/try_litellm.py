"""What LiteLLM makes of `astra serve`, unchanged: a reply, a stream, many at once, a history with calls, an error.

    python3.11 -m venv /path/to/litellm && /path/to/litellm/bin/pip install 'litellm>=1.80.15,<1.82.7'
    astra serve CHECKPOINT --port 8000 --served-model-name tiny &
    LITELLM_LOCAL_MODEL_COST_MAP=True /path/to/litellm/bin/python scripts/try_litellm.py http://127.0.0.1:8000/v1

One JSON line; a fault is a traceback. It imports nothing of ours: LiteLLM has an environment of its own.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

AT_ONCE = 16
ASKED = [{"role": "user", "content": "What is the rent of Amber Falcon?"}]
TOOLS = [{"type": "function", "function": {"name": "get_rent", "parameters": {"type": "object", "properties": {}}}}]
CALL = {"id": "c1", "type": "function", "name": "get_rent", "function": {"name": "get_rent", "arguments": "{}"}}
HISTORY = [
    {"role": "system", "content": "Be brief."},
    {"role": "assistant", "content": "Hello."},
    *ASKED,
    {"role": "assistant", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": "2150"},
]


def main(url: str) -> None:
    """Print what came of each."""
    import litellm

    to_us: dict[str, Any] = {
        "model": "openai/tiny",
        "api_base": url,
        "api_key": "none",
        "num_retries": 0,
        "timeout": 120,
    }
    greedy = {**to_us, "temperature": 0, "max_tokens": 16}
    whole = litellm.completion(messages=ASKED, tools=TOOLS, tool_choice="auto", seed=1, **greedy)
    chunks = list(litellm.completion(messages=ASKED, tools=TOOLS, tool_choice="auto", seed=1, stream=True, **greedy))
    streamed = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    said = whole.choices[0].message.content or ""
    if streamed != said:
        raise AssertionError(f"a stream said {streamed!r}, a whole reply {said!r}")

    async def together() -> int:
        asked = (litellm.acompletion(messages=ASKED, max_tokens=8, **to_us) for _ in range(AT_ONCE))
        return len(await asyncio.gather(*asked))

    found = {
        "finish": whole.choices[0].finish_reason,
        "tokens": whole.usage.total_tokens,
        "at_once": asyncio.run(together()),
    }
    found["history"] = litellm.completion(messages=HISTORY, tools=TOOLS, **greedy).choices[0].finish_reason
    try:
        litellm.completion(messages=ASKED, **{**to_us, "max_tokens": 10**6})
    except litellm.BadRequestError as error:
        found["too_long"] = type(error).__name__
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
