"""`astra serve`: the command line of the server."""

from __future__ import annotations

import argparse
from pathlib import Path

from astra_jax.cli.arguments import Commands, add_devices, whole_number


def add_serve(commands: Commands) -> None:
    """Add the command."""
    serve = commands.add_parser(
        "serve",
        help="serve a policy over HTTP: chats and token ids",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Serves a policy folder or a HuggingFace folder until Ctrl-C or SIGTERM. Every program is compiled "
        "before it takes requests and prints its URL. At the end unfinished messages have 30 s.",
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

  POST /v1/chat/completions     as OpenAI's: tools, parallel calls, streams, reasoning_content, logprobs, n, seed
  POST /inference/v1/generate   token ids in, ids and log-probs out, in the fields of vLLM's endpoint
  GET  /v1/models               the served names
  GET  /health                  the load of the decoder; the one path that needs no key

A sequence is prompt and message together, and the cache has room for --rows of the longest. Beyond 1,024 waiting
requests further ones get a 429. Requests of web pages are refused (403): those with an Origin header and, if there is
no key, those whose Host is neither an address nor localhost.
A history that is sent again is not computed again; usage says how many of its tokens were found in the cache. A field
that would change a reply and is not supported (penalties, forced calls, forced forms) is a 400 that names it.""",
    )
    add = serve.add_argument
    add("checkpoint", type=Path, metavar="CHECKPOINT", help="a policy folder or a HuggingFace folder")
    add("--host", default="127.0.0.1", help="address to listen on (a public one needs a key)")
    add("--port", type=whole_number(0, 65535), default=8000, help="0 for any free one")
    add("--served-model-name", type=_names, default=(), metavar="A,B", help="names of the model; default: the folder's")
    about_key = "variable with the key, a bearer token of clients; empty: no key is needed"
    add("--api-key-env", default="ASTRA_SERVE_KEY", metavar="NAME", help=about_key)
    add("--max-model-len", type=whole_number(4), metavar="N", help="longest sequence; default: the context, up to 8192")
    add("--rows", type=whole_number(1), default=16, metavar="N", help="messages sampled at the same time")
    add("--default-max-tokens", type=whole_number(1), metavar="N", help="longest message if a request names none")
    add_devices(serve)
    add("--until-stdin-closes", action="store_true", help=argparse.SUPPRESS)
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

    keep_compiled_programs()
    serve(
        lambda: served_policy(
            options.checkpoint,
            names=options.served_model_name,
            most_tokens=options.max_model_len,
            rows=options.rows,
            dtype=options.dtype,
            tensor=options.tensor_parallel_size,
        ),
        host=options.host,
        port=options.port,
        key_variable=options.api_key_env,
        default_max_tokens=options.default_max_tokens,
        until_stdin_closes=options.until_stdin_closes,
    )
