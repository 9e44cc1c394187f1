"""Work that may be given up ends on a signal, all of it; work without a signal is left alone."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from astra_jax.training.termination import GivenUp, Termination


class Work:
    """Waits for something that never comes, and takes its time to let go."""

    def __init__(self, signum: int | None):
        self._signum, self.told = signum, []

    async def __call__(self) -> None:
        self.told.append("begun")
        if self._signum is not None:
            asyncio.get_running_loop().call_later(0.01, os.kill, os.getpid(), self._signum)
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.01)
            self.told.append("let go")


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])
async def test_a_signal_gives_work_up_after_it_has_cleaned_up(signum):
    work = Work(signum)
    with Termination() as termination:
        with pytest.raises(GivenUp):
            async with asyncio.timeout(20) as clock:
                await termination.unless_asked(work())
        assert not clock.expired()
        assert work.told == ["begun", "let go"]
        assert termination.signum == signum
        assert termination.asked()


async def test_after_a_signal_no_work_is_begun():
    work = Work(None)
    with Termination() as termination:
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(GivenUp):
            async with asyncio.timeout(20) as clock:
                await termination.unless_asked(work())
    assert not clock.expired()
    assert work.told == []


async def test_results_errors_and_cancellations_of_work_are_handed_on():
    async def returns() -> int:
        return 7

    async def fails() -> None:
        raise ValueError("bad")

    work = Work(None)
    with Termination() as termination:
        assert await termination.unless_asked(returns()) == 7
        with pytest.raises(ValueError, match="bad"):
            await termination.unless_asked(fails())
        task = asyncio.ensure_future(termination.unless_asked(work()))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert work.told == ["begun", "let go"] or work.told == []
        assert not termination.asked()
