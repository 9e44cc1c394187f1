"""Ctrl-C and SIGTERM end every command with one line and no traceback; nothing finished is lost.

    training            saves the state after its step, or    130 after Ctrl-C, 0 after SIGTERM    `Termination`
                        in a rollout the state before it
    any other command   stops and cleans up                   130 after Ctrl-C, 143 after SIGTERM  `Interruption`

A cluster sends SIGTERM before it takes a machine away. A second Ctrl-C ends any command at once.

Decided: docs/decisions/commands.md, “A signal abandons the rollout, and the state before it is saved”.
"""

from __future__ import annotations

import asyncio
import math
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from types import FrameType
from typing import Any, ClassVar, TypeVar

_T = TypeVar("_T")

_DOUBLED_SECONDS = 0.3
"""Seconds in which a second signal counts as the first: a terminal and a wrapper such as `timeout` may both send it."""


def name_of(signum: int) -> str:
    """Return the usual name of a signal: Ctrl-C or SIGTERM."""
    return "Ctrl-C" if signum == signal.SIGINT else signal.Signals(signum).name


class Terminated(SystemExit):
    """A signal was heeded: the state is saved, and the process ends with 0 after SIGTERM, with 130 after Ctrl-C."""

    def __init__(self, stage: str, steps: int, signum: int):
        super().__init__(0 if signum == signal.SIGTERM else 128 + signum)
        self.signum = signum
        print(
            f"{stage}: saved after step {steps} on {name_of(signum)}; resumed, it goes on from there",
            file=sys.stderr,
        )


class GivenUp(BaseException):
    """A signal came during work that may be given up, and the work has ended; no error."""


class Termination:
    """Notices SIGTERM and Ctrl-C while it is entered, in the main thread; several hosts agree on where to end.

    A second Ctrl-C ends the process at once.
    """

    in_force: ClassVar[int] = 0
    """Number of entered instances: while there is one, a run ends when it has saved, however long its step takes."""

    def __init__(self) -> None:
        self.signum: int = signal.SIGTERM
        """The signal on which the run ends."""
        self._noted_seconds: float | None = None
        self._previous: dict[int, Any] = {}
        self._give_up: Callable[[], object] | None = None
        """The function that ends the current work; None without work."""

    def __enter__(self) -> Termination:
        import jax  # so that commands without JAX can import this file

        self._num_hosts = jax.process_count()
        # If Ctrl-C is ignored, as in the background of a shell, it stays ignored.
        heeded = [signal.SIGINT] if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN else []
        if self._num_hosts == 1:  # with several, JAX's own preemption service listens for SIGTERM
            heeded.append(signal.SIGTERM)
        self._previous = {signum: signal.signal(signum, self._note) for signum in heeded}
        Termination.in_force += 1
        return self

    def __exit__(self, *_: object) -> None:
        Termination.in_force -= 1
        for signum, handler in self._previous.items():
            signal.signal(signum, handler)

    def asked(self) -> bool:
        """Whether the run ends after the current step; every host asks once at every step, and all agree."""
        if self._num_hosts > 1:
            from astra_jax.mesh.hosts import hosts_are_to_end

            return hosts_are_to_end()
        return self._noted_seconds is not None

    async def unless_asked(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Return the result of `work`; on a signal it is cancelled and cleans up.

        With several hosts, `work` itself ends before the same call of the decoder on every host, since no host can
        leave the others alone.

        Raises:
            GivenUp: a signal came before `work` had ended, or before it had begun.
        """
        if self._num_hosts > 1:
            from astra_jax.mesh.hosts import HostsEnd

            try:
                return await work
            except HostsEnd:
                raise GivenUp from None
        task, loop = asyncio.ensure_future(work), asyncio.get_running_loop()
        # This also wakes the loop, which may wait for a tool while Python runs the handler.
        self._give_up = lambda: loop.call_soon_threadsafe(task.cancel)
        if self._noted_seconds is not None:  # only now, so that no signal is missed
            task.cancel()
        try:
            return await task
        except asyncio.CancelledError:
            if self._noted_seconds is None:
                raise  # cancelled by the caller
            raise GivenUp from None
        finally:
            self._give_up = None

    def _note(self, signum: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self._noted_seconds is None:
            self._noted_seconds, self.signum = now, signum
            if signum == signal.SIGINT and self._num_hosts > 1:
                os.kill(os.getpid(), signal.SIGTERM)  # which JAX tells the other hosts of
            if self._give_up is not None:
                self._give_up()
            if sys.stderr.isatty():
                print(f"{name_of(signum)}: ends when its state is saved; a second Ctrl-C: at once", file=sys.stderr)
        elif signum == signal.SIGINT and now - self._noted_seconds > _DOUBLED_SECONDS:
            end_at_once(self.signum)


class Interruption:
    """While it is entered in the main thread, SIGTERM raises KeyboardInterrupt as Ctrl-C does.

    Python's own handler of Ctrl-C stays, since asyncio replaces it: it cancels the running task and waits until the
    task has cleaned up. Python handles no signal while a compiler works, so a thread watches: the process ends at once
    on a second Ctrl-C, and `patience_seconds` after the first signal if it has not ended by itself.
    """

    def __init__(self, *, patience_seconds: float | None):
        """Watch for `patience_seconds` after a first signal; with None the program has a rule of its own."""
        self._patience_seconds = patience_seconds
        self.signum: int | None = None
        """The signal that came first."""

    def __enter__(self) -> Interruption:
        self._is_main = threading.current_thread() is threading.main_thread()
        if self._is_main:
            self._previous = signal.signal(signal.SIGTERM, self._terminate)
            if self._patience_seconds is not None:
                self._reads, self._writes = os.pipe()
                os.set_blocking(self._writes, False)
                self._previous_wakeup = signal.set_wakeup_fd(self._writes, warn_on_full_buffer=False)
                self._watcher = threading.Thread(target=self._watch, args=[self._patience_seconds], daemon=True)
                self._watcher.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_main:
            signal.signal(signal.SIGTERM, self._previous)
            if self._patience_seconds is not None:
                signal.set_wakeup_fd(self._previous_wakeup)
                os.close(self._writes)  # which ends the watcher
                self._watcher.join()
                os.close(self._reads)

    def _terminate(self, signum: int, frame: FrameType | None) -> None:
        self.signum = self.signum or signum
        handler = signal.getsignal(signal.SIGINT)
        if not callable(handler):  # Ctrl-C is ignored, as in the background of a shell
            raise KeyboardInterrupt
        handler(signal.SIGINT, frame)

    def _watch(self, patience_seconds: float) -> None:
        noted_seconds = None  # when the first signal came
        deadline = math.inf
        while True:
            left = None if deadline == math.inf else max(0.0, deadline - time.monotonic())
            if not select.select([self._reads], [], [], left)[0]:
                if not Termination.in_force:
                    end_at_once(self.signum or signal.SIGINT, "")
                deadline = math.inf  # a run that trains ends when it has saved
                continue
            signums = os.read(self._reads, 64)  # Python writes the number of each signal that comes
            if not signums:
                return
            for signum in signums:
                now = time.monotonic()
                if signum in (signal.SIGINT, signal.SIGTERM) and noted_seconds is None:
                    self.signum = self.signum or signum
                    noted_seconds, deadline = now, now + patience_seconds
                elif signum == signal.SIGINT and now - (noted_seconds or now) > _DOUBLED_SECONDS:
                    end_at_once(self.signum or signum)


def end_at_once(signum: int, how: str = " at once") -> None:
    """End the process without cleaning up; a run can be resumed from the state that it leaves."""
    os.write(2, f"astra: ended{how} on {name_of(signum)}\n".encode())
    os._exit(128 + signum)
