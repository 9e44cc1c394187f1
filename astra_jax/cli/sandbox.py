"""`astra sandbox serve`: the service that runs model-written code."""

from __future__ import annotations

import argparse

from astra_jax.cli.arguments import Commands, whole_number


def add_sandbox_service(commands: Commands) -> None:
    """Add the command."""
    sandbox = commands.add_parser("sandbox", help="the service that runs model-written code").add_subparsers(
        dest="action", required=True, metavar="ACTION"
    )
    serve = sandbox.add_parser(
        "serve",
        help="listen for tool calls",
        description="Tools import the standard library, and the packages that are listed: `astra sandbox serve "
        "--package numpy`. `/health` tells tier, packages and versions; docs/sandbox.md says what is protected.",
    )
    serve.add_argument("--host", default="127.0.0.1")
    serve.add_argument("--port", type=whole_number(0, 65535), default=8377)
    serve.add_argument("--workers", type=whole_number(1), default=None, help="default: one per core")
    serve.add_argument(
        "--package",
        action="append",
        default=[],
        metavar="NAME",
        help="a package of this environment, such as numpy, that tools may import with what it requires, and read "
        "only; may be given several times; none without it",
    )
    serve.add_argument(
        "--lazy-packages",
        action="store_true",
        help="packages are imported by the calls that ask for them, out of their limits, and not once before all calls",
    )
    serve.set_defaults(run=_serve, patience_seconds=None)  # uvicorn has a rule of its own


def _serve(options: argparse.Namespace) -> None:
    from sandbox.server import serve

    serve(
        host=options.host,
        port=options.port,
        workers=options.workers,
        packages=options.package,
        lazy_packages=options.lazy_packages,
    )
