"""What the sandbox may fail with.

    SandboxError
    ├── SandboxUnavailable     client: no answer to a call, whatever the reason; it is never a result
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

An error that a tool itself raises is none of the service but its reply; the jail that says so imports nothing of ours.
"""

from __future__ import annotations


class SandboxError(Exception):
    """The root: something that the service or its callers promise did not come about; the message is for people."""
