"""The bearer token that callers and service share: read from the environment on either side, and shown nowhere."""

from __future__ import annotations

import os
import re

from sandbox.errors import SandboxError

TOKEN_VARIABLE = "ASTRA_SANDBOX_TOKEN"
_VISIBLE_ASCII = re.compile(r"[!-~]+")


class InvalidToken(SandboxError):
    """The token cannot travel in an HTTP header; the message does not hold it."""


def token_or_none(given: str | None) -> str | None:
    """Return the token without blanks and line ends around it (files of secrets end in one); None when nothing is left.

    `given` is the token, or None for the one in the environment.

    Raises:
        InvalidToken: it holds something else than visible ASCII.

    >>> token_or_none(" secret\\n")
    'secret'
    """
    token = (os.environ.get(TOKEN_VARIABLE, "") if given is None else given).strip()
    if token and not _VISIBLE_ASCII.fullmatch(token):
        raise InvalidToken(
            f"the token{f' in {TOKEN_VARIABLE}' if given is None else ''} (not shown) has characters other than "
            "visible ASCII; make one by `openssl rand -hex 32`"
        )
    return token or None
