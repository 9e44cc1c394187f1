"""`astra serve`: a policy behind HTTP."""

from __future__ import annotations

import argparse
from pathlib import Path

from astra_jax.cli.arguments import Commands, whole_number


def add_serve(commands: Commands) -> None:
    """Add the command."""
    serve = commands.add_parser(
        "serve",
        help="a policy behind HTTP: token ids in, token ids out",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Serves a policy folder or a HuggingFace folder until Ctrl-C or SIGTERM; prints its URL when it is "
        "ready.",
        epilog="""for example:
  astra serve runs/quickstart/rl/policy --port 8000
  curl http://127.0.0.1:8000/inference/v1/generate -d '{"token_ids": [1, 2, 3],
    "sampling_params": {"max_tokens": 16, "temperature": 0.7, "seed": 0, "logprobs": 0}}'

  GET  /health                         whether requests are taken, and how busy it is
  GET  /v1/models                      what is served, and under which names
  POST /inference/v1/generate          one message, in the fields of vLLM's endpoint of that name
  POST /inference/v1/abort_requests    {"request_ids": [...]}: messages end where they stand

A conversation that comes back with its history is not computed again. The reply names the weights that
sampled each token. A field of the request that is not understood is refused by name.""",
    )
    serve.add_argument("checkpoint", type=Path, metavar="CHECKPOINT", help="a policy folder or a HuggingFace folder")
    serve.add_argument("--host", default="127.0.0.1", help="address to listen on (a public one needs a key)")
    serve.add_argument("--port", type=whole_number(0, 65535), default=8000, help="0 for any free one")
    serve.add_argument(
        "--served-model-name", type=_names, default=(), metavar="A,B", help="names of the model; default: its path"
    )
    serve.add_argument(
        "--api-key-env",
        default="ASTRA_SERVE_KEY",
        metavar="NAME",
        help="environment variable with the key that callers must send as a bearer token; without one all are let in",
    )
    serve.add_argument(
        "--max-model-len",
        type=whole_number(4),
        metavar="N",
        help="longest sequence, prompt and message; default: the model's context, but at most 8192; the cache has room "
        "for --rows such",
    )
    serve.add_argument("--rows", type=whole_number(1), default=16, metavar="N", help="messages sampled at once")
    serve.add_argument(
        "--default-max-tokens",
        type=whole_number(1),
        metavar="N",
        help="of a request that names none; default: what fits",
    )
    serve.add_argument(
        "--max-waiting", type=whole_number(1), default=1024, metavar="N", help="requests beyond which callers get 429"
    )
    serve.add_argument(
        "--grace-seconds", type=whole_number(0), default=30, metavar="N", help="for messages under way when it stops"
    )
    serve.add_argument(
        "--dtype", choices=["float32", "bfloat16"], help="of weights and matrix products; default: as they are stored"
    )
    serve.set_defaults(run=_serve, patience_seconds=None)  # the server has a rule of its own


def _names(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    if not all(names):
        raise argparse.ArgumentTypeError(f"expected names with commas between them, found {text!r}")
    return names


def _serve(options: argparse.Namespace) -> None:
    from astra_jax.cli.compile_cache import keep_compiled_programs
    from astra_jax.serve.server import ServingLimits, serve

    keep_compiled_programs()
    serve(
        options.checkpoint,
        host=options.host,
        port=options.port,
        key_variable=options.api_key_env,
        names=options.served_model_name,
        most_tokens=options.max_model_len,
        rows=options.rows,
        dtype=options.dtype,
        limits=ServingLimits(options.max_waiting, options.default_max_tokens, options.grace_seconds),
    )
