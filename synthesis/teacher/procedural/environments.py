"""Answers to the questions of the environments track."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from synthesis.teacher import Request

ANSWERS: Mapping[type[Request[Any]], Callable[[Any, int], Any]] = {}
