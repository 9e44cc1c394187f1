"""Token ids in, token ids out: `POST /inference/v1/generate`, and what ends such a message.

Each request is a session of its own, forgotten with its reply; a history that is sent again is found in the pages, by
what they hold. A client that hangs up lets go of its row and its pages.

Decided: docs/decisions/serve.md, “A request is a session, and its history is found by content”.
"""

from __future__ import annotations

import secrets
import time

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from astra_jax.engine.interface import DecoderError, Session
from astra_jax.serve.generate_request import GenerateRequest, abort_request, generate_request
from astra_jax.serve.refusal import RequestRefused
from astra_jax.serve.service import Service


class TokensEndpoint:
    """Answers with what the decoder says, token for token."""

    def __init__(self, service: Service):
        self._service = service
        self._under_way: dict[str, Session] = {}
        """Of each request id."""

    async def generate(self, request: Request) -> Response:
        """Answer `POST /inference/v1/generate`.

        Raises:
            RequestRefused: it cannot be answered.
            ClientDisconnect: nobody waits for the answer any more.
        """
        service = self._service
        with service.taking():
            asked = generate_request(await service.body(request))
            service.require_open()
            return await self._answer(request, asked)

    async def _answer(self, request: Request, asked: GenerateRequest) -> Response:
        service = self._service
        name = service.name_of(asked.model)
        request_id = f"generate-tokens-{asked.request_id or secrets.token_hex(16)}"
        if request_id in self._under_way:
            raise RequestRefused(400, f"request_id: {asked.request_id} is under way already", param="request_id")
        if asked.draws_from > len(asked.token_ids):
            raise RequestRefused(
                400, f"draws_from: expected at most {len(asked.token_ids)}, as many as token_ids", param="draws_from"
            )
        params = asked.sampling_params
        sampling = asked.sampling(service.max_tokens(len(asked.token_ids), params.max_tokens))
        session = service.session(params.seed, salt=asked.cache_salt, num_prompt_tokens=asked.draws_from)
        self._under_way[request_id] = session
        try:
            message = await service.while_wanted(request, service.sampled(asked.token_ids, sampling, session))
        except DecoderError as error:
            raise RequestRefused(400, str(error)) from None
        finally:
            del self._under_way[request_id]
        return JSONResponse(asked.reply(message, request_id=request_id, model=name, created=int(time.time())))

    async def abort(self, request: Request) -> Response:
        """Answer `POST /inference/v1/abort_requests`: unknown ids, perhaps answered already, are passed over.

        Raises:
            RequestRefused: the body names no requests.
        """
        for request_id in abort_request(await self._service.body(request)).request_ids:
            if request_id in self._under_way:
                self._service.decoder.abort(self._under_way[request_id])
        return JSONResponse({})
