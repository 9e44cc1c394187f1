"""Requests of web pages: a page in a browser on this machine can send requests to servers on 127.0.0.1.

Browsers add an Origin header to a page's POST. A page whose own name was made to lead to 127.0.0.1 also reads the
replies, but its requests have that name in their Host header.
"""

from __future__ import annotations

import ipaddress
import re

_HOST = re.compile(r"(?:\[(?P<ipv6>[^\[\]]*)\]|(?P<name>[^\[\]:]*))(?::[0-9]*)?")


def is_local_name(host: str | None) -> bool:
    """Say whether a Host header names a server in a way that no name server can change: an address, or localhost.

    A request without a Host header is accepted: every browser sends one.

    >>> [is_local_name(host) for host in ("LOCALHOST.:8377", "127.0.0.1", "[::1]:80", None)]
    [True, True, True, True]
    >>> [is_local_name(host) for host in ("evil.example", "127.0.0.1.evil.example", "[::1].evil.example", "[::1", "")]
    [False, False, False, False, False]
    """
    parts = None if host is None else _HOST.fullmatch(host)
    if parts is None:
        return host is None
    name = (parts["ipv6"] or parts["name"] or "").lower().removesuffix(".")
    try:
        return name == "localhost" or bool(ipaddress.ip_address(name))
    except ValueError:
        return False
