"""The address of an endpoint: looked at before anything is sent there, and not shown where it may hold a key."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

from synthesis.teacher.protocol import TeacherUnavailable

_MOST_PORT: Final = 2**16 - 1


def require_address(address: str, setting: str) -> None:
    """Require that an address is one of HTTP, and that no key stands in it; `setting` says where it was named.

    Raises:
        TeacherUnavailable: it is none, or holds a user, a query or a fragment; it is not repeated.

    >>> require_address("https://host/v1", "embedding.url")
    >>> require_address("https://me:secret@host/v1", "embedding.url")
    Traceback (most recent call last):
    synthesis.teacher.protocol.TeacherUnavailable: embedding.url: expected an address such as https://host/v1, found \
one with a user in it; mend it, and name the variable that holds the key in api_key_env
    """
    if found := _fault_of(address):
        raise TeacherUnavailable(
            f"{setting}: expected an address such as https://host/v1, found {found}; mend it, and name the variable "
            "that holds the key in api_key_env"
        )


def _fault_of(address: str) -> str:
    import httpx  # 7 MB that a run without an endpoint does without

    try:
        urlsplit(address)  # which knows brackets that do not close
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
