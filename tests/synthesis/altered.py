"""Records with other values in some of their fields, as a test plants them."""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import BaseModel

Model = TypeVar("Model", bound=BaseModel)


def altered(record: Model, /, **changes: Any) -> Model:
    """Return a record with other values in these fields; they are not validated."""
    return record.model_copy(update=changes)
