"""The `astra` command as it is installed, and `python -m astra_jax.cli`."""

import signal
import sys


def astra() -> int:
    """Run the command that was typed; return its exit code."""
    # Until `main` listens, Ctrl-C ends the process without a traceback of the import.
    handler = signal.getsignal(signal.SIGINT)
    if handler is not signal.SIG_IGN:  # as in the background of a shell
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from astra_jax.cli.command import main

    signal.signal(signal.SIGINT, handler)
    return main()


if __name__ == "__main__":
    sys.exit(astra())
