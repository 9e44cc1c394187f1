"""`astra serve`: the command line of the server."""

from __future__ import annotations

import argparse
from pathlib import Path

from astra_jax.cli.arguments import Commands, whole_number


def add_serve(commands: Commands) -> None:
    """Add the command."""
    serve = commands.add_parser(
        "serve",
        help="serve a policy over HTTP: chats, texts and token ids",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Serves a policy folder or a HuggingFace folder until Ctrl-C or SIGTERM. Every program is compiled "
        "before it takes requests and prints its URL, so that no request waits for a compiler.",
        epilog="""for example:
  astra serve runs/quickstart/rl/policy --port 8000
  curl http://127.0.0.1:8000/v1/chat/completions -H 'Content-Type: application/json' -d '{
    "messages": [{"role": "user", "content": "What is the rent of apartment Amber Falcon?"}],
    "tools": [{"type": "function", "function": {
      "name": "get_apartment_rent", "description": "Rent of an apartment",
      "parameters": {"type": "object", "properties": {"apartment": {"type": "string"}}, "required": ["apartment"]}}}],
    "max_tokens": 64, "temperature": 0}'
The reply calls get_apartment_rent with {"apartment": "Amber Falcon"}. The client runs the call, and sends its result
back as a message of the role "tool".

  POST /v1/chat/completions            as OpenAI's: tools, parallel calls, streams, reasoning_content, logprobs, n, seed
  POST /v1/completions                 text or token ids in, text out, no template
  POST /inference/v1/generate          token ids in, ids and log-probs out, in the fields of vLLM's endpoint
  POST /inference/v1/abort_requests    {"request_ids": [...]}: ends messages that are being sampled
  GET  /v1/models, /metrics            the served names; counts for Prometheus
  GET  /health                         whether requests are taken; the one path that needs no key

Requests of web pages are refused (403): those with an Origin header and, if there is no key, those whose Host is
neither an address nor localhost. Temperatures are from 0 to 100, penalties are refused.
A history that is sent again is not computed again; usage says how many of its tokens were found in the cache. A field
that would change a reply and is not supported (forced calls, forced forms, top_logprobs) is a 400 that names it.""",
    )
    serve.add_argument("checkpoint", type=Path, metavar="CHECKPOINT", help="a policy folder or a HuggingFace folder")
    serve.add_argument("--host", default="127.0.0.1", help="address to listen on (a public one needs a key)")
    serve.add_argument("--port", type=whole_number(0, 65535), default=8000, help="0 for any free one")
    serve.add_argument(
        "--served-model-name",
        type=_names,
        default=(),
        metavar="A,B",
        help="names of the model; default: the last part of the folder's path",
    )
    serve.add_argument(
        "--api-key-env",
        default="ASTRA_SERVE_KEY",
        metavar="NAME",
        help="environment variable with the key that clients must send as a bearer token; empty: no key is needed",
    )
    serve.add_argument(
        "--max-model-len",
        type=whole_number(4),
        metavar="N",
        help="longest sequence, prompt and message together; default: the model's context, but at most 8192; the cache "
        "has room for --rows sequences of this length",
    )
    serve.add_argument(
        "--rows", type=whole_number(1), default=16, metavar="N", help="messages sampled at the same time"
    )
    serve.add_argument(
        "--default-max-tokens",
        type=whole_number(1),
        metavar="N",
        help="longest message of a request that names no length; default: all tokens that fit",
    )
    serve.add_argument(
        "--max-tokens-floor",
        type=whole_number(0),
        default=0,
        metavar="N",
        help="raise shorter lengths in requests to N, if it fits: some harnesses cut a thinking model off at 1000",
    )
    serve.add_argument(
        "--reasoning-parser",
        choices=["qwen3", "none"],
        default="qwen3",
        help="qwen3: thoughts have their own field, reasoning_content; none: they stay in the content with their tags",
    )
    serve.add_argument(
        "--reload",
        type=whole_number(1),
        metavar="SECONDS",
        help="look for new weights in CHECKPOINT, such as a training run's OUT/best, at this interval",
    )
    serve.add_argument(
        "--max-waiting",
        type=whole_number(1),
        default=1024,
        metavar="N",
        help="requests without a reply at which further ones get a 429",
    )
    serve.add_argument(
        "--grace-seconds",
        type=whole_number(0),
        default=30,
        metavar="N",
        help="time for unfinished messages when the server stops",
    )
    serve.add_argument(
        "--dtype", choices=["float32", "bfloat16"], help="type of weights and matrix products; default: as stored"
    )
    serve.add_argument("--until-stdin-closes", action="store_true", help=argparse.SUPPRESS)
    serve.set_defaults(run=_serve, patience_seconds=None)  # the server has a rule of its own


def _names(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    if not all(names):
        raise argparse.ArgumentTypeError(f"expected names with commas between them, found {text!r}")
    return names


def _serve(options: argparse.Namespace) -> None:
    from astra_jax.cli.compile_cache import keep_compiled_programs
    from astra_jax.serve.policy import served_policy
    from astra_jax.serve.server import serve
    from astra_jax.serve.service import ServingOptions

    keep_compiled_programs()
    serve(
        options.checkpoint,
        lambda: served_policy(
            options.checkpoint,
            names=options.served_model_name,
            most_tokens=options.max_model_len,
            rows=options.rows,
            dtype=options.dtype,
        ),
        ServingOptions(
            most_waiting=options.max_waiting,
            default_max_tokens=options.default_max_tokens,
            max_tokens_floor=options.max_tokens_floor,
            grace_seconds=options.grace_seconds,
            splits_thoughts=options.reasoning_parser == "qwen3",
            reload_seconds=options.reload,
            until_stdin_closes=options.until_stdin_closes,
        ),
        host=options.host,
        port=options.port,
        key_variable=options.api_key_env,
    )
