"""What a request is refused with, and how a body is read: JSON in, a typed request or one line of why not out."""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import from_json
from starlette.responses import JSONResponse

from astra_jax.errors import AstraError

_Model = TypeVar("_Model", bound=BaseModel)


class RequestRefused(AstraError):
    """A request has no answer; the message says why, in one line."""

    def __init__(self, status: int, message: str, *, param: str | None = None, code: str | None = None):
        super().__init__(" ".join(message.split()))
        self.status, self.param, self.code = status, param, code

    def to_json(self) -> dict[str, Any]:
        """Return the error as OpenAI's clients read it."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}


def reply_of(refused: RequestRefused) -> JSONResponse:
    """Return the reply that a refused request gets."""
    headers = {"Retry-After": "1"} if refused.status == 429 else None
    return JSONResponse(refused.to_json(), status_code=refused.status, headers=headers)


def read_body(model: type[_Model], body: bytes) -> _Model:
    """Read a body.

    Raises:
        RequestRefused: it is not JSON, or not such a request.
    """
    try:
        document = from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise RequestRefused(400, f"the body is not JSON: {error}") from None
    try:
        return model.model_validate(document)
    except ValidationError as error:
        fault = error.errors(include_input=False, include_url=False)[0]
        if fault["type"] == "value_error" and not fault["loc"]:  # a rule of ours, which names the field itself
            message = str(fault["ctx"]["error"])
            raise RequestRefused(400, message, param=message.partition(":")[0]) from None
        where = ".".join(map(str, fault["loc"])) or "the body"
        why = "this server does not do that" if fault["type"] == "extra_forbidden" else fault["msg"]
        raise RequestRefused(400, f"{where}: {why}", param=where) from None
