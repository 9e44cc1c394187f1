"""Requests and replies of the service. Nothing here knows how a tool is run.

A tool's failure is data: `ExecuteReply` with `status == "error"` and an `ErrorKind`. A service's failure is never
data: it is an HTTP status of 400 and above here, and the exception `SandboxUnavailable` in the client.
"""

from __future__ import annotations

import hashlib
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from sandbox.strict_json import MAX_NESTING, nesting

MAX_SEED = 2**63 - 1


class ErrorKind(StrEnum):
    """The reason why a tool gave no value."""

    TIMEOUT = "timeout"
    MEMORY = "memory"
    OUTPUT_LIMIT = "output_limit"
    FORBIDDEN = "forbidden"
    EXCEPTION = "exception"
    INVALID_RESULT = "invalid_result"
    INVALID_SOURCE = "invalid_source"
    CRASHED = "crashed"


def nests_too_deep(value: Any) -> bool:
    """Say whether more lists and objects lie within each other than the service takes in arguments or a state."""
    return nesting(value) > MAX_NESTING


class _Message(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Limits(_Message):
    """The most that one call may use. Limits above the server's maximum are refused, not clipped."""

    wall_seconds: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 5.0
    cpu_seconds: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 2.0
    memory_bytes: Annotated[int, Field(ge=1 << 20)] = 256 << 20
    output_bytes: Annotated[int, Field(ge=0)] = 64 << 10
    result_bytes: Annotated[int, Field(ge=2)] = 1 << 20


class ExecuteRequest(_Message):
    """Call `function` of the module `source` (or of the source put earlier under `source_sha256`)."""

    source: str | None = None
    source_sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")] | None = None
    function: Annotated[str, Field(min_length=1, max_length=256)]
    arguments: dict[str, Any] = Field(default_factory=dict)
    state: dict[str, Any] | None = None
    seed: Annotated[int, Field(ge=0, le=MAX_SEED)] = 0
    limits: Limits = Limits()

    @model_validator(mode="after")
    def _one_source(self) -> ExecuteRequest:
        if (self.source is None) == (self.source_sha256 is None):
            raise ValueError("give exactly one of `source` and `source_sha256`")
        return self


class Usage(_Message):
    """The time and memory that a call used; the kernel counted them, not the tool."""

    wall_seconds: float
    cpu_seconds: float
    max_rss_bytes: int


PACKAGES_HEADER = "x-sandbox-packages"
"""Name of the header with the packages that the calls of a request need, as `written_packages` writes them."""


class InstalledPackage(_Message):
    """A package of a service that tools may import."""

    version: str
    modules: tuple[str, ...]
    """Names under which code imports the package."""


def written_packages(versions: dict[str, str]) -> str:
    """Write names and versions in the form of the header.

    >>> written_packages({"numpy": "2.4.6", "six": "1.17.0"}), read_packages("numpy==2.4.6, six==1.17.0")
    ('numpy==2.4.6, six==1.17.0', {'numpy': '2.4.6', 'six': '1.17.0'})
    """
    return ", ".join(f"{name}=={version}" for name, version in sorted(versions.items()))


def read_packages(text: str) -> dict[str, str]:
    """Read the text of a header that `written_packages` wrote."""
    parts = (part.strip().partition("==") for part in text.split(","))
    return {name: version for name, _, version in parts if name}


class ToolError(_Message):
    """A tool's failure in one line."""

    kind: ErrorKind
    message: str


class ExecuteReply(_Message):
    """The reply to a call: `value` (and `state`) if it is `ok`, else `error`."""

    status: Literal["ok", "error"]
    value: Any = None
    state: dict[str, Any] | None = None
    error: ToolError | None = None
    stdout: str = ""
    usage: Usage

    @property
    def ok(self) -> bool:
        """Whether the tool returned a value."""
        return self.status == "ok"

    @model_validator(mode="after")
    def _error_iff_failed(self) -> ExecuteReply:
        if (self.status == "error") != (self.error is not None):
            raise ValueError("a reply has an error exactly when its status is `error`")
        return self


def source_sha256(source: str) -> str:
    """Return the content address of a source.

    >>> source_sha256("")[:8]
    'e3b0c442'
    """
    return hashlib.sha256(source.encode("utf-8", "surrogatepass")).hexdigest()
