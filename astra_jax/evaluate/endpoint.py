"""The address of a server that serves a policy, its key, and the first contact with it."""

from __future__ import annotations

import os
import re
import time
from dataclasses import dataclass
from typing import Final

import httpx
from pydantic import BaseModel

from astra_jax.engine.interface import DecoderError

KEY_VARIABLE: Final = "ASTRA_SERVE_KEY"
_FIRST_CONTACT_SECONDS: Final = 5.0


def key_or_none(variable: str) -> str | None:
    """Return the key in an environment variable, without blanks around it; None if it is not set.

    Raises:
        DecoderError: the key cannot stand in a header.
    """
    key = os.environ.get(variable, "").strip()
    if key and not re.fullmatch(r"[!-~]+", key):
        raise DecoderError(f"the key in {variable} (not shown) has characters other than visible ASCII; set it anew")
    return key or None


@dataclass(frozen=True)
class Endpoint:
    """A server, and the model that is asked for."""

    url: str
    model: str
    most_tokens: int
    """Tokens of the longest sequence."""
    policy: str | None
    """Digest of the policy folder that it serves; None if it does not tell."""
    key_variable: str = KEY_VARIABLE


class _Model(BaseModel):
    id: str
    max_model_len: int
    policy: str | None = None


def first_contact(url: str) -> Endpoint:
    """Return the server at a URL, with the first of its models; a server that starts up is waited for 5 s.

    Raises:
        DecoderError: no server answers there, or one of another kind.
    """
    url, deadline = url.rstrip("/"), time.monotonic() + _FIRST_CONTACT_SECONDS
    key = key_or_none(KEY_VARIABLE)
    headers = {"authorization": f"Bearer {key}"} if key else {}
    with httpx.Client(trust_env=False, timeout=_FIRST_CONTACT_SECONDS, headers=headers) as http:
        while True:
            try:
                response = http.get(f"{url}/v1/models")
                break
            except httpx.TransportError as error:
                if time.monotonic() > deadline:
                    why = str(error) or type(error).__name__
                    raise DecoderError(f"no server of a policy answers at {url}: {why}; start `astra serve`") from None
                time.sleep(0.25)
    if response.status_code == 401:
        raise DecoderError(f"the server at {url} wants another key (HTTP 401): set {KEY_VARIABLE} to its own")
    try:
        models = [_Model.model_validate(each) for each in response.json()["data"]]
        served = models[0]
    except (ValueError, LookupError, TypeError):
        raise DecoderError(
            f"{url}/v1/models answers HTTP {response.status_code} without a list of models; give a model server's "
            "address"
        ) from None
    return Endpoint(url, served.id, served.max_model_len, served.policy)
