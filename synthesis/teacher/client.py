"""The HTTP client of an endpoint: that of the `openai` package, with address and key checked first.

It repeats a call that may succeed later, after `Retry-After` (at most two minutes) or a growing time with jitter.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import urlsplit

from synthesis.teacher.config import OpenAITeacherConfig
from synthesis.teacher.protocol import TeacherUnavailable

_MOST_PORT: Final = 2**16 - 1
_CONNECT_SECONDS: Final = 5.0


def open_client(base_url: str, api_key_env: str, limits: OpenAITeacherConfig, on_response: Callable[..., Any]) -> Any:
    """Return an `openai.AsyncOpenAI` for one address and key; `on_response` sees each response before the client does.

    The client holds the key in memory; it is written nowhere.

    Raises:
        TeacherUnavailable: the `openai` package or the key is missing, the key cannot be sent, or the address is not
            one of HTTP or holds a key.
    """
    _require_address(base_url, f"the teacher's base_url beside {api_key_env}")
    key = _key_in(api_key_env)
    try:
        import aiohttp  # noqa: F401 - the client's transport, part of the extra
        import openai
    except ImportError as error:
        raise TeacherUnavailable(
            "the OpenAI teacher needs the `openai` package; run: pip install 'astra-jax[openai]'"
        ) from error
    return openai.AsyncOpenAI(
        api_key=key,
        base_url=base_url,
        max_retries=limits.max_retries,
        timeout=openai.Timeout(limits.request_seconds, connect=min(_CONNECT_SECONDS, limits.request_seconds)),
        # A fifth of the CPU per call of the default client, whose pool looks through all connections for each call.
        http_client=openai.DefaultAioHttpClient(event_hooks={"response": [on_response]}),
    )


def _key_in(api_key_env: str) -> str:
    key = os.environ.get(api_key_env)
    if not key:
        raise TeacherUnavailable(
            f"expected the endpoint's key in the environment variable {api_key_env}, found none; set it, or any text "
            "for an endpoint that wants no key"
        )
    # An HTTP header takes no other text, and each call would fail.
    if not (key.isascii() and key.isprintable() and key == key.strip()):
        raise TeacherUnavailable(
            f"expected the endpoint's key in {api_key_env} as one line of ASCII without spaces around it, found "
            "another text; set it anew"
        )
    return key


def _require_address(address: str, setting: str) -> None:
    """Require that an address is one of HTTP and holds no key; `setting` is the key of the config that names it.

    Raises:
        TeacherUnavailable: it is not, or holds a user, a query or a fragment; the message does not repeat it.

    >>> _require_address("https://host/v1", "base_url")
    >>> _require_address("https://me:secret@host/v1", "base_url")
    Traceback (most recent call last):
    synthesis.teacher.protocol.TeacherUnavailable: base_url: expected an address such as https://host/v1, found \
one with a user in it; mend it, and name the variable that holds the key in api_key_env
    """
    if found := _fault_of(address):
        raise TeacherUnavailable(
            f"{setting}: expected an address such as https://host/v1, found {found}; mend it, and name the variable "
            "that holds the key in api_key_env"
        )


def _fault_of(address: str) -> str:
    import httpx  # 7 MB that a run without an endpoint does not need

    try:
        urlsplit(address)  # notices brackets that do not close
        url = httpx.URL(address)
    except (ValueError, httpx.InvalidURL):  # their texts repeat a part of the address
        return "one that cannot be read"
    if url.scheme not in ("http", "https") or not url.host:
        return "one without http:// or https:// and a host"
    if url.port is not None and url.port > _MOST_PORT:
        return f"one whose port is above {_MOST_PORT}"
    if url.userinfo:
        return "one with a user in it"
    return "one with a query or a fragment, behind which no path can stand" if url.query or url.fragment else ""
