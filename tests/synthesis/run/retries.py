"""Retries of gcsfs without their waits."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest


def wait_shortly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let gcsfs wait a hundredth of its time before it tries again."""
    waits = SimpleNamespace(sleep=lambda seconds: asyncio.sleep(seconds / 100))
    monkeypatch.setattr("gcsfs.retry.asyncio", waits)
