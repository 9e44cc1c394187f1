"""The errors of the sandbox.

    SandboxError
    ├── SandboxUnavailable     client: no answer to a call, for any reason; it is never a result
    │   └── PackagesMissing    the sandbox has not the packages that the calls need
    ├── InvalidToken           a bearer token that no header can carry
    ├── RefusedToStart         server: it will not run like this, on this machine or with these packages
    ├── ProgramNotConfined     this machine cannot confine a program of others, which was not run
    └── Refused                within the service: a request that is not served, with its HTTP status
        └── ServiceFault       503: the service failed, not the tool

An error that a tool raises is no error of the service: it is the tool's reply. So the jail imports nothing from here.
"""

from __future__ import annotations


class SandboxError(Exception):
    """The root: the service or a caller could not do its part; the message says why, for people."""


class RefusedToStart(SandboxError):
    """The service does not run with its options, its packages or this machine; the message names reason and remedy."""


class Refused(SandboxError):
    """A request is not served. `status` is that of HTTP, `code` names the reason for programs."""

    def __init__(self, message: str, status: int = 400, code: str = "invalid_request") -> None:
        super().__init__(message)
        self.status, self.code = status, code


class ServiceFault(Refused):
    """The service, not the tool, failed; the call may be repeated."""

    def __init__(self, message: str) -> None:
        super().__init__(message, status=503, code="service_fault")
