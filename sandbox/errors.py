"""The errors of the sandbox.

    SandboxError
    ├── SandboxUnavailable     client: no answer to a call, for any reason; it is never a result
    │   └── PackagesMissing    the sandbox has not the packages that the calls need, or not on all replicas
    ├── InvalidToken           a bearer token that no header can carry
    ├── RefusedToStart         server: it will not run like this
    ├── IsolationUnavailable   self test: this machine cannot keep the promises of a tier
    ├── ProgramNotConfined     this machine cannot confine a program of others, which was not run
    ├── PackageUnavailable     a package that tools are to have is not there, or cannot be had safely
    └── within the service, where each is an HTTP status
        ├── InvalidRequest     4xx
        ├── UnknownSource      404
        ├── QueueFull          429
        └── ServiceFault       503

An error that a tool raises is no error of the service: it is the tool's reply. So the jail imports nothing from here.
"""

from __future__ import annotations


class SandboxError(Exception):
    """The root: the service or a caller could not do its part; the message says why, for people."""
