"""Knowledge: what questions are made from."""

from __future__ import annotations

from typing import Literal

from synthesis.records import Language, Record


class Knowledge(Record):
    """One source of questions: the name of a domain, whose facts the teacher makes up consistently from `seed`."""

    kind: Literal["domain"] = "domain"
    domain: str
    language: Language
    seed: int
    name_parts: int | None = None
    """How many first and second parts the names of a generated world are made of; None for all there are."""
