"""Code that the stand-ins share: options, and requests to a relay. A copy of it lies beside each of them."""

import json
import sys
import urllib.request


def option(name):
    return sys.argv[sys.argv.index(name) + 1] if name in sys.argv else ""


def ask(address, key, body):
    """Return the reply to a chat."""
    headers = {"Authorization": f"Bearer {key}"}
    request = urllib.request.Request(f"{address}/chat/completions", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request) as response:
        return json.loads(response.read())
