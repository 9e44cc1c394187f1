"""`python -m sandbox.contract URL`: holds a service to its promises; exit status 0 when it keeps them all."""

from __future__ import annotations

import argparse

from sandbox.bearer_token import TOKEN_VARIABLE
from sandbox.client import SandboxClient, SandboxUnavailable
from sandbox.contract.promises import PROMISES


def main() -> None:
    """Check every promise at the URL of the command line, and print which are kept."""
    parser = argparse.ArgumentParser(prog="python -m sandbox.contract", description=__doc__)
    parser.add_argument("url", help="where the service listens; its token is read from " + TOKEN_VARIABLE)
    options = parser.parse_args()
    broken = 0
    with SandboxClient(options.url) as client:
        in_namespaces = client.health()["tier"] == "namespaces"
        promises = [promise for promise in PROMISES if in_namespaces or not promise.needs_namespaces]
        for promise in promises:
            try:
                found = promise.check(client)
            except SandboxUnavailable as error:
                found = str(error)
            broken += found is not None
            print(f"{'broken' if found else 'kept  '}  {promise.name}{': ' + found if found else ''}", flush=True)
    print(f"{len(promises) - broken}/{len(promises)} promises kept")
    raise SystemExit(1 if broken else 0)


if __name__ == "__main__":
    main()
