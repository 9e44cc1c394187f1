"""`astra sandbox serve`: the service that runs model-written code."""

from __future__ import annotations

import argparse
from pathlib import Path

from astra_jax.cli.arguments import Commands, whole_number


def add_sandbox_service(commands: Commands) -> None:
    """Add the command."""
    sandbox = commands.add_parser("sandbox", help="the service that runs model-written code").add_subparsers(
        dest="action", required=True, metavar="ACTION"
    )
    serve = sandbox.add_parser(
        "serve",
        help="listen for tool calls",
        description="Tools may import the standard library, and the packages of one folder: `pip install --target "
        "FOLDER numpy`, then `astra sandbox serve --packages FOLDER`. `/health` shows the tier, the packages and the "
        "versions. docs/sandbox.md describes the protection.",
    )
    serve.add_argument("--host", default="127.0.0.1")
    serve.add_argument("--port", type=whole_number(0, 65535), default=8377)
    serve.add_argument("--workers", type=whole_number(1), default=None, help="default: one per core")
    serve.add_argument(
        "--packages",
        type=Path,
        metavar="FOLDER",
        help="a folder made by `pip install --target FOLDER NAME ...`, whose packages tools may import and read",
    )
    serve.set_defaults(run=_serve, patience_seconds=None)  # uvicorn handles signals itself


def _serve(options: argparse.Namespace) -> None:
    from sandbox.server import serve

    serve(host=options.host, port=options.port, workers=options.workers, packages=options.packages)
