"""Metered work on one item: the cost of its replies is kept, and an unusable reply rejects it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from synthesis.stage import Rejected
from synthesis.teacher.protocol import BadReply
from synthesis.teacher.usage import Usage, metered_usage


@asynccontextmanager
async def metered_item() -> AsyncIterator[Usage]:
    """Meter every reply that is asked for inside the block.

    Raises:
        Rejected: a reply stayed unusable. An outage passes as it is: it stops the run and rejects nothing.
    """
    with metered_usage() as usage:
        try:
            yield usage
        except BadReply as bad:
            raise Rejected("unusable reply", str(bad)) from bad
